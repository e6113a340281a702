"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.postgresql import postgresql

__all__ = ["postgresql"]

# Threads of torch and numpy spin while they wait for each other: where other tests keep the cores busy, tiny models
# took four times the processor time. Set before either is imported, and for all that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A script's background jobs ignore Ctrl-C, and would pass that on to what tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the daemon writes into the user's state folder goes to a place of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder

"""What the tests against real processes share."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.repositories import make_repository
from tests.integration.local_jobs import carriers
from tests.integration.smollm2 import model_file, safetensors


@pytest.fixture(scope="session")
def smollm2(pytestconfig: pytest.Config) -> Path:
    """A real model as safetensors, which load in seconds."""
    return safetensors(model_file(), pytestconfig)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of a user's, with one commit."""
    make_repository(tmp_path / "repository")
    return tmp_path / "repository"


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Closes what a test opens."""
    with contextlib.ExitStack() as stack:
        yield lambda executor: stack.enter_context(contextlib.closing(executor))


@pytest.fixture
def mark() -> Iterator[str]:
    """A value that all processes of a test carry in their environment; none may be left at its end."""
    value = uuid.uuid4().hex
    yield value
    left = carriers(value)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left

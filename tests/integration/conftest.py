"""What the tests against real processes share."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.integration.local_jobs import carriers


@pytest.fixture
def mark() -> Iterator[str]:
    """A value that all processes of a test carry in their environment; none may be left at its end."""
    value = uuid.uuid4().hex
    yield value
    left = carriers(value)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left

"""A journal with one session, and a driver that takes its experiments through their phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoresearchd.store.repository import SqlStore
from tests.fakes.stores import open_store
from tests.unit.store.driver import Driver, begin


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder with ? and %20"
    folder.mkdir()
    return folder / "state.db"


@pytest.fixture
def reopen(path: Path) -> Callable[[], SqlStore]:
    """Opens the same journal anew at each call, as a daemon does after it was killed."""
    return lambda: open_store(path, busy_timeout=0.05)


@pytest.fixture
def store(reopen: Callable[[], SqlStore]) -> Iterator[SqlStore]:
    with reopen() as store:
        yield store


@pytest.fixture
def lab(store: SqlStore) -> Driver:
    return begin(store)

"""A journal with one session, and a driver that takes its experiments through their phases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.store.repository import SqlStore
from tests.contract.store_driver import AT, Driver, new_session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder with ? and %20"
    folder.mkdir()
    return folder / "state.db"


@pytest.fixture
def lab(path: Path) -> Iterator[Driver]:
    store = SqlStore.open(f"sqlite:///{path}", busy_timeout=0.05)
    session = store.create_session(new_session(), AT)
    store.open_segment(session.id, "f0", "start", "cpu", AT)
    yield Driver(store, session.id)
    store.close()

"""A journal with one session, and a driver that takes its experiments through their phases.

Each test is made with SQLite and, unless it looks into the file (``path``), with PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autoresearchd.store.repository import SqlStore
from autoresearchd.store.shared import Shared
from tests.fakes.stores import open_store
from tests.postgresql import needs_postgresql
from tests.unit.store.driver import Driver, Where, begin

SQLITE, POSTGRESQL = "sqlite", pytest.param("postgresql", marks=needs_postgresql)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        both = "path" not in metafunc.fixturenames and getattr(metafunc.module, "BOTH", True)
        metafunc.parametrize("backend", [SQLITE, *([POSTGRESQL] if both else [])])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder with ? and %20"
    folder.mkdir()
    return folder / "state.db"


@pytest.fixture
def journal(backend: str, request: pytest.FixtureRequest) -> Where:
    """Where the journal is, for whoever reads it."""
    if backend == SQLITE:
        return request.getfixturevalue("path")
    return request.getfixturevalue("postgresql").empty_project()


@pytest.fixture
def reopen(journal: Where) -> Iterator[Callable[[], SqlStore]]:
    """Opens the same journal anew at each call, as a daemon does after it was killed."""
    with ExitStack() as left:

        def opened() -> SqlStore:
            store = SqlStore.open(journal) if isinstance(journal, Shared) else open_store(journal, busy_timeout=0.05)
            left.callback(store.close)
            return store

        yield opened


@pytest.fixture
def store(reopen: Callable[[], SqlStore]) -> Iterator[SqlStore]:
    with reopen() as store:
        yield store


@pytest.fixture
def lab(store: SqlStore) -> Driver:
    return begin(store)

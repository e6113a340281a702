"""The fixtures of the store's contract suites: a store, opened as its tests say, and a session in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from autoresearchd.domain.ports import Store
from tests.contract.store_driver import AT, Driver, new_session


class StoreFixtures:
    """Override ``reopen``."""

    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        """Opens the same journal anew at each call, as a daemon does after it was killed."""
        raise NotImplementedError("give the suite a store: override the fixture `reopen`")

    @pytest.fixture
    def store(self, reopen: Callable[[], Store]) -> Iterator[Store]:
        """A fresh store."""
        store = reopen()
        yield store
        store.close()

    @pytest.fixture
    def lab(self, store: Store) -> Driver:
        """A session with a segment."""
        session = store.create_session(new_session(), AT)
        store.open_segment(session.id, "f0", "start", "cpu", AT)
        return Driver(store, session.id)

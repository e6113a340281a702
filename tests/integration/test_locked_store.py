"""A database that another program holds is waited for; the run that ended meanwhile is not lost."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import RunRequest
from autoresearchd.loop.session import Backoff
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import sqlite_url
from tests.fakes.executors import Script
from tests.integration.bench import Bench, job


def test_a_run_that_ends_while_the_database_is_locked_is_written_down_when_it_is_free(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.close()
    bench.store = SqlStore.open(sqlite_url(bench.state / "state.db"), busy_timeout=0.05)
    with closing(sqlite3.connect(bench.state / "state.db", isolation_level=None, check_same_thread=False)) as other:
        refused = threading.Event()

        def locking(request: RunRequest) -> Script | str:
            if request.key == "t/1/0" and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")
            return job(request)

        class Freeing(Backoff):
            def seconds(self, failures: int) -> float:
                if other.in_transaction and failures >= 2:
                    refused.set()
                    other.execute("ROLLBACK")
                return 0.0

        bench.job = locking
        bench.loop(2, backoff=Freeing()).run()
    assert refused.is_set(), "the lock was met twice"
    first = bench.experiment(1)
    assert [run.label for run in first.runs] == [Label.NONE], "measured once, and not again"
    assert any("locked" in event.message for event in bench.events.events)
    bench.close()

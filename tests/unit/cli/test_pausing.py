"""``pause`` and ``unpause``: what is so already is said to be so, and nobody waits for a change that does not come."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autoresearchd.app import session_requests
from autoresearchd.domain.errors import SessionLocked
from autoresearchd.domain.labels import SessionState
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import START, Command


@pytest.fixture
def daemon(repository: Path) -> Iterator[SqlStore]:
    """The store of ``mar8``, whose daemon this process is."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.set_state(store.session("mar8").id, SessionState.RUNNING, START, pid=1)
        with SessionLock(layout.lock_path(repository, "mar8"), "mar8") as lock:
            lock.ready()
            yield store


def asked(store: SqlStore) -> list[str]:
    return [control.kind for control in store.take_controls(store.session("mar8").id)]


def test_a_second_pause_and_a_second_unpause_say_that_nothing_changes(daemon: SqlStore, command: Command) -> None:
    for name, first, second in (
        ("pause", "pauses after the running experiment\n", "pauses after the running experiment\n"),
        ("unpause", "goes on\n", "goes on\n"),
    ):
        for words in (first, second, second):
            answer = command(name)
            assert (answer.code, answer.out) == (0, "")
            assert words in answer.err
        assert set(asked(daemon)) == {name}, "and is asked for all the same"


@pytest.mark.parametrize("name", ["stop", "pause", "unpause"])
def test_nothing_is_asked_of_an_imported_session(repository: Path, command: Command, name: str) -> None:
    command("export", "--format", "tsv", "-o", "results.tsv")
    assert command("import", "results.tsv").code == 0
    answer = command(name, "--session", "imported-results")
    assert answer.code == 2
    assert "was imported" in answer.err and "resume" not in answer.err


def test_a_database_is_not_upgraded_under_a_daemon_of_the_version_that_wrote_it(
    repository: Path, daemon: SqlStore, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda process, number: sent.append(number))
    database = layout.database_path(repository)
    with closing(sqlite3.connect(database)) as db:
        db.execute("UPDATE alembic_version SET version_num = '0004'")
        db.commit()
    answer = command("resume", "mar8")
    assert answer.code == 75, answer.err
    assert f"`kill -TERM {os.getpid()}`" in answer.err
    with pytest.raises(SessionLocked):
        session_requests.note(repository, "mar8", "hello")
    answer = command("stop")
    assert (answer.code, sent) == (0, [signal.SIGTERM]), answer.err
    assert "it was sent a signal" in answer.err
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchone() == ("0004",)
    assert not list(database.parent.glob("*.backup-*"))

"""What people ask of a daemon: since when it is there, what it does, how it ended; and what they ask it to do."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.app import session_requests
from autoresearchd.domain.errors import SessionLocked
from autoresearchd.domain.labels import SessionState
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.failed_start import FailedStart, recall, remember
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import HOSTILE, START, Command, add_session


@pytest.mark.parametrize("stored", [SessionState.STOPPED, SessionState.RUNNING])
@pytest.mark.usefixtures("repository")
def test_a_daemon_that_has_written_nothing_yet_is_said_to_start_and_not_to_be_stopped(
    empty_repository: Path, command: Command, stored: SessionState
) -> None:
    add_session(empty_repository, "fresh", state=stored, pid=4_000_000)
    with SessionLock(layout.lock_path(empty_repository, "fresh"), "fresh", starts=True) as lock:
        out = command("status", "--session", "fresh").out
        found = json.loads(command("status", "--json", "--session", "fresh").out)
        lock.begun()
        later = json.loads(command("status", "--json", "--session", "fresh").out)
    session = found["session"]
    assert (session["state"], session["reason"], session["pid"]) == ("running", "starting", os.getpid())
    assert found["current"] is None
    head = out.splitlines()[0]
    assert "running since" in head and f"pid {os.getpid()}" in head
    assert "  now     starting" in out and "autoresearchd stop" in out
    assert later["session"]["state"] == stored
    assert later["session"].get("reason") != "starting"


LEARNER = "experiments wait: a learner, process 7, is at work in this repository"


@pytest.mark.usefixtures("repository")
def test_a_daemon_that_waits_for_a_learner_says_so_in_words_and_in_json(
    empty_repository: Path, command: Command
) -> None:
    add_session(empty_repository, "fresh", state=SessionState.RUNNING, pid=os.getpid(), reason=LEARNER)
    with SessionLock(layout.lock_path(empty_repository, "fresh"), "fresh"):
        out = command("status", "--session", "fresh").out
        found = json.loads(command("status", "--json", "--session", "fresh").out)
    (now,) = [line for line in out.splitlines() if line.startswith("  now")]
    assert now == f"  now     {LEARNER}"
    assert out.count("a learner") == 1
    assert (found["session"]["state"], found["session"]["reason"]) == ("running", LEARNER)
    assert found["current"] is None
    assert "reason" not in json.loads(command("status", "--json", "--session", "fresh").out)["session"], "it is dead"


def fail(root: Path, tag: str = "mar9", *, at: datetime = START + timedelta(days=1)) -> FailedStart:
    status = {"session": {"tag": tag, "task": "toy", "state": "crashed"}, "current": None}
    failed = FailedStart(tag, at, 3, f"the baseline gave no score: {HOSTILE}", "print it", status)
    remember(layout.failed_start_path(root), failed)
    return failed


def test_it_is_told_although_an_older_session_is_there(repository: Path, command: Command) -> None:
    failed = fail(repository)
    for arguments in (("status",), ("status", "--session", "mar9"), ("status", "--watch")):
        answer = command(*arguments)
        assert answer.code == 3 and "toy · mar9 · ended before its first result" in answer.out
        assert "the baseline gave no score" in answer.out and "print it" in answer.out
        assert "\x1b" not in answer.out
    answer = command("status", "--json")
    assert (answer.code, json.loads(answer.out)) == (3, failed.status)


def test_it_is_no_news_any_more_once_another_session_has_gone_on(repository: Path, command: Command) -> None:
    """Else the morning after a night of ``resume`` shows the failure of the evening before."""
    failed = fail(repository)
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.heartbeat(store.session("mar8").id, failed.ended_at + timedelta(hours=1), 60.0)
    assert command("status").code == 0
    assert command("status", "--session", "mar9").code == 3


@pytest.mark.parametrize("text", ["", '{"tag": "mar9"}', '{"tag": "t", "ended_at": 5}'])
def test_a_file_that_says_nothing_changes_nothing(repository: Path, command: Command, text: str) -> None:
    layout.failed_start_path(repository).write_text(text)
    assert recall(layout.failed_start_path(repository), []) is None
    assert command("status").code == 0


@pytest.fixture
def daemon(repository: Path) -> Iterator[SqlStore]:
    """The store of ``mar8``, whose daemon this process is."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.set_state(store.session("mar8").id, SessionState.RUNNING, START, pid=1)
        with SessionLock(layout.lock_path(repository, "mar8"), "mar8") as lock:
            lock.ready()
            yield store


def test_a_second_pause_and_a_second_unpause_say_that_nothing_changes(daemon: SqlStore, command: Command) -> None:
    for name, first, second in (
        ("pause", "pauses after the running experiment\n", "already: it was asked to before"),
        ("unpause", "goes on\n", "is not paused, so nothing changes"),
    ):
        for words in (first, second, second):
            answer = command(name)
            assert (answer.code, answer.out) == (0, "")
            assert words in answer.err
        asked = {control.kind for control in daemon.take_controls(daemon.session("mar8").id)}
        assert asked == {name}, "and is asked for all the same"


def test_stop_is_heard_where_the_clock_went_back_since_an_earlier_daemon_was_stopped(
    daemon: SqlStore, command: Command
) -> None:
    session = daemon.session("mar8")
    daemon.add_control(session.id, "stop", datetime.now(UTC) + timedelta(hours=1))
    session_requests.forget_requests(daemon, session)
    for words in ("stops after the running experiment", "was asked to stop before"):
        assert words in command("stop").err
    assert [control.kind for control in daemon.take_controls(session.id)] == ["stop"]


@pytest.mark.parametrize("name", ["stop", "pause", "unpause"])
@pytest.mark.usefixtures("repository")
def test_without_a_daemon_it_is_said_that_nothing_runs_and_how_it_goes_on(command: Command, name: str) -> None:
    answer = command(name)
    assert answer.code == 0, "no failure: a script that stops or holds whatever there is goes on"
    assert "nothing is running: session mar8" in answer.err and "resume mar8" in answer.err


@pytest.mark.parametrize("name", ["stop", "pause", "unpause", "note"])
def test_nothing_is_asked_of_an_imported_session(repository: Path, command: Command, name: str) -> None:
    command("export", "--format", "tsv", "-o", "results.tsv")
    assert command("import", "results.tsv").code == 0
    answer = command(name, *["try it wider"] * (name == "note"), "--session", "imported-results")
    assert answer.code == 2
    assert "was imported: nothing runs there" in answer.err and "resume" not in answer.err


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

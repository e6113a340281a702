"""What people ask of a daemon: what it does before the first run, since when it is there, and how a session ended."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.cli.commands.status_command import DaemonFacts, Meanwhile, meanwhile_in, status_lines
from autoresearchd.cli.terminal_text import Paint
from autoresearchd.domain.labels import SessionState
from autoresearchd.loop.upkeep.session_lock import SessionLock, announce
from autoresearchd.store.failed_start import FailedStart, recall, remember
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import HOSTILE, START, Command, add_session

BEGUN = datetime(2026, 3, 8, 3, 17, tzinfo=UTC)
NOW = BEGUN + timedelta(hours=1, minutes=10)
STARTED = "2026-03-08 20:00:00Z mar8 session_started session mar8 on autoresearch/mar8\n"
SETUP = "2026-03-08 20:00:01Z mar8 setup set-up: python prepare.py\n"


def log_of(folder: Path, text: str) -> Path:
    log = folder / "daemon.log"
    log.write_text(text)
    return log


def head(state: str, facts: DaemonFacts) -> str:
    session = {"tag": "mar8", "task": "t", "state": state, "pid": 42, "started_at": BEGUN.isoformat()}
    return status_lines({"session": session}, [], Paint(enabled=False), facts=facts, now=NOW)[0]


def local(at: datetime) -> str:
    """As the head has a time of the day of ``NOW``."""
    here = at.astimezone()
    return here.strftime("%H:%M" if here.date() == NOW.astimezone().date() else "%d %b %H:%M")


@pytest.mark.usefixtures("repository")
def test_a_minute_of_set_up_is_seen_in_the_status(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, "fresh", state=SessionState.RUNNING)
    log = layout.daemon_log(empty_repository)
    log.parent.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC) - timedelta(seconds=34)
    log.write_text(f"{began:%Y-%m-%d %H:%M:%S}Z fresh setup set-up: python prepare.py\n")
    with SessionLock(layout.lock_path(empty_repository, "fresh"), "fresh"):
        out = command("status", "--session", "fresh").out
        other = command("status", "--session", "mar8").out
    now = next(line for line in out.splitlines() if line.startswith("  now"))
    assert now.startswith("  now     set-up: python prepare.py (3")
    assert "set-up" not in other
    assert "set-up" not in command("status", "--session", "fresh").out, "nobody is at work any more"


@pytest.mark.usefixtures("repository")
def test_a_daemon_that_was_started_a_moment_ago_is_not_said_to_be_stopped_and_asks_for_patience(
    empty_repository: Path, command: Command
) -> None:
    add_session(empty_repository, "fresh")
    announce(layout.lock_path(empty_repository, "fresh"), os.getpid())
    found = json.loads(command("status", "--json", "--session", "fresh").out)["session"]
    assert (found["state"], found["reason"], found["pid"]) == ("running", "starting", os.getpid())
    answer = command("stop", "--session", "fresh")
    assert answer.code == 1
    assert "only starting" in answer.err
    assert "ask again" in answer.err


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
    assert "running since" in head
    assert f"pid {os.getpid()}" in head
    assert "starting" in head
    assert "autoresearchd stop" in out
    assert later["session"]["state"] == stored
    assert later["session"].get("reason") != "starting"


@pytest.mark.parametrize(
    ("after", "still"),
    [
        ("", True),
        ("2026-03-08 20:00:02Z mar8 warning no GPU\n", True),
        ("2026-03-08 20:00:02Z other opened #0 on 0123456\n", True),
        ("2026-03-08 20:00:02Z mar8 fault OSError: no\nTraceback (most recent call last):\n", True),
        ("2026-03-08 20:01:02Z mar8 opened #0 on 0123456\n", False),
        ("2026-03-08 20:01:02Z mar8 backing_off waiting 5s: no network\n", False),
        ("2026-03-08 20:01:02Z mar8 stopping\n", False),
    ],
)
def test_the_set_up_goes_on_until_something_else_of_the_session_is_logged(
    tmp_path: Path, after: str, still: bool
) -> None:
    found = meanwhile_in(log_of(tmp_path, STARTED + SETUP + after), "mar8")
    expected = Meanwhile("set-up: python prepare.py", datetime(2026, 3, 8, 20, 0, 1, tzinfo=UTC))
    assert found == (expected if still else None)


LEARNER = "experiments wait: a learner, process 7, is at work in this repository"


@pytest.mark.usefixtures("repository")
def test_a_daemon_that_waits_for_a_learner_says_so_in_words_and_in_json_and_not_that_it_is_set_up(
    empty_repository: Path, command: Command
) -> None:
    add_session(empty_repository, "fresh", state=SessionState.RUNNING, pid=os.getpid(), reason=LEARNER)
    log = layout.daemon_log(empty_repository)
    log.parent.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    log.write_text(
        f"{began:%Y-%m-%d %H:%M:%S}Z fresh setup set-up: python prepare.py\n"
        f"{began:%Y-%m-%d %H:%M:%S}Z fresh waiting {LEARNER}\n"
        f"{began:%Y-%m-%d %H:%M:%S}Z fresh housekeeping packed git in 1s\n"
    )
    with SessionLock(layout.lock_path(empty_repository, "fresh"), "fresh"):
        out = command("status", "--session", "fresh").out
        found = json.loads(command("status", "--json", "--session", "fresh").out)
    (now,) = [line for line in out.splitlines() if line.startswith("  now")]
    assert now.startswith(f"  now     {LEARNER} (")
    assert "set-up" not in out
    assert out.count("a learner") == 1
    assert (found["session"]["state"], found["session"]["reason"]) == ("running", LEARNER)
    assert found["current"] is None
    assert "reason" not in json.loads(command("status", "--json", "--session", "fresh").out)["session"], "it is dead"


def test_a_hostile_set_up_command_cannot_steer_the_terminal(tmp_path: Path) -> None:
    found = meanwhile_in(log_of(tmp_path, SETUP.replace("python", "\x1b]0;owned\x07python")), "mar8")
    assert found is not None
    assert found.words == "set-up: python prepare.py"


def test_after_a_resume_the_time_that_it_was_down_is_not_counted_as_running() -> None:
    resumed = BEGUN + timedelta(hours=1, minutes=6)
    words = head("running", DaemonFacts(began=resumed))
    assert f"running since {local(resumed)} (4m 00s, begun {local(BEGUN)}, pid 42)" in words


def test_a_session_that_was_never_stopped_runs_since_it_began() -> None:
    words = head("running", DaemonFacts(began=BEGUN + timedelta(seconds=2)))
    assert f"running since {local(BEGUN)} (1h 10m, pid 42)" in words
    assert "begun" not in words


def test_when_a_session_ended_is_told_from_when_it_began() -> None:
    ended = BEGUN + timedelta(hours=1, minutes=4)
    assert f"stopped {local(ended)} · begun {local(BEGUN)}" in head("stopped", DaemonFacts(last=ended))
    assert f"stopped · begun {local(BEGUN)}" in head("stopped", DaemonFacts(last=BEGUN)), "one that was imported"


@pytest.mark.parametrize(("rate", "known"), [(None, False), (0.0, True)])
def test_audits_among_which_nothing_improved_are_said_to_show_nothing_yet(rate: float | None, known: bool) -> None:
    abort = {"aborted": 3, "audited": 2, "false_abort_rate": rate, "false_abort_limit": 0.8, "throughput_gain": 1.5}
    lines = status_lines({"session": {}, "abort": abort}, [], Paint(enabled=False), now=NOW)
    (line,) = [line for line in lines if "aborted early" in line]
    assert ("no improvement among the audited yet" in line) is not known
    assert ("of improvements lost" in line) is known
    assert line.endswith("throughput ×1.50")


def fail(root: Path, tag: str = "mar9", *, at: datetime = START + timedelta(days=1)) -> FailedStart:
    status = {"session": {"tag": tag, "task": "toy", "state": "crashed"}, "current": None}
    failed = FailedStart(tag, at, 3, f"the baseline gave no score: {HOSTILE}", "print it", status)
    remember(layout.failed_start_path(root), failed)
    return failed


def test_it_is_told_although_an_older_session_is_there(repository: Path, command: Command) -> None:
    failed = fail(repository)
    for arguments in (("status",), ("status", "--session", "mar9"), ("status", "--watch")):
        answer = command(*arguments)
        assert answer.code == 3
        assert "toy · mar9 · ended before its first result" in answer.out
        assert "the baseline gave no score" in answer.out and "print it" in answer.out
        assert "\x1b" not in answer.out
    answer = command("status", "--json")
    assert (answer.code, json.loads(answer.out)) == (3, failed.status)


def test_what_began_after_it_is_what_is_meant(repository: Path, command: Command) -> None:
    fail(repository, at=START - timedelta(days=1))
    assert command("status").code == 0
    assert command("status", "--session", "mar9").code == 3


def test_a_session_that_was_begun_anew_under_its_tag_is_not_called_ended(repository: Path, command: Command) -> None:
    fail(repository, "mar8")
    assert command("status").code == 0
    assert command("status", "--session", "mar8").code == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tag": "mar9"}', "\x00", '{"tag": "t", "ended_at": 5}'])
def test_a_file_that_says_nothing_changes_nothing(repository: Path, command: Command, text: str) -> None:
    layout.failed_start_path(repository).write_text(text)
    assert recall(layout.failed_start_path(repository), []) is None
    assert command("status").code == 0

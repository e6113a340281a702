"""A daemon on a disk that fails, as its user sees it: what ``status`` says, how it is stopped, and how it goes on."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.cli.repository_here import find_place
from autoresearchd.domain.labels import SessionState
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.workspace import layout
from tests.e2e.conftest import TASK, Daemon, Project, make_environment, without_verdicts
from tests.integration.bench import Bench
from tests.integration.disks import failing_disk, memory_disk
from tests.timing import wait_until

SLOW = """\
import time

SCALE = 1.0
time.sleep(0.3)
print(f"score: {(SCALE - 2.0) ** 2}")
"""


FULL = re.compile(r"disk is full|No space left|couldn't write|disk I/O error|disk_full")


def begin_project(root: Path, home: Path) -> Project:
    return Project(root, make_environment(home)).begin({"train.py": SLOW, "task.yaml": TASK})


def session(project: Project) -> dict[str, Any]:
    return dict(project.status()["session"])


def begin(project: Project, process: Daemon, count: int) -> None:
    """Wait until a daemon has begun to run so many experiments."""

    def begun() -> bool:
        assert process.poll() is None, project.said.read_text()
        return len([*project.root.glob(".autoresearchd/runs/*/[0-9]*")]) >= count

    wait_until(begun)


def test_status_says_what_a_daemon_waits_for_on_a_full_disk_and_it_goes_on_with_the_space(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk") as disk:
        project = begin_project(disk.at / "project", tmp_path)
        with project.daemon("start", "--policy", "random", "--foreground") as process:
            begin(project, process, 3)
            disk.fill()
            shown = wait_until(lambda: (found := session(project))["state"] == "backing_off" and found)
            assert FULL.search(shown["reason"]), shown["reason"]
            note = project.cli("note", "try a smaller scale")  # which may still fit into the journal's last page
            assert note.returncode == 0 or (note.returncode == 1 and "disk" in note.stderr)
            assert "defect" not in note.stderr
            before = project.experiments()
            disk.empty()
            wait_until(lambda: (now := session(project))["state"] == "running" and "reason" not in now)
            begin(project, process, len(before) + 1)
            project.done("stop")
            assert process.wait() == 0
        after = project.experiments()
        assert [e["experiment"] for e in after] == list(range(len(after)))
        assert {e["status"] for e in after} <= {"keep", "discard"}, "none was blamed"
        decided = [e for e in before if e["status"]]
        for now, was in zip(without_verdicts(after), without_verdicts(decided), strict=False):
            assert now == was, "and what was known stays"


def test_a_disk_that_turned_read_only_is_named_and_a_restart_loses_nothing(tmp_path: Path) -> None:
    with failing_disk(tmp_path) as disk:
        project = begin_project(disk.at / "project", tmp_path)
        with project.daemon("start", "--policy", "random", "--foreground") as process:
            begin(project, process, 2)
            disk.fail()
            before = project.experiments()
            assert "#1" in project.cli("show", "1").stdout, "what is known can still be read"
            note = project.cli("note", "try a smaller scale")
            assert (note.returncode, "writable" in note.stderr) == (1, True)
            assert "sent a signal" in project.cli("stop").stderr
            assert process.wait() == 128 + signal.SIGTERM
        refused = project.cli("resume", "--foreground")
        assert (refused.returncode, "Read-only file system" in refused.stderr) == (1, True)
        assert "defect" not in refused.stderr
        disk.mend()
        count = max(3, before[-1]["experiment"])  # a busy machine may see the disk fail later
        project.done("resume", "--foreground", "--max-experiments", str(count))
        after = project.experiments()
        assert [e["experiment"] for e in after] == list(range(count + 1))
        for old, new in zip(before, after, strict=False):
            assert old["parent"] == new["parent"]
            assert old["description"] in ("", new["description"]), "it may not have been proposed yet"
            assert old["status"] in (None, new["status"])


def test_a_daemon_that_has_written_nothing_for_long_is_not_said_to_be_at_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    now = datetime.now(UTC)
    with SessionLock(layout.lock_path(bench.root, "t"), "t") as lock:
        lock.ready()
        bench.store.set_state(bench.session.id, SessionState.RUNNING, now, pid=os.getpid())
        assert find_place(bench.root).status("t")["session"]["state"] == "running"
        bench.store.heartbeat(bench.session.id, now - timedelta(minutes=3), 1.0)
        shown = find_place(bench.root).status("t")["session"]
        assert shown["state"] == "backing_off"
        assert "has not written its database for 3m" in shown["reason"]
        lock.waits("the disk is full")
        assert find_place(bench.root).status("t")["session"]["reason"] == "the disk is full"
    assert find_place(bench.root).status("t")["session"]["state"] == "crashed"
    bench.close()


# ---------------------------------------------------------------------- a database that another program holds
@pytest.fixture
def decided(tmp_path: Path) -> Project:
    """A session that has ended, with a result."""
    project = begin_project(tmp_path / "project", tmp_path)
    project.session()
    return project


def held(project: Project, *pragmas: str) -> sqlite3.Connection:
    """Hold the database's write lock as another program would."""
    other = sqlite3.connect(project.root / ".git/autoresearchd/state.db", isolation_level=None)
    for pragma in pragmas:
        other.execute(f"PRAGMA {pragma}")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE session SET reason = reason")
    return other


def test_what_only_reads_answers_while_another_program_writes(decided: Project) -> None:
    with closing(held(decided)):
        for words in (["status"], ["experiments"], ["show", "1"], ["stop"]):
            decided.done(*words)


@pytest.mark.parametrize("words", ["status", pytest.param("resume", marks=pytest.mark.nightly)])
def test_a_database_that_cannot_even_be_read_is_an_error_that_says_why(words: str, decided: Project) -> None:
    with closing(held(decided, "locking_mode=EXCLUSIVE")):
        done = decided.cli(words)
        assert done.returncode == 1
        assert "locked" in done.stderr
        assert "another program" in done.stderr
        assert "defect" not in done.stderr


def test_a_daemon_is_stopped_whose_database_another_program_holds_and_a_note_says_why_it_is_not_left(
    tmp_path: Path,
) -> None:
    project = begin_project(tmp_path / "project", tmp_path)
    with project.daemon("start", "--policy", "random", "--foreground") as process:
        begin(project, process, 2)
        with closing(held(project)), ThreadPoolExecutor() as beside:  # either waits ten seconds for the other program
            leaving = beside.submit(project.cli, "note", "try a smaller scale")
            assert "sent a signal" in project.done("stop").stderr
            note = leaving.result()
        assert note.returncode == 1
        assert "database is locked" in note.stderr
        assert "another program holds the database" in note.stderr
        assert process.wait() == 128 + signal.SIGTERM
    assert session(project)["state"] == "stopped"

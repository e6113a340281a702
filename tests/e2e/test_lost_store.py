"""The database is moved or deleted while a daemon writes it: no result is lost, and everybody says so."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.timing import wait_until

START = ("start", "--foreground", "--tag", "t", "--policy", "random")


def start_waiting(project: Project, tag: str) -> subprocess.Popen[str]:
    """A daemon that has measured its baseline and waits for its policy, longer than any command takes."""
    daemon = project.start_process("start", "--foreground", "--tag", tag, "--policy", "command:sleep 600")
    wait_until(lambda: project.latest_run(tag) >= 0)
    wait_until(lambda: proposes(project, tag))
    return daemon


def proposes(project: Project, tag: str) -> bool:
    """Whether the first experiment after the baseline waits for its proposal."""
    current = project.json("status", "--json", "--session", tag)["current"] or {}
    return (current.get("experiment"), current.get("phase")) == (1, "proposing")


def lose(project: Project, how: str) -> Path:
    """Take the database away from under its daemon."""
    database = project.root / ".git/autoresearchd/state.db"
    for suffix in ("", "-wal", "-shm"):
        file = database.with_name(database.name + suffix)
        if how == "deleted":
            file.unlink(missing_ok=True)
        elif file.exists():
            file.rename(project.root.parent / file.name)
    return database


@pytest.mark.parametrize("how", ["deleted", pytest.param("moved", marks=pytest.mark.nightly)])
def test_the_daemon_backs_up_what_it_has_and_ends_and_a_repair_brings_it_all_back(project: Project, how: str) -> None:
    daemon = project.start_process(*START)
    try:
        wait_until(lambda: project.latest_run() >= 3)
        before = project.json("experiments", "--json")
        lose(project, how)
        said, _ = daemon.communicate(timeout=200)
    finally:
        daemon.kill()
    assert daemon.returncode == 1, said
    assert "was moved, deleted or replaced while the session wrote to it" in said
    assert "doctor --repair" in said
    database = project.root / ".git/autoresearchd/state.db"
    for prepare in (lambda: database.unlink(missing_ok=True), database.touch):  # whoever opens it may leave it empty
        prepare()
        for command in ("status", "experiments", "resume", "stop", "doctor"):
            told = project.cli(command)
            assert "is gone, but there are backups of it" in told.stdout + told.stderr, command
            assert "could not measure its baseline" not in told.stderr
    last = project.latest_run()
    assert project.cli("doctor", "--repair").returncode == 0
    found = project.json("experiments", "--json")
    decided = [e for e in before if e["overhead_ms"] is not None]  # what is written last, a moment after the decision
    assert len(decided) >= 2
    assert found[: len(decided)] == decided
    assert len(found) == last + 1, "what was measured after it was lost is there as well"
    assert all(e["status"] for e in found)
    more = project.cli("resume", "t", "--foreground", "--max-experiments", str(last + 2))
    assert more.returncode == 0, more.stderr
    assert len(project.json("experiments", "--json")) == last + 3


def test_commands_say_that_a_daemon_is_still_at_work_and_stop_ends_it(project: Project) -> None:
    daemon = start_waiting(project, "t")
    try:
        lose(project, "deleted")
        for command in ("status", "pause", "experiments", "show 0", "start --tag u", "resume t"):
            done = project.cli(*command.split())
            assert done.returncode == 1, (command, done.stderr)
            assert f"session t (process {daemon.pid})" in done.stderr
            assert "stop --now" in done.stderr
        assert not (project.root / ".git/autoresearchd/state.db").exists(), "no command makes an empty one in its place"
        done = project.cli("stop", "--now")
        assert (done.returncode, "sent a signal" in done.stderr) == (0, True), done.stderr
        assert daemon.wait(200) in (1, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    finally:
        daemon.kill()
        daemon.communicate()
    nobody = project.cli("status")
    assert nobody.returncode != 0
    assert "process" not in nobody.stderr

"""The database is moved or deleted while a daemon writes it: no result is lost, and everybody says so."""

from __future__ import annotations

import shutil
import signal

from tests.e2e.conftest import Project, without_verdicts
from tests.timing import wait_until


def lose(project: Project) -> None:
    """Delete the database under its daemon."""
    for suffix in ("", "-wal", "-shm"):
        (project.root / f".git/autoresearchd/state.db{suffix}").unlink(missing_ok=True)


def test_the_daemon_backs_up_what_it_has_and_ends_and_a_repair_brings_it_all_back(project: Project) -> None:
    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "random") as daemon:
        wait_until(lambda: project.latest_run() >= 3)
        before = project.experiments()
        lose(project)
        assert daemon.wait() == 1
    said = project.said.read_text()
    assert "was moved, deleted or replaced while the session wrote to it" in said and "doctor --repair" in said
    database = project.root / ".git/autoresearchd/state.db"
    for prepare in (lambda: database.unlink(missing_ok=True), database.touch):  # whoever opens it may leave it empty
        prepare()
        for command in ("status", "experiments", "resume", "stop", "doctor"):
            told = project.cli(command)
            assert "is gone, but there are backups of it" in told.stdout + told.stderr, told
            assert "could not measure its baseline" not in told.stderr
    last = project.latest_run()
    project.done("doctor", "--repair")
    found = project.experiments()
    decided = [e for e in before if e["overhead_ms"] is not None]  # what is written last, a moment after the decision
    assert len(decided) >= 2
    for back, was in zip(without_verdicts(found), without_verdicts(decided), strict=False):
        assert back == was
    assert len(found) == last + 1, "what was measured after it was lost is there as well"
    assert all(e["status"] for e in found)
    project.done("resume", "t", "--foreground", "--max-experiments", str(last + 2))
    assert len(project.experiments()) == last + 3


def test_commands_say_that_a_daemon_is_still_at_work_and_stop_ends_it(project: Project) -> None:
    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "command:sleep 600") as daemon:
        wait_until(lambda: project.proposing("t"))
        lose(project)
        for command in ("status", "pause", "experiments", "show 0", "start --tag u", "resume t"):
            done = project.cli(*command.split())
            assert done.returncode == 1, (command, done.stderr)
            assert f"session t (process {daemon.pid})" in done.stderr
            assert "stop --session t" in done.stderr and "--now" in done.stderr
        assert not (project.root / ".git/autoresearchd/state.db").exists(), "no command makes an empty one in its place"
        assert "sent a signal" in project.done("stop", "--now").stderr
        assert daemon.wait() in (1, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    nobody = project.cli("status")
    assert nobody.returncode != 0
    assert "process" not in nobody.stderr


def test_limits_that_only_the_log_of_the_daemon_still_knows_are_brought_back(project: Project) -> None:
    project.session("random", 1, "--max-cost", "2.5")
    lose(project)
    shutil.rmtree(project.root / ".git/autoresearchd/backups", ignore_errors=True)
    assert "ends after experiments=1 usd=2.5" in project.cli("doctor", "--repair").stdout

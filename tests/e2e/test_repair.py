"""A real session whose database is destroyed, repaired by command, and gone on with."""

from __future__ import annotations

import shutil

import pytest

from tests.e2e.conftest import Project, wait_until


def test_a_destroyed_database_costs_no_result_and_resume_goes_on(project: Project) -> None:
    start = ("start", "--foreground", "--tag", "t", "--policy", "random", "--max-experiments", "5")
    assert project.cli(*start).returncode == 0
    before = project.json("experiments", "--json")
    state = project.root / ".git/autoresearchd"
    assert list((state / "backups").glob("*.db")), "a daemon that ends leaves a backup"
    shutil.rmtree(state / "backups")
    (state / "state.db").write_bytes(b"nonsense" * 10_000)

    refused = project.cli("resume", "t", "--foreground")
    assert refused.returncode == 1
    assert "doctor --repair" in refused.stderr
    repaired = project.cli("doctor", "--repair")
    assert repaired.returncode == 0, repaired.stderr

    found = project.json("experiments", "--json")
    assert [e["experiment"] for e in found] == [e["experiment"] for e in before]
    # Nothing but git and the logs of runs was left: kept values have six digits, others are those of the first run.
    assert [e["commit"] for e in found] == [e["commit"] for e in before]
    for old, new in zip(before, found, strict=True):
        assert (new["status"] == "keep") == (old["status"] == "keep")
        assert (new["metric"] is None) == (old["metric"] is None)
        if old["status"] == "keep":
            assert new["metric"] == pytest.approx(old["metric"], rel=1e-5)
    # The limit of the session is known from its log, and holds.
    daemon = project.start_process("resume", "t", "--max-experiments", "12", "--foreground")
    try:
        wait_until(lambda: project.latest_run() >= len(before) + 2, 60)
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)
    numbers = [e["experiment"] for e in project.json("experiments", "--json")]
    assert numbers == list(range(len(numbers)))

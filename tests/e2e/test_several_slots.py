"""Several slots through the command line: real runs at once, each on cores of its own, and a daemon that is killed."""

from __future__ import annotations

import os

import pytest

from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.e2e.test_session import SLOW, processes_below
from tests.timing import wait_until

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two slots need two cores")
COUNTING = PROGRAM + 'print(f"METRIC core={min(os.sched_getaffinity(0))}")\n'
WITH_CORES = TASK.replace("stdout}", "stdout, metrics: [score, core]}")


def require_whole(project: Project, count: int) -> list[dict[str, object]]:
    """Nothing lost or doubled, and the branch has what was confirmed."""
    found: list[dict[str, object]] = project.json("experiments", "--json")
    assert [e["experiment"] for e in found] == list(range(count + 1)) and all(e["status"] for e in found)
    proven = [e["commit"] for e in found[1:] if e["confirmed"]]
    assert project.git("rev-list", "--reverse", "main..autoresearch/t").split() == proven
    return found


def test_two_slots_run_on_cores_of_their_own_and_decide_in_order(project: Project) -> None:
    project.put({"train.py": COUNTING, "task.yaml": WITH_CORES})
    project.session("search", 10, "--slots", "2")
    found = require_whole(project, 10)
    cores = {e["metrics"]["core"] for e in found[1:] if e["metrics"]}  # type: ignore[index]
    assert len(cores) == 2, "each slot has its own"
    ends = [e["finished_at"] for e in found]
    assert ends == sorted(ends)  # type: ignore[type-var]
    assert len(found[0]["runs"]) == 3, "what ran beside the baseline counts for nothing"  # type: ignore[arg-type]


def test_what_two_slots_ran_when_the_daemon_was_killed_ends_and_is_run_again(project: Project) -> None:
    project.put({"train.py": SLOW.replace("sleep(600)", "sleep(0.3)")})
    runs = project.root / ".autoresearchd/runs/t"
    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "random", "--slots", "2"):
        wait_until(lambda: (runs / "2/0").exists() and (runs / "3/0").exists())
    wait_until(lambda: not processes_below(str(project.root)))
    project.done("resume", "--foreground", "--max-experiments", "8")
    require_whole(project, 8)


def test_more_slots_than_cores_are_refused(project: Project) -> None:
    refused = project.cli("start", "--slots", "250", "--policy", "random")
    assert refused.returncode != 0 and "250 slots" in refused.stderr and "--slots" in refused.stderr.splitlines()[-1]

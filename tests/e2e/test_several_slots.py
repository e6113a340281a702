"""Several slots through the command line: real runs at once, each on cores of its own, and a daemon that is killed."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

import pytest

from autoresearchd.store.reader import Reader
from autoresearchd.workspace.layout import database_path
from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.e2e.test_session import SLOW, processes_below
from tests.timing import wait_until

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two slots need two cores")
COUNTING = PROGRAM + 'print(f"METRIC core={min(os.sched_getaffinity(0))}")\n'
WITH_CORES = TASK.replace("stdout}", "stdout, metrics: [score, core]}")


def require_whole(project: Project, count: int) -> list[dict[str, Any]]:
    """Nothing lost or doubled; tip and branch are where the same decisions, one after the other, lead to."""
    found: list[dict[str, Any]] = project.json("experiments", "--json")
    assert [e["experiment"] for e in found] == list(range(count + 1)) and all(e["status"] for e in found)
    with closing(Reader(database_path(project.root))) as reader:
        tests = [test for test in reader.confirmations("t") if test["moved"]]
    tip = proven = found[0]["commit"]
    chain, tips = list[str](), {tip}
    for e in found[1:]:
        for test in [test for test in tests if test["after"] < e["experiment"]]:
            tests.remove(test)
            tip, proven, chain = _settled(test, found, tip, proven, chain)
        if e["status"] == "keep":
            tip = e["commit"]
            # Made on another experiment of the tree, a keep is put together with that on the tip.
            parent = project.git("rev-parse", f"{tip}^")
            assert parent in tips, f"#{e['experiment']} was kept on something that never was the tip"
            tips.add(tip)
            chain.append(tip)
    for test in tests:
        tip, proven, chain = _settled(test, found, tip, proven, chain)
    assert project.git("rev-parse", "autoresearch/t", "refs/autoresearch/t/tip").split() == [proven, tip]
    proven_ones = [e["commit"] for e in found[1:] if e["confirmed"]]
    assert project.git("rev-list", "--reverse", "main..autoresearch/t").split() == proven_ones
    return found


def require_replay(project: Project, found: list[dict[str, object]]) -> None:
    """The branch is what the edits give that were confirmed, made one after the other."""
    replay = str(project.root.with_name("replay"))
    project.git("worktree", "add", "--detach", replay, "main")
    for e in found[1:]:
        if e["confirmed"]:
            project.git("-C", replay, "cherry-pick", "--no-commit", f"refs/autoresearch/t/{e['experiment']}")
    assert any(e["confirmed"] for e in found[1:])
    assert project.git("-C", replay, "write-tree") == project.git("rev-parse", "autoresearch/t^{tree}")


def _settled(
    test: dict[str, Any], found: list[dict[str, Any]], tip: str, proven: str, chain: list[str]
) -> tuple[str, str, list[str]]:
    """Tip, confirmed commit and the keeps between them after a confirmation that has moved the branch or the tip."""
    if test["outcome"] == "fell":
        return proven, proven, []
    now = found[test["experiment"]]["commit"]
    assert now in chain
    return tip, now, chain[chain.index(now) + 1 :]


def test_two_slots_run_on_cores_of_their_own_and_decide_in_order(project: Project) -> None:
    project.put({"train.py": COUNTING, "task.yaml": WITH_CORES})
    project.session("search", 10, "--slots", "2")
    found = require_whole(project, 10)
    cores = {e["metrics"]["core"] for e in found[1:] if e["metrics"]}
    assert len(cores) == 2, "each slot has its own"
    ends = [e["finished_at"] for e in found]
    assert ends == sorted(ends)
    assert len(found[0]["runs"]) == 3, "what ran beside the baseline counts for nothing"


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

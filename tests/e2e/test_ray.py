"""A session over a Ray cluster of two nodes, one of which is ended while jobs run."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import PROGRAM, Project
from tests.e2e.test_several_slots import require_replay, require_whole
from tests.integration.ray_cluster import make_cluster, needs_ray, two_cores
from tests.timing import wait_until

SLOW = PROGRAM.replace("import os", "import os\nimport time") + "print('begun', flush=True)\ntime.sleep(3)\n"


@needs_ray
@two_cores
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [8, pytest.param(30, marks=pytest.mark.nightly)])
def test_a_session_loses_a_node_and_no_experiment(project: Project, count: int) -> None:
    """Else a cluster whose machines may go is of no use for a night: results are lost, or counted twice."""
    project.put({"train.py": SLOW})
    runs = project.root / ".autoresearchd/runs/t"
    arguments = ("start", "--foreground", "--tag", "t", "--policy", "search", "--seed", "7")

    def in_the_middle() -> bool:
        """Whether a job runs on each node, and there are experiments behind."""
        places = [path.parent for path in runs.glob("*/*/remote.json")]
        logs = [p / "training.log" for p in places if not (p / "result.json").exists()]
        return project.latest_run() >= 2 and sum(log.exists() and "begun" in log.read_text() for log in logs) == 2

    def lost() -> bool:
        return "host_lost" in (project.root / ".autoresearchd/daemon.log").read_text()

    with make_cluster(nodes=2) as cluster:
        spec = ("--executor", f"ray:{cluster.spec}", "--max-experiments", str(count))
        with project.daemon(*arguments, *spec) as daemon:
            for number in (1, 2, 3):  # a job may end before its node does
                wait_until(lambda: daemon.poll() is not None or in_the_middle())
                cluster.end(number)
                then = project.latest_run()
                wait_until(lambda then=then: daemon.poll() is not None or lost() or project.latest_run() > then + 1)
                if lost():
                    break
                cluster.add()
            assert daemon.wait(600) == 0, project.said.read_text()
        tested = json.loads(project.done("doctor", "--json", env={"RAY_ADDRESS": cluster.head}).stdout)
    [node] = [finding for finding in tested if finding["name"].endswith("(ray-1)")]
    assert node["status"] in ("ok", "warning") and "Python 3." in node["value"]
    found = require_whole(project, count)
    labels = [run["label"] for e in found for run in e["runs"]]  # type: ignore[attr-defined]
    assert set(labels) <= {"", "host_lost"}
    assert lost()
    require_replay(project, found)

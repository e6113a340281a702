"""The ray executor against real clusters: nodes that die or are missing, daemons that die, and what is refused."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability
from autoresearchd.domain.ports import Executor
from autoresearchd.executor.ray.executor import RayExecutor
from autoresearchd.executor.ray.wanted import Wanted
from tests.contract.executor_contract import HANG, SUCCEED, make_request, make_task
from tests.integration.local_jobs import ESCAPE, carriers, marked, text_of, write_job
from tests.integration.ray_cluster import BUSY, Cluster, make_cluster, needs_ray, two_cores
from tests.integration.remote_runs import RemoteContract, begun, ended_well, outcome
from tests.timing import wait_until

pytestmark = [needs_ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node that nothing happens to; also for Ray Client, where that is installed."""
    with make_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="class")
def placed(cluster: Cluster) -> Iterator[RayExecutor]:
    with contextlib.closing(cluster.executor()) as executor:
        yield executor


class TestContract(RemoteContract):
    """What every executor promises, over a real cluster."""

    @pytest.fixture
    def executor(self, placed: RayExecutor) -> Executor:
        return placed


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_same_through_ray_client(opened: Any, tmp_path: Path) -> None:
    """Else a laptop that is no node of the cluster cannot use it."""
    pytest.importorskip("grpc", reason="not installed: pip install 'ray[client]'")
    from tests.integration.ssh_hosts import free_port

    port = free_port()
    with make_cluster(ray_client_server_port=port) as cluster:
        spec = cluster.spec.replace(cluster.head, f"ray://127.0.0.1:{port}")
        executor = opened(RayExecutor(Wanted.read(spec), times=BUSY))
        request = make_request(tmp_path, make_task("cat who; echo model > $AUTORESEARCHD_OUTPUT_DIR/model"))
        (request.workspace / "who").write_text("edited\n")
        assert ended_well(executor, request).stages[-1].outcome == "ok"
        assert text_of(request.run_dir / "training.log") == "edited\n"
        assert text_of(request.run_dir / "output" / "model") == "model\n"


# -- nodes -------------------------------------------------------------------------------------------------------------


@two_cores
@pytest.mark.nightly  # by day a session loses a node: tests/e2e/test_ray.py
def test_a_node_that_dies_loses_its_run_alone_and_the_slot_waits_for_another(
    opened: Any, mark: str, tmp_path: Path
) -> None:
    """Else one machine that goes away stops the night's research, or its run is counted."""
    with make_cluster(nodes=2) as cluster:
        executor = opened(cluster.executor())
        assert executor.slots == 2
        executor.describe()
        task = marked(mark, HANG, training=900.0, wall=900.0)
        handles = [begun(executor, replace(make_request(tmp_path / str(n), task), slot=n)) for n in (0, 1)]
        assert not any(map(executor.ready, (0, 1)))
        running = len(carriers(mark))
        cluster.end(1)
        lost = wait_until(lambda: [handle for handle in handles if handle.wait(0) is not None])
        assert [outcome(handle) for handle in lost] == ["lost"]
        [other] = [handle for handle in handles if handle not in lost]
        assert other.wait(0) is None
        wait_until(lambda: len(carriers(mark)) == running // 2)
        slot = handles.index(lost[0])
        assert not executor.ready(slot), "nothing in the cluster is free"
        cluster.add()
        wait_until(lambda: executor.ready(slot))
        assert ended_well(executor, make_request(tmp_path / "more", make_task(SUCCEED))).stages[-1].outcome == "ok"
        other.kill()
        assert outcome(other) == "killed"


@two_cores
def test_a_slot_that_the_cluster_has_no_room_for_waits_for_it_to_grow(
    cluster: Cluster, opened: Any, tmp_path: Path
) -> None:
    """Else an autoscaler is never asked for the machines that the session is to have."""
    executor = opened(cluster.executor("&slots=2", times=replace(BUSY, connect=20.0)))
    assert executor.slots == 2
    ready = wait_until(lambda: [slot for slot in (0, 1) if executor.ready(slot)])
    assert len(ready) == 1
    assert executor.waits
    handle = begun(executor, make_request(tmp_path, make_task(HANG, training=900.0, wall=900.0)))
    with pytest.raises(EnvironmentFailure, match="waits for 1 CPU: no node of the cluster has that free"):
        executor.start(make_request(tmp_path / "other", make_task(SUCCEED)))
    handle.kill()
    assert outcome(handle) == "killed"


# -- daemons that fail -------------------------------------------------------------------------------------------------
DRIVER = """
import sys, time
from pathlib import Path
from autoresearchd.executor.ray.executor import RayExecutor
from autoresearchd.executor.ray.wanted import Wanted
from tests.contract.executor_contract import make_request
from tests.integration.local_jobs import marked
from tests.integration.ray_cluster import BUSY
spec, root, mark, command = sys.argv[1:]
handle = RayExecutor(Wanted.read(spec), times=BUSY).start(make_request(Path(root), marked(mark, command)))
print("started", flush=True)
time.sleep(600)
"""


def test_a_killed_daemon_leaves_nothing_and_what_had_ended_is_fetched(
    cluster: Cluster, opened: Any, mark: str, tmp_path: Path
) -> None:
    """Else the GPU is taken when the session is resumed, or hours of training are thrown away."""
    runs = {name: tmp_path / name / "runs" / "run" for name in ("short", "long")}
    commands = {"long": write_job(tmp_path / "long", ESCAPE.format(rest=600)), "short": "echo begun; sleep 1; echo 1.5"}
    there = cluster.top / "runs"
    for name, run_dir in runs.items():
        words = [cluster.spec, str(tmp_path / name), mark, commands[name]]
        with subprocess.Popen([sys.executable, "-c", DRIVER, *words], stdout=subprocess.PIPE, text=True) as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "started\n"
            wait_until(lambda run_dir=run_dir: text_of(run_dir / "training.log"))
            if name == "short":
                daemon.send_signal(signal.SIGSTOP)  # it hears of nothing any more
                wait_until(lambda: (runs["short"] / "result.json").exists() or list(there.glob("*/0/result.json")))
            daemon.kill()
    wait_until(lambda: not carriers(mark))
    executor = opened(cluster.executor())
    wait_until(lambda: executor.ready(0))
    assert executor.recover(runs["long"]) is None
    result = executor.recover(runs["short"])
    assert [stage.outcome for stage in result.stages] == ["ok"]
    assert text_of(runs["short"] / "training.log") == "begun\n1.5\n"
    assert executor.recover(runs["short"]) == result


# -- what is refused, and how it is said -------------------------------------------------------------------------------


def test_an_address_where_nothing_answers_is_told_in_time(opened: Any) -> None:
    """Else `start` hangs, with no word of what it waits for."""
    from tests.integration.ssh_hosts import free_port

    executor = opened(RayExecutor(Wanted.read(f"127.0.0.1:{free_port()}"), times=replace(BUSY, connect=5.0, cool=60.0)))
    with pytest.raises(EnvironmentFailure, match=r"(?s)Ray cluster at 127.0.0.1.*ray://HOST:10001"):
        executor.describe()
    began = time.monotonic()
    with pytest.raises(EnvironmentFailure):
        executor.describe()
    assert time.monotonic() - began < 5, "it is left alone for a while"


@pytest.mark.nightly
def test_a_cluster_with_another_ray_is_refused_with_both_versions(opened: Any) -> None:
    """Else the user reads of a pickle that cannot be loaded."""
    with make_cluster(nodes=0) as cluster:
        cluster.do("version", "2.9.0")
        cluster.add()
        with pytest.raises(MissingCapability, match=r"(?s)2\.9\.0.*pip install 'ray\[client\]==VERSION'"):
            opened(cluster.executor()).describe()


def test_a_cluster_without_room_for_any_run_is_refused(cluster: Cluster, opened: Any) -> None:
    with pytest.raises(MissingCapability, match=r"(?s)none of its 1 nodes has 1 GPU on a node with A100.*--slots N"):
        opened(cluster.executor("&gpu=A100")).describe()

"""Ray clusters for tests: nodes are processes on this machine, which can be added and ended one by one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.executor.ray.executor import RayExecutor
from autoresearchd.executor.ray.wanted import Wanted
from autoresearchd.executor.remote.hosts import Times

BUSY = Times(silence=90.0, lease=100.0, connect=150.0, cool=0.2, coolest=1.0)
"""For a machine that does other things too."""
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="not installed: pip install 'autoresearchd[ray]'")
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two nodes need two cores")

# In a process of its own: Ray is not to be in the one that the tests are in. Each line is answered by one.
_CLUSTER = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import ray
from ray.cluster_utils import Cluster
cluster, nodes = Cluster(), []
for line in sys.stdin:
    do, value = json.loads(line)
    if do == "add":
        nodes.append(cluster.add_node(node_ip_address="127.0.0.1", include_dashboard=False, **value))
    elif do == "end":
        cluster.remove_node(nodes[value], allow_graceful=False)
    elif do == "version":  # which a head writes down when it begins
        ray.__version__ = value
    print(json.dumps(cluster.address), file=answers, flush=True)
cluster.shutdown()
"""


@dataclass
class Cluster:
    """folder: what its nodes have for runs; head: the first node's address."""

    folder: Path
    process: subprocess.Popen[str]
    head: str = ""

    def do(self, what: str, value: Any) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, value]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, (self.folder / "cluster.log").read_text()
        self.head = json.loads(answer) or ""

    def add(self, **more: Any) -> None:
        """A node with one CPU, if not told otherwise; the first is the head."""
        self.do("add", {"num_cpus": 1, **more})

    def end(self, number: int) -> None:
        """Kill all that belongs to a node, the first is 0; never that one."""
        self.do("end", number)

    @property
    def spec(self) -> str:
        """Of an executor for it, without ``ray:``."""
        return f"{self.head}?dir={self.folder}"

    def executor(self, more: str = "", times: Times = BUSY) -> RayExecutor:
        return RayExecutor(Wanted.read(self.spec + more), times=times)

    @property
    def top(self) -> Path:
        return self.folder / ".autoresearchd"


@contextlib.contextmanager
def make_cluster(nodes: int = 1, **head: Any) -> Iterator[Cluster]:
    """head: arguments of the first node."""
    folder = Path(tempfile.mkdtemp(prefix="ard-", dir="/tmp"))  # short: sockets have paths of 107 characters
    own = {"RAY_TMPDIR": str(folder), "HOME": str(folder), "RAY_worker_niceness": "0"}
    environment = {**os.environ, **own, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with (folder / "cluster.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=environment,
        )  # fmt: skip
    cluster = Cluster(folder, process)
    try:
        for number in range(nodes):
            cluster.add(**(head if number == 0 else {}))
        yield cluster
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)

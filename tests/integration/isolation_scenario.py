"""Victims of a hostile job, and the job run beside them.

``python isolation_scenario.py TIER FOLDER`` prints what came of each attack.

A program of its own, so that it can be run as any user. Nothing in it needs more than the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.task import Budget, Direction, Evaluation, Execution, Metric, MetricSource, Scoring, Task
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import choose

SECRET = "the secret"
JOB = Path(__file__).with_name("isolation_job.py")


def place(path: Path, text: str = SECRET) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def request(root: Path) -> RunRequest:
    task = Task(
        name="isolation", editable=("job.py",), execution=Execution("python job.py", Budget(60, 10, 90)),
        scoring=Scoring(Metric("loss", Direction.MINIMIZE), MetricSource.STDOUT), data=("data",),
        evaluation=Evaluation("true", private=("data/val.txt",)),
    )  # fmt: skip
    folders = {name: root / name for name in ("workspace", "pristine", "setup", "source")}
    run_dir = root / ".autoresearchd" / "runs" / "tag" / "1" / "run"
    for folder in (*folders.values(), run_dir):
        folder.mkdir(parents=True)
    return RunRequest(key="run", task=task, commit="0" * 40, seed=1, run_dir=run_dir, **folders)


def facts(root: Path, stack: ExitStack) -> dict[str, Any]:
    """Make the victims; what a job would have to know to attack them."""
    elsewhere = root / "elsewhere"
    for name in ("secret", "movable", "deletable"):
        place(elsewhere / name)
    for name in ("train.txt", "short.txt", "emptied.txt", "mode.txt"):
        place(root / "setup" / "data" / name, "data\n")
    place(root / "home" / ".netrc")
    shared = place(Path(f"/dev/shm/autoresearchd-test-{os.getpid()}"))
    stack.callback(shared.unlink, missing_ok=True)
    victim = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "API_KEY": SECRET})
    stack.callback(victim.wait)
    stack.callback(victim.kill)
    libc = ctypes.CDLL(None)
    queue = libc.msgget(os.getpid(), 0o1600)
    stack.callback(libc.msgctl, queue, 0, None)
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    threading.Thread(target=_echo, args=(udp,), daemon=True).start()
    for name, address, kind in (
        ("stream", str(root / "s"), socket.SOCK_STREAM),
        ("datagram", str(root / "d"), socket.SOCK_DGRAM),
        ("abstract", f"\0autoresearchd-test-{os.getpid()}", socket.SOCK_STREAM),
    ):
        server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        server.bind(address)
        if name != "datagram":
            server.listen()
    return {
        "home": str(root / "home"), "elsewhere": str(elsewhere),
        "git": str(place(root / "source" / ".git" / "autoresearchd" / "state.db").parent),
        "other_run": str(place(root / ".autoresearchd/runs/tag/0/run/evaluation.log").parent),
        "private": str(place(root / "setup" / "data" / "val.txt")), "shared_memory": str(shared),
        "victim": victim.pid, "queue": os.getpid(), "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1],
        "stream": str(root / "s"), "datagrams": str(root / "d"), "abstract": f"autoresearchd-test-{os.getpid()}",
    }  # fmt: skip


def _echo(server: socket.socket) -> None:
    try:
        _, sender = server.recvfrom(16)
        server.sendto(b"pong", sender)
    except OSError:  # closed before anybody asked
        return


def main(tier: str, root: Path) -> dict[str, str]:
    """Run the job in a tier; what came of each attack."""
    os.environ.update(HOME=str(root / "home"), API_KEY=SECRET)
    run = request(root)
    shutil.copy(JOB, run.workspace / "job.py")
    with ExitStack() as stack:
        (run.workspace / "facts.json").write_text(json.dumps(facts(root, stack)))
        result = LocalExecutor(tier=choose(tier), devices=Devices()).start(run).wait()
        log = (run.run_dir / "training.log").read_text()
        assert result.stages[0].outcome == "ok", log
        found, _ = json.JSONDecoder().raw_decode(log)  # what was found in its output is told after it
        return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))

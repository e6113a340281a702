"""Jobs for tests of the local executor, the tiers that run them here, and what they leave behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.task import Task
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import Tier, available, probe
from tests.contract.executor_contract import ended, make_request, make_task

BEST = probe()
needs_sandbox = pytest.mark.skipif(not BEST.isolates, reason=BEST.reason)
TIERS = [pytest.param(tier, id=tier.name.value) for tier in available()]

# A grandchild that left its parent, its session and its process group, and ignores TERM.
ESCAPE = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        print("escaped", flush=True)
        time.sleep(600)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep({rest})
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def carriers(mark: str) -> list[int]:
    """Living processes that carry a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() and alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def marked(mark: str, command: str, **more: object) -> Task:
    return make_task(command, execution={"env": {"MARK": mark}}, **more)


def local(tier: Tier | str, **options: Any) -> LocalExecutor:
    """An executor without GPUs."""
    return LocalExecutor(tier=tier, devices=Devices(), **options)


def run(tier: Tier, root: Path, task: Task) -> RunResult:
    return ended(local(tier), make_request(root, task))


def training_log(root: Path) -> str:
    return (root / "runs" / "run" / "training.log").read_text()


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def write_job(root: Path, source: str) -> str:
    """Put a script into the workspace; the command that runs it."""
    request = make_request(root, make_task())
    (request.workspace / "job.py").write_text(source)
    return "exec python job.py"

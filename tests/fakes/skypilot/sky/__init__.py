"""Stands for SkyPilot's SDK where there is no account; put this folder's parent on PYTHONPATH.

Machines are files of $FAKE_SKY: NAME.json. There, too: ``ssh``, the configuration that each machine gets; ``fails``,
the kind of error that launches end with half-way; ``hold``: launches never end by themselves. What was asked for is
appended to ``asked``.
"""

from __future__ import annotations

import enum
import json
import os
import signal
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from . import exceptions as exceptions

__version__ = "0.14.1"
_FOLDER = Path(os.environ["FAKE_SKY"])
_requests: dict[str, tuple[Any, ...]] = {}


class Resources:
    def __init__(self, **named: Any) -> None:
        if named.get("accelerators", "").startswith("H1000"):
            raise ValueError("Accelerator name 'H1000' is ambiguous")
        self.named = named


class Task:
    def __init__(self, name: str, setup: str) -> None:
        self.setup = setup

    def set_resources(self, resources: Resources) -> None:
        self.resources = resources


class StatusRefreshMode(enum.Enum):
    FORCE = "FORCE"


class _Status(enum.Enum):
    INIT, UP = "INIT", "UP"


class _Handle:
    def get_hourly_price(self) -> float:
        return 36.0


def _ask(*request: Any) -> str:
    print("SkyPilot prints a lot")
    with (_FOLDER / "asked").open("a") as asked:
        asked.write(json.dumps([str(word) for word in request if not isinstance(word, Task)]) + "\n")
    _requests[name := str(len(_requests))] = request
    return name


def _put(name: str, status: str, launched: float) -> None:
    (_FOLDER / f"{name}.json").write_text(json.dumps({"status": status, "launched_at": launched}))


def launch(
    task: Task, cluster_name: str, dryrun: bool = False, idle_minutes_to_autostop: int | None = None, down: bool = False
) -> str:
    assert dryrun or (idle_minutes_to_autostop and down), "a machine that nobody ends by itself"
    return _ask("launch", cluster_name, dryrun, json.dumps(task.resources.named), task.setup)


def status(cluster_names: list[str], refresh: StatusRefreshMode) -> str:
    return _ask("status", *cluster_names)


def autostop(cluster_name: str, idle_minutes: int, down: bool = False) -> str:
    return _ask("autostop", cluster_name, idle_minutes, down)


def down(cluster_name: str) -> str:
    return _ask("down", cluster_name)


def api_cancel(request_ids: list[str]) -> str:
    return _ask("cancel")


def get(request: str) -> Any:
    verb, *told = _requests[request]
    if verb == "launch":
        return _launch(*told)
    if verb == "down" and not (_FOLDER / f"{told[0]}.json").exists():
        raise exceptions.ClusterDoesNotExist(told[0])
    if verb == "down":
        (_FOLDER / f"{told[0]}.json").unlink()
    if verb != "status":
        return None
    found = []
    for path in sorted(_FOLDER.glob("*.json")):
        if any(fnmatch(path.stem, pattern) for pattern in told):
            known = json.loads(path.read_text())
            record = {"name": path.stem, "handle": _Handle(), "cluster_hash": f"{known['launched_at']}"}
            record |= {"status": _Status(known["status"]), "launched_at": known["launched_at"], "cloud": "Fake"}
            found.append(record)
    return found


stream_and_get = get


def _launch(name: str, dryrun: bool, *rest: Any) -> None:
    fails = _FOLDER / "fails"
    if not dryrun and not (_FOLDER / f"{name}.json").exists():
        _put(name, "INIT", time.time())
    if fails.exists():
        raise getattr(exceptions, fails.read_text().strip())("as it was told to")
    if (_FOLDER / "hold").exists():
        signal.pause()
    if not dryrun:
        _put(name, "UP", json.loads((_FOLDER / f"{name}.json").read_text())["launched_at"])

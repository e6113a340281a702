"""What dead daemons and supervisors left behind: found by the token that all processes of a run inherit, and ended."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoresearchd.sandbox.trees import remove_tree

TOKEN_VARIABLE = "AUTORESEARCHD_RUN_TOKEN"  # noqa: S105  # a name, no secret
BOOT = """
import os, sys
sys.path.append(sys.argv[1])
from autoresearchd.sandbox.supervise import serve
os._exit(serve())
"""
"""The program that a supervisor runs: its command line tells it from a stranger with the same pid."""


def reap(run_dirs: Sequence[Path]) -> int:
    """Kill what dead daemons left of the runs in ``run_dirs``; how many process trees were found alive."""
    records = [record for record in map(_record, run_dirs) if record]
    found = set()
    for record in records:
        if _end_supervisor(record):
            found.add(record["token"])
    found |= sweep({record["token"] for record in records})
    for record in records:
        remove(Path(p) for p in record["remove"])
    return len(found)


def sweep(tokens: set[str]) -> set[str]:
    """Kill every process that carries one of the tokens in its environment; the tokens that were found.

    For processes whose supervisor is gone: all of a run's processes inherit its token.
    """
    found: set[str] = set()
    if not tokens:
        return found
    for _ in range(50):
        carriers = _carriers(tokens)
        if not carriers:
            break
        for pid, token in carriers.items():
            found.add(token)
            _signal(pid, signal.SIGKILL)
        time.sleep(0.002)
    return found


def _carriers(tokens: set[str]) -> dict[int, str]:
    marks = {f"{TOKEN_VARIABLE}={token}".encode(): token for token in tokens}
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            for variable in _environment(entry.name):
                if variable in marks and not _is_dead(entry.name):
                    found[int(entry.name)] = marks[variable]
    return found


def _environment(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def _is_dead(pid: str) -> bool:
    fields = _stat(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _stat(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _record(run_dir: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads((run_dir / "supervisor.json").read_bytes())
        return {
            "pid": int(raw["pid"]),
            "start": int(raw["start"]),
            "token": str(raw["token"]),
            "remove": [str(p) for p in raw["remove"]],
        }
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _end_supervisor(record: Mapping[str, Any]) -> bool:
    """End a supervisor if it is still the process that wrote the record; pids are used again, start times are not."""
    try:
        pidfd = os.pidfd_open(record["pid"])
    except OSError:
        return False
    try:
        pid = str(record["pid"])
        fields = _stat(pid)
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if len(fields) < 20 or int(fields[19]) != record["start"] or BOOT.encode() not in command:
            return False
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for number, patience in ((signal.SIGTERM, 3000), (signal.SIGKILL, 1000)):
            signal.pidfd_send_signal(pidfd, number)
            if poll.poll(patience):
                return True
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # gone meanwhile
        return


def remove(paths: Iterable[Path]) -> None:
    """Remove folders; one that cannot be removed stays."""
    for path in paths:
        remove_tree(str(path))

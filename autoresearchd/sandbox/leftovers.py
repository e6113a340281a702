"""What dead daemons and supervisors left behind: found by the token that all processes of a run inherit, and ended.

A token names the process that made it, and so does the command line of a supervisor. What carries the name of a
process that is dead is nobody's any more, wherever its files are: a probe of the sandbox has none.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.process_tree import TOKEN_VARIABLE, send, start_time

BOOT = """
import os, sys
sys.path.append(sys.argv[1])
from autoresearchd.sandbox.supervise import serve
os._exit(serve())
"""
"""The program that a supervisor runs: its command line tells it from a stranger with the same pid."""
PROBE_PREFIX = "autoresearchd-probe-"
"""Of the folders in the system's place for temporary files that probes are made in; a token follows."""


def owner() -> str:
    """A name for this process that no other process of this machine has, or will have until it starts anew."""
    return f"{_pid_namespace()}.{os.getpid()}.{start_time(os.getpid()) or 0}"


def new_token() -> str:
    """A token for one run: whoever finds it later can tell whether the process that made it still lives."""
    return f"{owner()}.{uuid.uuid4().hex}"


def end_abandoned() -> int:
    """End what this user's processes that are dead now had started; how many supervisors and runs were found.

    For what no file tells of, as no file had been written yet when somebody killed its daemon.
    """
    supervisors = [pid for pid, name in _supervisors() if _is_abandoned(name)]
    for pid in supervisors:
        _end_process(pid)
    tokens = {token for _, token in _marked() if _is_abandoned(token)}
    sweep(tokens)
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PROBE_PREFIX}*"):
            if folder.lstat().st_uid == os.geteuid() and _is_abandoned(folder.name.removeprefix(PROBE_PREFIX)):
                remove([folder])
    return max(len(supervisors), len(tokens))


def _is_abandoned(name: str) -> bool:
    """Whether a token, or the owner that a supervisor names, is of a process that is dead.

    One of another process namespace (a container's) is left alone, as its numbers say nothing here.
    """
    try:
        namespace, pid, start = map(int, name.split(".")[:3])
    except ValueError:
        return False
    return start > 0 and namespace == _pid_namespace() and start_time(pid) != start


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _supervisors() -> Iterator[tuple[int, str]]:
    """All supervisors of this user, with the name of the process that started each."""
    for pid in _own():
        words = _words(pid, "cmdline")
        if BOOT.encode() in words and len(words) > 1:
            yield int(pid), words[-2].decode("utf-8", "replace")  # after the last word there is a zero, too


def _marked() -> Iterator[tuple[int, str]]:
    """All processes of this user that carry a token, with it."""
    mark = f"{TOKEN_VARIABLE}=".encode()
    for pid in _own():
        for variable in _words(pid, "environ"):
            if variable.startswith(mark) and start_time(int(pid)) is not None:
                yield int(pid), variable.removeprefix(mark).decode("utf-8", "replace")


def _own() -> Iterator[str]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                if entry.stat().st_uid == os.geteuid():
                    yield entry.name


def reap(run_dirs: Sequence[Path]) -> int:
    """Kill what dead daemons left of the runs in ``run_dirs``; how many process trees were found alive."""
    records = []
    for run_dir in run_dirs:
        with suppress(OSError, ValueError, TypeError, KeyError):  # there is none, or nobody can read it
            raw = json.loads((run_dir / "supervisor.json").read_bytes())
            records.append((int(raw["pid"]), int(raw["start"]), str(raw["token"]), [Path(p) for p in raw["remove"]]))
    # Pids are used again, start times are not.
    found = {token for pid, start, token, _ in records if _end_process(pid, start)}
    found |= sweep({token for _, _, token, _ in records})
    for *_, folders in records:
        remove(folders)
    return len(found)


def sweep(tokens: set[str]) -> set[str]:
    """Kill every process that carries one of the tokens in its environment; the tokens that were found.

    For processes whose supervisor is gone: all of a run's processes inherit its token.
    """
    found: set[str] = set()
    clear = 0
    for _ in range(50 if tokens else 0):
        carriers = [(pid, token) for pid, token in _marked() if token in tokens]
        # Twice: one that is in the middle of exec has no environment for an instant.
        clear = 0 if carriers else clear + 1
        if clear == 2:
            break
        for pid, token in carriers:
            found.add(token)
            send(pid, signal.SIGKILL)
        time.sleep(0.002)
    return found


def _words(pid: str, file: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def _end_process(pid: int, start: int | None = None) -> bool:
    """End a supervisor: asked first, then killed; False where the process is none, or started at another time."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if (start is not None and start_time(pid) != start) or BOOT.encode() not in _words(str(pid), "cmdline"):
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


def remove(paths: Iterable[Path]) -> None:
    """Remove folders; one that cannot be removed stays."""
    for path in paths:
        remove_tree(str(path))

"""The tree of processes below one, looked at through /proc, for the supervisor: C modules only, see `supervise`.

See proc(5): ``/proc/<pid>/task/<tid>/children``, ``/proc/<pid>/stat``, ``/proc/<pid>/smaps_rollup``.
"""
# pathlib and contextlib are among what the supervisor must not import:
# ruff: noqa: PTH110, PTH123, PTH208, SIM105

from __future__ import annotations

import os

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PAGE = os.sysconf("SC_PAGE_SIZE")


def prctl(option: int, value: int) -> None:
    """Set an option of this process. The C half of ctypes does; the whole of it would take as long as all the rest."""
    try:
        import _ctypes

        library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this very program
        _ctypes.call_function(_ctypes.dlsym(library, "prctl"), (option, value, 0, 0, 0))
    except (ImportError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Direct children of a process, of all its threads."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as stream:
                found += map(int, stream.read().split())
    except OSError:  # it ended meanwhile
        pass
    return found


def children_by_parent(pid: int) -> list[int]:
    """The same on kernels without CONFIG_PROC_CHILDREN, from the parent that each process names."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(stat_fields(int(name))[1]) == pid:
                found.append(int(name))
        except (OSError, IndexError):
            continue
    return found


def descendants(pid: int) -> list[int]:
    """All processes below a process, parents before their children."""
    below = children if os.path.exists("/proc/thread-self/children") else children_by_parent
    found = below(pid)
    seen = set(found)
    for child in found:
        fresh = [p for p in below(child) if p not in seen]
        found += fresh
        seen.update(fresh)
    return found


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the state on; the name before them may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b")")[2].split()


def send(pid: int, number: int) -> None:
    """Send a signal; a process that is gone is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def tree_memory(pid: int) -> int:
    """Bytes of memory of all descendants.

    The sum of resident sizes counts shared pages once for each process, so `over_memory` asks for the exact
    (and slower) proportional size before anything is killed.
    """
    total = 0
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/statm", "rb") as stream:
                total += int(stream.read().split()[1]) * PAGE
        except (OSError, IndexError):
            continue
    return total


def tree_proportional_memory(pid: int) -> int:
    """Bytes of memory of all descendants, each shared page counted once."""
    total = 0
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/smaps_rollup", "rb") as stream:
                for line in stream:
                    if line.startswith(b"Pss:"):
                        total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def over_memory(pid: int, limit: int) -> bool:
    """Whether the descendants use more than ``limit`` bytes together."""
    return tree_memory(pid) > limit and tree_proportional_memory(pid) > limit


def kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        with open("/proc/vmstat", "rb") as stream:
            for line in stream:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its pid, its identity. None for one that has ended.

    Not psutil's, which is a time of day and moves when the clock is set: see
    docs/adr/0043-locks-and-process-identity-without-a-library.md.
    """
    try:
        fields = stat_fields(pid)
        return None if fields[0] in (b"Z", b"X") else int(fields[19])  # its field 22
    except (OSError, IndexError):
        return None

"""How much memory is free for a learner: of the machine, of the limits on it and its control group, of a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from autoresearchd.errors import MissingCapability
from autoresearchd.sandbox.ceilings import memory_of_machine

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
_LARGE = 2**20


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are free, None where nobody knows; where: what they are of, more: how to have more; both in words."""

    free: int | None
    where: str
    more: str = "free some memory"


def room_on(device: torch.device) -> Room:
    """What is free on a device; raises MissingCapability where there is no such one."""
    if device.type != "cuda":
        return room_in_memory()
    try:
        return Room(torch.cuda.mem_get_info(device)[0], f"on {device}")
    except (RuntimeError, AssertionError, ValueError) as error:
        # Torch asserts that it was compiled with CUDA, and its errors of drivers are RuntimeErrors.
        raise MissingCapability(
            f"the device {device} cannot be used: {str(error).partition(chr(10))[0]}", mend="take cpu, or auto"
        ) from error


def give_large_blocks_back() -> None:
    """From now on, blocks of a megabyte and more go back to the system as soon as they are free, in this process.

    By itself glibc keeps blocks of up to 32 MB, between which tensors of other sizes find no room.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library, which has no such setting
        libc = ctypes.CDLL(None)
        for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(setting, _LARGE)


def room_in_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Room:
    """The least of what the machine, each control group around this process, and its own limit leave.

    Args:
        proc: where the kernel tells of processes.
        cgroups: where it tells of control groups.
    """
    rooms = [Room(free, "in the control group") for free in _left_in_groups(proc, cgroups)]
    left = _left_of_limit(proc)
    if left is not None:
        where = "of what this process may take (memory_mb of config.yaml, or ulimit -d)"
        rooms.append(Room(left, where, "raise that limit"))
    total, free = memory_of_machine()
    if total:
        rooms.append(Room(free, "of the machine's memory"))
    return min(rooms, key=lambda room: room.free or 0, default=Room(None, "of the machine's memory"))


@contextlib.contextmanager
def limit_lifted() -> Iterator[None]:
    """Without the limit on this process's memory: what is started meanwhile does not inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _left_of_limit(proc: Path) -> int | None:
    """Bytes of private memory that this process may still take (RLIMIT_DATA of getrlimit(2)); None without a limit."""
    try:
        limits, status = (proc / "self/limits").read_text(), (proc / "self/status").read_text()
    except OSError:
        return None
    most = re.search(r"^Max data size +(\d+) ", limits, re.MULTILINE)
    used = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return None if most is None or used is None else max(0, int(most[1]) - int(used[1]) * 1024)


def _left_in_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Of each group with a limit, the process's own and those around it (cgroups(7), both versions)."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, files = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, files = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            left = _left_in(group, *files)
            if left is not None:
                yield left
            if group == root:
                break


def _left_in(group: Path, limit: str, used: str, cache: str) -> int | None:
    """Bytes that a group may still take, cached files counted as free; None without a limit."""
    try:
        most, now = (group / limit).read_text().strip(), int((group / used).read_text())
        lines = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
        cached = sum(int(line[1]) for line in lines if len(line) == 2 and line[0] == cache)
        return None if most == "max" else max(0, int(most) - now + cached)
    except (OSError, ValueError):
        return None

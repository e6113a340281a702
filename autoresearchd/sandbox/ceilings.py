"""Ceilings on what a run may use: memory, processes, threads, and what it writes; looked at while it runs.

Each look begins with one figure of the whole machine that costs next to nothing, and counts the run's own only when
that figure has moved by as much as the ceiling: a run of a few processes is not slowed down by being watched.

C modules only, see `supervise`. Background: proc(5) loadavg and meminfo, getrlimit(2).
"""
# pathlib is among what the supervisor must not import:
# ruff: noqa: PTH123

from __future__ import annotations

import os
import resource

from autoresearchd.sandbox.process_tree import descendants, over_memory, stat_fields

_MIB = 1 << 20
_NO_END = 1 << 62
_SHARE_OF_MACHINE, _SHARE_LEFT = 0.95, 0.08

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Ceilings:
    """The ceilings of one stage, with what the machine looked like when it began."""

    def __init__(self, supervisor: int, memory_mb: int | None, limits: dict[str, Any] | None) -> None:
        self.supervisor, self.memory_mb, self.limits = supervisor, memory_mb, limits
        self.tasks = tasks_of_machine()
        self.space = [_space(folder) for folder in limits["folders"]] if limits else []
        # The output folder of a stage that only reads it is full already, and so is an agent's copy of the workspace.
        folders = limits["folders"].items() if limits else ()
        self.before = [size_of(folder, _NO_END, most)[1] for folder, most in folders]

    @property
    def any(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.limits or self.memory_mb)

    def exceeded(self) -> tuple[str, str]:
        """Outcome and detail of a ceiling that the run has reached, else nothing."""
        if self.memory_mb:
            if over_memory(self.supervisor, self.memory_mb * _MIB):
                return "oom", f"the processes used more than {self.memory_mb} MB together"
        elif self.limits and self.over_machine():
            return "oom", "the processes used nearly all memory of the machine"
        if self.limits is None:
            return "", ""
        return self.too_many(self.limits) or self.too_large(self.limits) or ("", "")

    def over_machine(self) -> bool:
        total, left = memory_of_machine()
        return left < total * _SHARE_LEFT and over_memory(self.supervisor, int(total * _SHARE_OF_MACHINE))

    def too_many(self, limits: dict[str, Any]) -> tuple[str, str] | None:
        if tasks_of_machine() - self.tasks < min(limits["processes"], limits["threads"]):
            return None
        processes = descendants(self.supervisor)
        if len(processes) > limits["processes"]:
            return "failed", f"it started more than {limits['processes']} processes"
        if sum(_threads(pid) for pid in processes) > limits["threads"]:
            return "failed", f"it started more than {limits['threads']} threads"
        return None

    def too_large(self, limits: dict[str, Any], *, ended: bool = False) -> tuple[str, str] | None:
        """What a folder holds beyond its ceiling. ended: the stage is over, so that a count may take its time."""
        for (folder, most), (space, files), before in zip(
            limits["folders"].items(), self.space, self.before, strict=True
        ):
            space_now, files_now = _space(folder)
            moved = space - space_now >= limits["bytes"] // 2 or files - files_now >= most // 2
            if not moved and not ended:
                continue
            size, count = size_of(folder, limits["bytes"], most + before)
            if size > limits["bytes"] and moved:
                return "failed", f"it wrote more than {limits['bytes'] // _MIB} MB"
            if count > most + before:
                return "failed", f"it made more than {most:,} files"
        return None

    def left(self) -> tuple[str, str] | None:
        """The same of what a stage has left that ended well, perhaps between two looks.

        Files are counted in any case: some file systems tell no number, and other programs' files hide ours in it.
        """
        return self.too_large(self.limits, ended=True) if self.limits else None


def apply(limits: dict[str, Any] | None) -> None:
    """In a process that is to become a job: what the kernel itself keeps, for it and all that it starts.

    The number of processes is counted by the kernel for the whole user, and not at all for root: this only bounds a
    job that starts them faster than they can be ended.
    """
    if limits is None:
        return
    tasks = tasks_of_machine() + int(limits["threads"])
    for kind, value in (
        (resource.RLIMIT_FSIZE, limits["bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, tasks),
    ):
        _, hard = resource.getrlimit(kind)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")  # when memory runs out the kernel is to end the job, not the daemon
    except OSError:
        pass


def tasks_of_machine() -> int:
    """How many threads there are on this machine."""
    try:
        with open("/proc/loadavg", "rb") as stream:
            return int(stream.read().split()[3].partition(b"/")[2])
    except (OSError, ValueError, IndexError):
        return 0


def memory_of_machine() -> tuple[int, int]:
    """Bytes of memory: all, and what is left; zeros where that cannot be found out."""
    figures = {}
    try:
        with open("/proc/meminfo", "rb") as stream:
            for line in stream:
                name, _, rest = line.partition(b":")
                figures[name] = int(rest.split()[0]) * 1024
                if name == b"MemAvailable":
                    return figures[b"MemTotal"], figures[name]
    except (OSError, ValueError, IndexError, KeyError):
        pass
    return 0, 0


def size_of(folder: str, most_bytes: int, most_files: int) -> tuple[int, int]:
    """Bytes on disk and number of files in a folder; counting ends once either is too large."""
    size, count, pending = 0, 0, [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    facts = entry.stat(follow_symlinks=False)
                    size += facts.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    if size > most_bytes or count > most_files:
                        return size, count
        except OSError:  # removed meanwhile
            continue
    return size, count


def _threads(pid: int) -> int:
    try:
        return int(stat_fields(pid)[17])
    except (OSError, IndexError, ValueError):
        return 0


def _space(folder: str) -> tuple[int, int]:
    """Free bytes and free files of the file system of a folder."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0, 0
    return facts.f_bfree * facts.f_frsize, facts.f_ffree

"""The tree of processes below one, looked at through /proc, and the ceilings on what it may use while it runs.

Each look at a ceiling begins with one figure of the whole machine that costs next to nothing, and counts the run's own
only when that figure has moved by as much as the ceiling: a run of a few processes is not slowed down by being watched.

C modules only, see `supervise`. Background: proc(5), getrlimit(2).
"""
# pathlib and contextlib are among what the supervisor must not import:
# ruff: noqa: PTH110, PTH116, PTH123, PTH208

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MIB = 1 << 20
_NO_END = 1 << 62
_SHARE_OF_MACHINE, _SHARE_LEFT = 0.95, 0.08
_TIGHT = 0.15
"""Of the machine's memory: when less is left, jobs are made the first again that the kernel ends."""
_MOST_LOOKED = 1 << 16
"""Descriptors of files, at one look."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST = b"1000\n"
TOKEN_VARIABLE = "AUTORESEARCHD_RUN_TOKEN"  # noqa: S105  # a name, no secret
"""All processes of a run inherit it."""


def read(path: str) -> bytes:
    """Content of a file of /proc; nothing where its process has ended meanwhile."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def threads(pid: int) -> list[str]:
    """The threads of a process, by number; none where it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Direct children of a process, of all its threads."""
    return [int(child) for task in threads(pid) for child in read(f"/proc/{pid}/task/{task}/children").split()]


def descendants(pid: int, *, by_parent: bool = False) -> list[int]:
    """All processes below a process, parents before their children.

    by_parent: from the parent that each process of the machine names, in one pass: quicker where a process has hundreds
    of threads, each of which has a list of children. Kernels without CONFIG_PROC_CHILDREN have no such lists.
    """
    lists: dict[int, list[int]] = {}
    of_threads = not by_parent and os.path.exists("/proc/thread-self/children")
    if not of_threads:
        for name in os.listdir("/proc"):
            if name.isdigit() and (fields := stat_fields(int(name))):
                lists.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    seen = {pid}
    for process in found:
        fresh = [p for p in (children(process) if of_threads else lists.get(process, ())) if p not in seen]
        found += fresh
        seen.update(fresh)
    return found[1:]


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the state on; the name before them may hold anything."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def note_computed(pid: int, seen: dict[tuple[int, bytes], float], *, by_parent: bool = False) -> None:
    """Write down, by process and its start, for how many seconds each process below one has computed by itself.

    One that nobody waits for, or whose parent ignores SIGCHLD, is in nobody's rusage once it has ended. A look at three
    processes takes a quarter of a millisecond.
    """
    for child in descendants(pid, by_parent=by_parent):
        fields = stat_fields(child)
        if len(fields) > 19 and (ticks := int(fields[11]) + int(fields[12])):
            seen[child, fields[19]] = ticks / _TICKS


def attempt(function: Callable[..., object], *arguments: object) -> bool:
    """Call a function; whether it raised no OSError."""
    try:
        function(*arguments)
    except OSError:
        return False
    return True


def send(pid: int, number: int) -> None:
    """Send a signal; a process that is gone is no error."""
    attempt(os.kill, pid, number)


def over_memory(pid: int, limit: int) -> bool:
    """Whether the descendants use more than ``limit`` bytes together, by PSS once the quicker RSS is beyond it."""
    return all(sum(map(of_one, descendants(pid))) > limit for of_one in (_rss, _pss))


def _rss(pid: int) -> int:
    text = _of_the_living(pid, "statm")
    return int(text.split()[1]) * _PAGE if text else 0


def _pss(pid: int) -> int:
    """What a process uses, its share of what it shares; of one that is not to be looked into, all."""
    lines = [line for line in _of_the_living(pid, "smaps_rollup").splitlines() if line.startswith(b"Pss:")]
    return int(lines[0].split()[1]) * 1024 if lines else _rss(pid)


def _of_the_living(pid: int, file: str) -> bytes:
    """A file of /proc about the memory of a process: where its first thread has ended that one's is empty or zeros."""
    of_first = read(f"/proc/{pid}/{file}")
    if of_first and not of_first.startswith(b"0 "):
        return of_first
    texts = (read(f"/proc/{pid}/task/{thread}/{file}") for thread in threads(pid))
    return next((text for text in texts if text and not text.startswith(b"0 ")), b"")


def kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    return _figure("/proc/vmstat", b"oom_kill ")


def memory_of_machine() -> tuple[int, int]:
    """Bytes of memory: all, and what is left; zeros where that cannot be found out."""
    total, left = (_figure("/proc/meminfo", name) * 1024 for name in (b"MemTotal:", b"MemAvailable:"))
    return (total, left) if total else (0, 0)


def _figure(path: str, name: bytes) -> int:
    """The number after a name in a table of /proc; 0 where there is none."""
    return next((int(line.split()[1]) for line in read(path).splitlines() if line.startswith(name)), 0)


def start_time(pid: int) -> int | None:
    """When a process started, in ticks since boot: with its pid, its identity (docs/adr/0043). None: it has ended."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None  # its field 22


class Ceilings:
    """The ceilings of one stage, with what the machine looked like when it began.

    launchers: processes of the sandbox itself, below which the job's are.
    """

    def __init__(
        self, supervisor: int, memory_mb: int | None, limits: dict[str, Any] | None, launchers: tuple[int, ...] = ()
    ) -> None:
        self.supervisor, self.memory_mb, self.limits, self.launchers = supervisor, memory_mb, limits, launchers
        self.tasks = tasks_of_machine()
        # The output folder of a stage that only reads it is full already, and so is an agent's copy of the workspace.
        self.folders = [
            (folder, most, most + size_of(folder, _NO_END, most)[1], _space(folder))
            for folder, most in (limits["folders"].items() if limits else ())
        ]

    def exceeded(self) -> tuple[str, str] | None:
        """Outcome and detail of a ceiling that the run has reached."""
        total, left = memory_of_machine()
        if self.limits and left < total * _TIGHT:  # a job that may write to its files of /proc can have taken it back
            for pid in descendants(self.supervisor):
                end_first(pid)
        if self.memory_mb and over_memory(self.supervisor, self.memory_mb * _MIB):
            return "oom", f"the processes used more than {self.memory_mb} MB together"
        low = self.limits and not self.memory_mb and left < total * _SHARE_LEFT
        if low and over_memory(self.supervisor, int(total * _SHARE_OF_MACHINE)):
            return "oom", "the processes used nearly all memory of the machine"
        if self.limits and tasks_of_machine() - self.tasks >= min(self.limits["processes"], self.limits["threads"]):
            processes = descendants(self.supervisor)
            if len(processes) > self.limits["processes"]:
                return "failed", f"it started more than {self.limits['processes']} processes"
            if sum(int(fields[17]) for pid in processes if (fields := stat_fields(pid))) > self.limits["threads"]:
                return "failed", f"it started more than {self.limits['threads']} threads"
        return self.too_large()

    def too_large(self, *, ended: bool = False) -> tuple[str, str] | None:
        """What a folder holds beyond its ceiling.

        ended: the stage has ended well, perhaps between two looks. Files are counted in any case then: some file
        systems tell no number, and other programs' files hide ours in it.
        """
        for folder, most, most_now, (space, files) in self.folders:
            space_now, files_now = _space(folder)
            most_bytes: int = self.limits["bytes"] if self.limits else _NO_END
            moved = space - space_now >= most_bytes // 2 or files - files_now >= most // 2
            if moved or ended:
                size, count = size_of(folder, most_bytes, most_now)
                unseen = False
                if moved and size <= most_bytes:
                    more, unseen = _nameless(self._of_the_job(), folder)
                    size += more
                if moved and (size > most_bytes or (unseen and space - space_now > most_bytes)):
                    return "failed", f"it wrote more than {most_bytes // _MIB} MB"
                if count > most_now:
                    return "failed", f"it made more than {most:,} files"
        return None

    def _of_the_job(self) -> list[int]:
        """The descendants but for the sandbox's own, which nobody may look into, and which hold no files."""
        ours = {*self.launchers, *(child for pid in self.launchers for child in children(pid) if _is_first(child))}
        return [pid for pid in descendants(self.supervisor) if pid not in ours]


def _is_first(pid: int) -> bool:
    """Whether a process is the first one of a namespace of processes."""
    lines = read(f"/proc/{pid}/status").splitlines()
    return any(line.startswith(b"NSpid:") and line.endswith(b"\t1") for line in lines)


def apply(limits: dict[str, Any] | None) -> None:
    """In a process that is to become a job: what the kernel itself keeps, for it and all that it starts.

    The number of processes is counted by the kernel for the whole user, and not at all for root: this only bounds a
    job that starts them faster than they can be ended.
    """
    import resource  # the launcher, which uses this module, too, does without

    if limits is None:
        return
    most = {resource.RLIMIT_FSIZE: limits["bytes"], resource.RLIMIT_CORE: 0}
    most[resource.RLIMIT_NPROC] = tasks_of_machine() + int(limits["threads"])
    for kind, value in most.items():
        _, hard = resource.getrlimit(kind)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
    end_first("self")


def end_first(pid: int | str) -> None:
    """When memory runs out the kernel is to end this process, and not the daemon."""
    path = f"/proc/{pid}/oom_score_adj"
    if read(path) == _FIRST:
        return
    try:
        with open(path, "wb") as stream:
            stream.write(_FIRST)
    except OSError:  # it has ended, or this machine forbids it
        pass


def tasks_of_machine() -> int:
    """How many threads there are on this machine."""
    words = read("/proc/loadavg").split()
    return int(words[3].partition(b"/")[2]) if words else 0


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


def _nameless(pids: list[int], folder: str) -> tuple[int, bool]:
    """Bytes on disk of files without a name that processes hold open; whether they may hold more that cannot be seen.

    Of the file system of a folder. Not seen are those of a process that forbids to look, those that are only mapped or
    on their way through a socket, and those of more descriptors than there is time for.
    """
    found: dict[int, int] = {}
    unseen, looked = False, 0
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return 0, False
    mark = b"%02x:%02x" % (os.major(device), os.minor(device))
    for place in (f"/proc/{pid}/task/{thread}" for pid in pids for thread in threads(pid)):
        try:
            names = os.listdir(place + "/fd")
        except OSError as error:
            ended = read(place + "/statm").startswith(b"0 ")  # who has ended forbids to look, too
            unseen = unseen or (isinstance(error, PermissionError) and not ended)
            continue
        looked += len(names)
        if looked > _MOST_LOOKED:
            return sum(found.values()), True
        for name in names:
            try:
                facts = os.stat(f"{place}/fd/{name}")
            except OSError:
                continue
            if stat.S_ISSOCK(facts.st_mode):
                unseen = unseen or _figure(f"{place}/fdinfo/{name}", b"scm_fds:") > 0
            elif facts.st_nlink == 0 and facts.st_dev == device:
                found[facts.st_ino] = facts.st_blocks * 512
    lines = (line for pid in pids for line in _of_the_living(pid, "maps").splitlines())
    words = (line.split() for line in lines if line.endswith(b" (deleted)"))
    mapped = {int(word[4]) for word in words if word[3] == mark}
    return sum(found.values()), unseen or not mapped <= found.keys()


def _space(folder: str) -> tuple[int, int]:
    """Free bytes and free files of the file system of a folder."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0, 0
    return facts.f_bfree * facts.f_frsize, facts.f_ffree

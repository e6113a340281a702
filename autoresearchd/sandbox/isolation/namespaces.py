"""Namespaces for the launcher: of users, processes, network, IPC and mounts, with a world that is mounted read-only.

See namespaces(7), user_namespaces(7), pid_namespaces(7), mount_setattr(2). C modules only, see `supervise`.
"""
# pathlib and contextlib are among what the launcher must not import:
# ruff: noqa: PTH103, PTH123

from __future__ import annotations

import os

from autoresearchd.sandbox.isolation.kernel import call

_NEW_MOUNTS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_RECURSIVE, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_RECURSIVE, _CLONE, _CLOEXEC, _EMPTY_PATH = -100, 0x8000, 1, 0x80000, 4
_READ_ONLY = 1
_AF_INET, _DATAGRAM, _SIOCSIFFLAGS, _UP_AND_RUNNING = 2, 2, 0x8914, 0x41
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # one of its own


def enter(*, network: bool) -> None:
    """Move into new namespaces; the next child of this process is the first in that of processes.

    The job keeps its user's numbers. Raises OSError where the kernel or a container forbids it.
    """
    user, group = os.geteuid(), os.getegid()
    kinds = _NEW_USER | _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC | _NEW_UTS | _NEW_CGROUP
    call("unshare", kinds | (0 if network else _NEW_NETWORK))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


class Mounts:
    """What could be mounted: many containers forbid some of it, and Landlock holds without.

    sealed: the world is read-only; proc: /proc shows the job's own processes only; memory: there is a private /dev/shm.
    """

    def __init__(self) -> None:
        self.sealed = self.proc = self.memory = False

    def make(self, writable: list[str], size: int) -> None:
        """Mount the world read-only but for the ``writable`` folders, and a /proc and a /dev/shm of ``size`` bytes."""
        held: list[tuple[int, str]] = []
        try:
            call("mount", None, b"/", None, _MS_RECURSIVE | _MS_PRIVATE, None)
            for place in writable:
                flags = _CLONE | _CLOEXEC | _AT_RECURSIVE
                held.append((call("syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(place), flags), place))
            read_only = _READ_ONLY.to_bytes(8, "little") + bytes(24)
            call("syscall", _MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, read_only, len(read_only))
        except OSError:
            for tree, _ in held:
                os.close(tree)
            return
        self.sealed = True
        self.proc = _mounted("proc", "/proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
        self.memory = _mounted("tmpfs", SHARED_MEMORY, _MS_NOSUID | _MS_NODEV, f"mode=1777,size={size}")
        for tree, place in held:
            if self.memory and place.startswith(SHARED_MEMORY + "/"):
                os.makedirs(place, mode=0o700, exist_ok=True)
            call("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(place), _EMPTY_PATH)
            os.close(tree)


def _mounted(kind: str, place: str, flags: int, options: str) -> bool:
    try:
        call("mount", kind.encode(), place.encode(), kind.encode(), flags, options.encode() or None)
    except OSError:
        return False
    return True


def raise_loopback() -> None:
    """Let the processes of the job talk to each other over 127.0.0.1, where that can be had."""
    try:
        probe = call("socket", _AF_INET, _DATAGRAM, 0)
    except OSError:
        return
    try:
        call("ioctl", probe, _SIOCSIFFLAGS, b"lo".ljust(16, b"\0") + _UP_AND_RUNNING.to_bytes(2, "little") + bytes(22))
    except OSError:
        pass
    finally:
        os.close(probe)

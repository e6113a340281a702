"""Calls into libc and the kernel that `os` lacks: privileges, filters, namespaces and Landlock.

Through the C half of ctypes, for the whole of it takes longer to import than all else that the launcher does. C modules
only, see `supervise`. Background: namespaces(7), user_namespaces(7), pid_namespaces(7), mount_setattr(2), seccomp(2).
"""

# pathlib and contextlib are among what the launcher must not import:
# ruff: noqa: PTH103, PTH114, PTH118, PTH123, PTH208

from __future__ import annotations

import _ctypes
import os
import stat

from autoresearchd.sandbox.process_tree import attempt

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 1, 4, 24, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_SET_SECCOMP = 36, 38, 47, 22
_PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 4, 2
_SECURE_ALL_LOCKED = 0x2F  # NOROOT, NO_SETUID_FIXUP and their locks, and KEEP_CAPS locked off
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522
_NEW_MOUNTS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_RECURSIVE, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_RECURSIVE, _CLONE, _CLOEXEC, _EMPTY_PATH = -100, 0x8000, 1, 0x80000, 4
_READ_ONLY = 1
_AF_INET, _DATAGRAM, _SIOCSIFFLAGS, _UP_AND_RUNNING = 2, 2, 0x8914, 0x41
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # one of the job's own


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Char(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


def call(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of libc; whole numbers are passed as C longs. Raises OSError where it answers −1."""
    function = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), name))  # type: ignore[arg-type]
    passed = [_Long(a) if isinstance(a, int) else a for a in arguments]
    _ctypes.set_errno(0)
    answer = int(function(*passed))
    if answer == -1:
        number = _ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


def prctl(option: int, *arguments: int) -> int:
    """Set an option of this process."""
    return call("prctl", option, *arguments, *([0] * (4 - len(arguments))))


def drop_privileges() -> None:
    """Give up all capabilities, for good: of this process and of every program that it may become."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(_LAST_CAPABILITY + 1):
        if not attempt(prctl, _PR_CAPBSET_DROP, capability):
            break  # beyond the last one, or without CAP_SETPCAP; then no_new_privs alone keeps them from returning
    attempt(prctl, _PR_SET_SECUREBITS, _SECURE_ALL_LOCKED)
    call("capset", _CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), bytes(24))


def filter_calls(instructions: bytes) -> None:
    """Filter the system calls of this process and its children, as in seccomp(2)."""
    buffer = bytearray(instructions)
    kind = type("Buffer", (_ctypes.Array,), {"_length_": len(buffer), "_type_": _Char})
    held = kind.from_buffer(buffer)  # type: ignore[attr-defined]
    count, padding = (len(buffer) // 8).to_bytes(2, "little"), bytes(6)
    program = count + padding + _ctypes.addressof(held).to_bytes(8, "little")
    call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)


# -- namespaces: of users, processes, network, IPC and mounts ----------------------------------------------------------


def enter_namespaces(*, network: bool) -> None:
    """Move into new namespaces; the next child is the first in that of processes. OSError where it is forbidden."""
    user, group = os.geteuid(), os.getegid()
    kinds = _NEW_USER | _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC | _NEW_UTS | _NEW_CGROUP
    call("unshare", kinds | (0 if network else _NEW_NETWORK))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


class Mounts:
    """What could be mounted: many containers forbid some of it, and Landlock holds without.

    sealed: the world is read-only; proc: /proc shows the job's own processes only; memory: /dev/shm is a private one.
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
    return attempt(call, "mount", kind.encode(), place.encode(), kind.encode(), flags, options.encode() or None)


def raise_loopback() -> None:
    """Let the processes of the job talk to each other over 127.0.0.1, where that can be had."""
    try:
        probe = call("socket", _AF_INET, _DATAGRAM, 0)
    except OSError:
        return
    request = b"lo".ljust(16, b"\0") + _UP_AND_RUNNING.to_bytes(2, "little") + bytes(22)
    attempt(call, "ioctl", probe, _SIOCSIFFLAGS, request)
    os.close(probe)


# -- Landlock: the white list of files that a process may read, write and run, kept by the kernel ---------------------
#
# See landlock(7) and the kernel's Documentation/userspace-api/landlock.rst. What it cannot do: hide names and
# attributes (a path that is denied can still be looked up and its owner, size and times seen), and before version 3 of
# its interface keep a file that may be read from being truncated, which `seccomp` does there.

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << n for n in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << n for n in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL = (1 << 16) - 1
_SINCE = {REFER: 2, TRUNCATE: 3, IOCTL_DEV: 5}
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_TCP, _SINCE_TCP = 0b11, 4
_ABSTRACT_SOCKETS, _SIGNALS, _SINCE_SCOPES = 0b01, 0b10, 6

READ = READ_FILE | READ_DIR | EXECUTE
WRITE = READ | WRITE_FILE | TRUNCATE | REFER | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM
DEVICE = READ_FILE | READ_DIR | WRITE_FILE | IOCTL_DEV
FACTS = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE


def landlock_version() -> int:
    """Version of the kernel's interface; 0 where there is no Landlock."""
    try:
        return call("syscall", _CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def supported(rights: int, abi: int) -> int:
    """The part of ``rights`` that the kernel knows."""
    return rights & ~sum(right for right, since in _SINCE.items() if abi < since)


class Ruleset:
    """A white list under construction. tcp: whether TCP is left alone, as it is where the kernel is too old."""

    def __init__(self, abi: int, *, tcp: bool) -> None:
        self.abi = abi
        words = [supported(_ALL, abi)]
        if abi >= _SINCE_TCP:
            words.append(0 if tcp else _TCP)
        if abi >= _SINCE_SCOPES:
            words.append(_ABSTRACT_SOCKETS | _SIGNALS)
        self.fd = _created(words)

    def allow(self, path: str, rights: int, hidden: frozenset[str] = frozenset()) -> None:
        """Allow ``rights`` on a file, or on a folder and all in it but for what is ``hidden`` (real paths).

        A folder with something hidden in it may be listed, for programs search it, and each entry is allowed by itself.
        """
        if any(path == place or path.startswith(place + "/") for place in hidden):
            return
        inner = frozenset(place for place in hidden if place.startswith(path.rstrip("/") + "/"))
        if not inner:
            self._add(path, rights)
            return
        self._add(path, rights & READ_DIR)
        for name in os.listdir(path):
            entry = os.path.join(path, name)
            if not os.path.islink(entry):  # what a link leads to is allowed, or not, where it is
                self.allow(entry, rights, inner)

    def _add(self, path: str, rights: int) -> None:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        try:
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                rights &= _OF_FILES
            rights = supported(rights, self.abi)
            if rights:
                rule = rights.to_bytes(8, "little") + place.to_bytes(4, "little")
                call("syscall", _ADD_RULE, self.fd, _PATH_BENEATH, rule, 0)
        finally:
            os.close(place)


def leave_abstract_sockets() -> None:
    """Keep this process, and all that it starts, from abstract unix sockets of others, where the kernel can."""
    if landlock_version() >= _SINCE_SCOPES:
        enforce(_created([0, 0, _ABSTRACT_SOCKETS]))


def _created(words: list[int]) -> int:
    """A ruleset: rights to files, to TCP, and scopes."""
    attributes = b"".join(word.to_bytes(8, "little") for word in words)
    return call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)


def enforce(ruleset: int) -> None:
    """Hold this process, and all that it starts, to a ruleset (its descriptor), for good."""
    call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)

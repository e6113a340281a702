"""Landlock: the white list of files that a process may read, write and run, kept by the kernel.

See landlock(7) and the kernel's Documentation/userspace-api/landlock.rst. What it cannot do: hide names and attributes
(a path that is denied can still be looked up and its owner, size and times seen), and before version 3 of its interface
keep a file that may be read from being truncated, which `seccomp` does there.

C modules only, see `supervise`.
"""
# pathlib is among what the launcher must not import:
# ruff: noqa: PTH114, PTH118, PTH208

from __future__ import annotations

import os
import stat

from autoresearchd.sandbox.isolation.kernel import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << n for n in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << n for n in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL = (1 << 16) - 1
_SINCE = {REFER: 2, TRUNCATE: 3, IOCTL_DEV: 5}
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_TCP, _SINCE_TCP = 0b11, 4
_ABSTRACT_SOCKETS_AND_SIGNALS, _SINCE_SCOPES = 0b11, 6

READ = READ_FILE | READ_DIR | EXECUTE
WRITE = READ | WRITE_FILE | TRUNCATE | REFER | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM
DEVICE = READ_FILE | READ_DIR | WRITE_FILE | IOCTL_DEV


def version() -> int:
    """Version of the kernel's interface; 0 where there is no Landlock."""
    try:
        return call("syscall", _CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def supported(rights: int, abi: int) -> int:
    """The part of ``rights`` that the kernel knows."""
    return rights & ~sum(right for right, since in _SINCE.items() if abi < since)


class Ruleset:
    """A white list under construction.

    abi: what `version` says. tcp: whether TCP is left alone; where the kernel is too old to forbid it, it is.
    """

    def __init__(self, abi: int, *, tcp: bool) -> None:
        self.abi = abi
        words = [supported(_ALL, abi)]
        if abi >= _SINCE_TCP:
            words.append(0 if tcp else _TCP)
        if abi >= _SINCE_SCOPES:
            words.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
        attributes = b"".join(word.to_bytes(8, "little") for word in words)
        self.fd = call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)

    def allow(self, path: str, rights: int, hidden: frozenset[str] = frozenset()) -> None:
        """Allow ``rights`` on a file, or on a folder and all in it but for what is ``hidden`` (real paths).

        A folder with something hidden in it may be listed, for programs search it, and each entry of it is allowed by
        itself. A path that is not there is no error: there is nothing to see.
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

    def enforce(self) -> None:
        """Hold this process, and all that it starts, to the list, for good."""
        call("syscall", _RESTRICT_SELF, self.fd, 0)
        os.close(self.fd)

"""Calls into libc and the kernel that `os` lacks, for the launcher: C modules only, see `supervise`.

Through the C half of ctypes, for the whole of it takes longer to import than all else that the launcher does.
"""

# contextlib is among what the launcher must not import:
# ruff: noqa: SIM105

from __future__ import annotations

import _ctypes
import os

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 1, 4, 24, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_SET_SECCOMP = 36, 38, 47, 22
_PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 4, 2
_SECURE_ALL_LOCKED = 0x2F  # NOROOT, NO_SETUID_FIXUP and their locks, and KEEP_CAPS locked off
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522


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
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    try:
        for capability in range(_LAST_CAPABILITY + 1):
            prctl(PR_CAPBSET_DROP, capability)
    except OSError:  # beyond the last one, or without CAP_SETPCAP; then no_new_privs alone keeps them from returning
        pass
    try:
        prctl(PR_SET_SECUREBITS, _SECURE_ALL_LOCKED)
    except OSError:  # likewise
        pass
    header = _CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4)
    call("capset", header, bytes(24))


def filter_calls(instructions: bytes) -> None:
    """Filter the system calls of this process and its children, as in seccomp(2)."""
    buffer = bytearray(instructions)
    kind = type("Buffer", (_ctypes.Array,), {"_length_": len(buffer), "_type_": _Char})
    held = kind.from_buffer(buffer)  # type: ignore[attr-defined]
    count, padding = (len(buffer) // 8).to_bytes(2, "little"), bytes(6)
    program = count + padding + _ctypes.addressof(held).to_bytes(8, "little")
    call("prctl", PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)

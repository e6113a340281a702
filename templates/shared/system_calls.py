"""A filter of system calls that a process lays over itself, and cannot take off again. Protected.

`serving.py` and `meter.py` say what for.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

Numbers = tuple[int | None, int | None]
"""Of a call on x86_64 and on aarch64; None: there is none of that name."""

_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38  # prctl(2)
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06  # bpf(2)
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, which of the two numbers below
COMPUTING: dict[str, Numbers] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80), "poll": (7, None), "ppoll": (271, 73),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getcpu": (309, 168), "membarrier": (324, 283), "rseq": (334, 293), "set_robust_list": (273, 99),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "getpid": (39, 172), "gettid": (186, 178),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "times": (100, 153), "getrusage": (98, 165), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
ON_FILES: dict[str, Numbers] = {
    "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents64": (217, 61), "getcwd": (79, 17), "dup": (32, 23), "uname": (63, 160), "sysinfo": (99, 179),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
}  # fmt: skip
_WRITES = 0o1103  # of the flags of open(2): O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
READING: dict[str, tuple[Numbers, int, int, int]] = {
    "open": ((2, None), 1, _WRITES, 0),
    "openat": ((257, 56), 2, _WRITES, 0),
}
"""Calls that are allowed where some bits of an argument are so: which argument, which bits, what they have to be."""
_CLONE3 = 435  # its flags lie in memory, where no filter looks: the C library takes clone(2) where it is not known


def allow_only(calls: Mapping[str, Numbers], checked: Mapping[str, tuple[Numbers, int, int, int]]) -> None:
    """Refuse this process all other calls from here on. checked: as ``READING``.

    Raises OSError where that cannot be had.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(f"no filter of system calls is known for {machine}")
    architecture, column = _MACHINES[machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for numbers in calls.values():
        if (call := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    for numbers, argument, bits, value in checked.values():
        if (call := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 5, call), (_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, bits)]
            steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS), (_RETURN, 0, 0, _EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc("prctl", _SECCOMP, _FILTER, ctypes.addressof(program), 0, 0)


def libc(name: str, *arguments: int | bytes) -> None:
    """A function of the C library that returns 0."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

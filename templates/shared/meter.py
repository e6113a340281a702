"""Runs edited code in a process of its own and tells the scorer how much processor time each answer took. Protected.

`serve.py` calls `serve`. It waits for the scorer, forks, and only the child imports the edited file. This process never
does: it passes requests on, reads the child's processor clock, and answers. Processor time, because the time by the
clock tells of whatever else the machine does. So that it is all the time there is:

* the child may start no thread and no other process, and have none work for it: a filter of system calls that cannot be
  taken off again lets it read files, compute and answer, and that is all. It opens nothing to write to, so no memory of
  another process through /proc, not even that of the sandbox's first one, which no filter binds;
* what counts is the child's clock from one answer to the next, so that whatever it does in between counts, too;
* the child cannot reach this process (which is not dumpable: proc(5), prctl(2)) nor its pipes, whose names are gone by
  then; were it to end this process, there would be no score.

Protocol, in the folder `$AUTORESEARCHD_EXCHANGE_DIR`: the scorer makes the files `inputs.bin` and `outputs.bin` and the
named pipes `requests` and `replies`. A request is `<2q`: a number, and the bytes that lie in `inputs.bin`. A
reply is `<3q`: the number, the bytes in `outputs.bin`, and nanoseconds. Number 0 with no bytes asks whether the edited
file has been imported.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

REQUEST, REPLY = struct.Struct("<2q"), struct.Struct("<3q")
START_TIMEOUT = 120.0  # seconds that the scorer may take before it makes its pipes

Answer = Callable[[int, int, int], int]
"""Descriptors of inputs and outputs and the bytes that lie in inputs; gives the bytes that lie in outputs."""

_DUMPABLE, _SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 4, 22, 2, 38  # prctl(2)
_CAPABILITIES = 0x20080522  # version 3 of capset(2)
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06  # bpf(2)
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, which of the two numbers below
_CALLS = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "ftruncate": (77, 46), "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80),
    "poll": (7, None), "ppoll": (271, 73), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "dup": (32, 23),
    "uname": (63, 160), "sysinfo": (99, 179), "getpid": (39, 172), "gettid": (186, 178),
    "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getcpu": (309, 168), "membarrier": (324, 283), "rseq": (334, 293), "set_robust_list": (273, 99),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "setitimer": (38, 103), "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getrusage": (98, 165), "getrandom": (318, 278), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_WRITES = 0o1103  # of the flags of open(2): O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
# Allowed where some bits of an argument are so: numbers, which argument, which bits, and what they have to be.
_CHECKED = {
    "open": ((2, None), 1, _WRITES, 0),
    "openat": ((257, 56), 2, _WRITES, 0),
    "fcntl": ((72, 25), 1, 0xFFFFFBF8, 0),  # for mmap; not F_SETOWN and F_SETSIG, by which signals go to others
}
_CLONE3 = 435  # the C library takes clone(2), which is refused, where this one is not known


def confine() -> None:
    """From here on this process reads files, computes and answers, and does nothing else.

    Raises OSError where that cannot be had.
    """
    if os.uname().machine not in _MACHINES:
        raise OSError(f"no filter of system calls is known for {os.uname().machine}")
    architecture, column = _MACHINES[os.uname().machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for numbers in _CALLS.values():
        if numbers[column] is not None:
            steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    for numbers, argument, bits, value in _CHECKED.values():
        if numbers[column] is not None:
            steps += [(_EQUAL, 0, 5, numbers[column]), (_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, bits)]
            steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS), (_RETURN, 0, 0, _EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _call("capset", struct.pack("<Ii", _CAPABILITIES, 0), bytes(24))  # root is nobody in particular from here on
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", _SECCOMP, _FILTER, ctypes.addressof(program), 0, 0)


def _call(name: str, *arguments: int | bytes) -> None:
    """A function of the C library that returns 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def open_pipes(folder: Path) -> tuple[int, int]:
    """Wait for the scorer's pipes, open them (requests to read, replies to write), and take their names away."""
    deadline = time.monotonic() + START_TIMEOUT
    while not (folder / "requests").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the scorer did not start")
        time.sleep(0.01)
    requests = os.open(folder / "requests", os.O_RDONLY)  # returns when the scorer opens its end
    replies = os.open(folder / "replies", os.O_WRONLY)
    for name in ("requests", "replies"):
        (folder / name).unlink()
    return requests, replies


def serve(prepare: Callable[[], Answer]) -> int:
    """Answer the scorer until it closes its end; `prepare` imports the edited code, in the child."""
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    try:
        requests, replies = open_pipes(folder)
    except (OSError, TimeoutError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 1
    files = os.open(folder / "inputs.bin", os.O_RDONLY), os.open(folder / "outputs.bin", os.O_RDWR)
    _call("prctl", _DUMPABLE, 0, 0, 0, 0)
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for handle in (requests, replies, ask, answered):
            os.close(handle)
        confine()
        _work(prepare, asked, answer, *files)
        return 0
    os.close(asked)
    os.close(answer)
    try:
        return _pass_on(child, requests, replies, ask, answered)
    except BrokenPipeError:  # the scorer has ended: so do we
        return 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _work(prepare: Callable[[], Answer], asked: int, answer: int, inputs: int, outputs: int) -> None:
    """The child: the only process that edited code runs in."""
    work = prepare()
    while len(record := os.read(asked, REQUEST.size)) == REQUEST.size:
        number, size = REQUEST.unpack(record)
        given = work(inputs, outputs, size) if number else 0
        os.write(answer, REQUEST.pack(number, given))


def _pass_on(child: int, requests: int, replies: int, ask: int, answered: int) -> int:
    """The parent: requests to the child, its answers to the scorer, with the time that they took."""
    clock = (~child << 3) | 2  # the processor clock of a process: clock_getcpuclockid(3)
    waiting = select.poll()
    waiting.register(answered, select.POLLIN)
    waiting.register(requests, 0)  # its end
    before = time.clock_gettime_ns(clock)
    while len(record := os.read(requests, REQUEST.size)) == REQUEST.size:
        os.write(ask, record)
        waiting.poll()
        said = os.read(answered, REQUEST.size) if answered in dict(waiting.poll(0)) else b""
        if len(said) != REQUEST.size:
            return 1  # the child has ended, which its own output explains, or the scorer has
        after = time.clock_gettime_ns(clock)
        os.write(replies, REPLY.pack(*REQUEST.unpack(said), after - before))
        before = after
    return 0

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

import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from system_calls import COMPUTING, ON_FILES, READING, allow_only, libc

REQUEST, REPLY = struct.Struct("<2q"), struct.Struct("<3q")
START_TIMEOUT = 120.0  # seconds that the scorer may take before it makes its pipes

Answer = Callable[[int, int, int], int]
"""Descriptors of inputs and outputs and the bytes that lie in inputs; gives the bytes that lie in outputs."""

_DUMPABLE = 4  # prctl(2)
_CAPABILITIES = 0x20080522  # version 3 of capset(2)
_CALLS = {
    "pwrite64": (18, 68), "ftruncate": (77, 46), "getppid": (110, 173), "setitimer": (38, 103), "time": (201, None),
}  # fmt: skip
# Of fcntl(2) what mmap wants; not F_SETOWN and F_SETSIG, by which signals go to others.
_OWN_FILES = {"fcntl": ((72, 25), 1, 0xFFFFFBF8, 0)}


def confine() -> None:
    """From here on this process reads files, computes and answers, and does nothing else.

    Raises OSError where that cannot be had.
    """
    libc("capset", struct.pack("<Ii", _CAPABILITIES, 0), bytes(24))  # root is nobody in particular from here on
    allow_only(COMPUTING | ON_FILES | _CALLS, READING | _OWN_FILES)


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
    libc("prctl", _DUMPABLE, 0, 0, 0, 0)
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

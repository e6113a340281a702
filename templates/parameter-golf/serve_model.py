"""The model process of the evaluation: runs the artifact where no file can be opened, answers with logits. Protected.

It takes the artifact, a program and its weights, from the scorer (`evaluate.py`), which has measured just these bytes.
Before a line of that program runs, the modules that it imports are imported, and a filter of system calls is laid over
the process that cannot be taken off: memory, clocks and two pipes to its parent are all that is left. So the model is
what was measured and nothing else: no file beside it, no training text, no name or time of a file.

Nor can it learn from the text that it is asked about. Every batch is answered by a process of its own, forked from one
that never runs the artifact, and ended with all that it knows; its answer lies in memory that it shares with its parent
alone. On a GPU, where each such process needs a context of its own, one answers GROUP batches.

Protocol, in the folder `$AUTORESEARCHD_EXCHANGE_DIR`. The scorer makes:

* `model.py`, `weights.bin`: the artifact.
* `inputs.bin`, `outputs.bin`: bytes uint8 (B, T), logits float32 (B, T, 256), C order; read and written by `pread` and
  `pwrite`, so that a file cut short by the other side is a short read and not a fatal signal.
* `requests`, `replies`: named pipes. A request is `<3i`: number, B, T; the reply repeats the number and gives B, T as
  the model did.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import mmap
import os
import select
import signal
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORD = struct.Struct("<3i")
PEER_TIMEOUT = 600.0  # seconds without a word from the scorer, or from edited code
GROUP = 16  # batches that one process answers on a GPU
MOST_SAID = 1 << 20  # bytes that edited code may print
SYMBOLS = 256
LIBRARIES = frozenset({"torch", "numpy"})  # that an artifact may import beside the standard library
UNWANTED = frozenset({"sympy", "networkx"})  # their sources are training text
NEVER = frozenset({"antigravity", "this", "idlelib", "turtledemo", "tkinter", "turtle", "test", "pydoc_data"})

_DEATH_SIGNAL, _SECCOMP, _NO_NEW_PRIVILEGES = 1, 22, 38  # prctl(2)
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # bpf(2)
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, which of the two numbers below
_CALLS = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80), "poll": (7, None), "ppoll": (271, 73),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getcpu": (309, 168), "membarrier": (324, 283), "rseq": (334, 293), "set_robust_list": (273, 99),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "tgkill": (234, 131), "getpid": (39, 172), "gettid": (186, 178),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "times": (100, 153), "getrusage": (98, 165), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_CALLS_OF_CUDA = {"ioctl": (16, 29), "clone": (56, 220), "eventfd2": (290, 19), "fcntl": (72, 25)}

Answer = Callable[[bytes, tuple[int, int]], tuple[tuple[int, ...], Any]]
"""From the bytes of a batch (B, T) to the shape of its logits and their buffer."""


def fail(message: str) -> int:
    """Say what is wrong, in one line."""
    print(f"serve_model.py: {message}", file=sys.stderr, flush=True)
    return 1


def open_pipes(folder: Path) -> tuple[int, int]:
    """Wait for the scorer's pipes and open them: requests to read, replies to write."""
    deadline = time.monotonic() + PEER_TIMEOUT
    while True:
        try:
            requests = os.open(folder / "requests", os.O_RDONLY | os.O_NONBLOCK)
            break
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise TimeoutError("the scorer did not start") from None
            time.sleep(0.01)
    # The scorer holds the reading end before it publishes the pipes, so this does not wait.
    return requests, os.open(folder / "replies", os.O_WRONLY | os.O_NONBLOCK)


def import_for(code: bytes) -> None:
    """Import what a program imports, of the standard library and LIBRARIES: later no module can be loaded."""
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for name in sorted(wanted):
        root = name.split(".", 1)[0]
        if root in LIBRARIES or (root in sys.stdlib_module_names and root not in NEVER):
            try:
                importlib.import_module(name)
            except ImportError:  # not a module but a name in one, or not there: the program will see
                continue
    found = sorted(UNWANTED & {name.split(".", 1)[0] for name in sys.modules})
    if found:
        raise ImportError(f"what model.py imports brings {', '.join(found)}, whose sources are training text")


def _control(*arguments: int) -> None:
    """prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*(ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:5])):
        raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")


def confine(cuda: bool) -> None:
    """From here on this process opens no file and asks nothing of one by its name.

    Raises OSError where that cannot be had.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(f"no filter of system calls is known for {machine}")
    architecture, column = _MACHINES[machine]
    calls = {**_CALLS, **(_CALLS_OF_CUDA if cuda else {})}
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for numbers in calls.values():
        if numbers[column] is not None:
            steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _EPERM))
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _control(_NO_NEW_PRIVILEGES, 1)
    _control(_SECCOMP, 2, ctypes.addressof(program))


def warm_up(torch: Any, device: Any) -> None:
    """Let torch open what it opens at its first steps."""
    functional = torch.nn.functional
    x = torch.randn(2, 2, 8, 16, device=device)
    y = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    y = functional.rms_norm(torch.nn.Linear(16, 16, device=device)(y), (16,))
    functional.softmax(y @ y.mT, -1).cpu().numpy()


def load(code: bytes, weights: bytes, device: Any) -> Any:
    """The model that the artifact describes."""
    module = types.ModuleType("model")
    sys.modules["model"] = module  # dataclasses look their module up
    exec(compile(code, "model.py", "exec"), module.__dict__)
    return module.load_model(weights, device)


class Child:
    """A process that runs edited code for some batches, and then is gone with all that it knows.

    load: makes the model, in the child; shape: (B, T) of a batch; peer: a pipe that hangs up when nobody
    wants the answer any more.
    """

    def __init__(self, load: Callable[[], Answer], shape: tuple[int, int], peer: int) -> None:
        self.shape, self.peer, self.answered, self.heard = shape, peer, 0, 0
        rows, length = shape
        self.inputs = mmap.mmap(-1, rows * length)  # both are new, and of this child and its parent alone
        self.outputs = mmap.mmap(-1, rows * length * SYMBOLS * 4)
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        self.said, said = os.pipe()  # not this process's own output: in a file the next child could read it
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(load, requests, replies, said)
        for pipe in (requests, replies, said):
            os.close(pipe)
        os.set_blocking(self.said, False)

    def _live(self, load: Callable[[], Answer], requests: int, replies: int, said: int) -> None:
        """The child: never returns."""
        status = 1
        try:
            _control(_DEATH_SIGNAL, signal.SIGKILL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, pipe in enumerate((nothing, said, said)):
                os.dup2(pipe, number)
            first, second = sorted((requests, replies))
            for low, high in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(low, high)
            answer = load()
            while len(record := os.read(requests, RECORD.size)) == RECORD.size:
                number, *_ = RECORD.unpack(record)
                shape, data = answer(bytes(self.inputs), self.shape)
                if shape == (*self.shape, SYMBOLS):
                    self.outputs[:] = data
                os.write(replies, RECORD.pack(number, *(shape[:2] if shape[2:] == (SYMBOLS,) else (0, 0))))
            status = 0
        except BaseException:  # noqa: BLE001  # whatever edited code raises: the child must not return
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(status)

    def ask(self, record: bytes, batch: bytes) -> bytes:
        """The reply to a request; empty where the child has ended. Raises BrokenPipeError, TimeoutError."""
        self.inputs[:] = batch
        poller = select.poll()
        for pipe, events in ((self.replies, select.POLLIN), (self.said, select.POLLIN), (self.peer, 0)):
            poller.register(pipe, events)
        try:
            os.write(self.requests, record)
        except BrokenPipeError:
            return b""
        self.answered += 1
        while ready := dict(poller.poll(PEER_TIMEOUT * 1000)):
            if self.said in ready and not self.relay():
                poller.unregister(self.said)
            if self.peer in ready:
                raise BrokenPipeError
            if self.replies in ready:
                reply = os.read(self.replies, RECORD.size)
                return reply if len(reply) == RECORD.size else b""
        raise TimeoutError(f"no answer for {PEER_TIMEOUT:.0f} s")

    def relay(self) -> bool:
        """Pass on what the child has said; False once it can say no more."""
        while True:
            try:
                words = os.read(self.said, 1 << 16)
            except BlockingIOError:
                return True
            if not words:
                return False
            room = max(0, MOST_SAID - self.heard)
            self.heard += len(words)
            if room:
                sys.stderr.buffer.write(words[:room])
                sys.stderr.flush()

    def end(self) -> int:
        """End it; its exit status, negative where a signal ended it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.relay()
        for pipe in (self.requests, self.replies, self.said):
            os.close(pipe)
        return status


def serve(folder: Path, pipes: tuple[int, int], load: Callable[[], Answer], group: int = 1) -> int:
    """Serve until the scorer closes its end; each child answers ``group`` batches."""
    requests, replies = pipes
    inputs, outputs = os.open(folder / "inputs.bin", os.O_RDONLY), os.open(folder / "outputs.bin", os.O_WRONLY)
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    child: Child | None = None
    try:
        while True:
            if not poller.poll(PEER_TIMEOUT * 1000):
                raise TimeoutError(f"no request for {PEER_TIMEOUT:.0f} s")
            record = os.read(requests, RECORD.size)  # records are shorter than PIPE_BUF: they arrive whole
            if len(record) != RECORD.size:
                return 0
            _, rows, length = RECORD.unpack(record)
            if child is None:
                child = Child(load, (rows, length), requests)
            raw = os.pread(inputs, len(child.inputs), 0)
            reply = child.ask(record, raw)
            last = child.answered >= group
            if not reply or last:
                status = child.end()
                if not reply:
                    return fail(f"the process of the model ended: exit status {status}")
            if RECORD.unpack(reply)[1:] == child.shape:
                data, at = memoryview(child.outputs), 0
                while data:
                    written = os.pwrite(outputs, data, at)
                    data, at = data[written:], at + written
            os.write(replies, reply)
            if last:  # the next one loads while this answer is scored
                child = Child(load, child.shape, requests)
    finally:
        if child is not None:
            with contextlib.suppress(OSError):
                child.end()


def loader(torch: Any, code: bytes, weights: bytes, cuda: bool) -> Callable[[], Answer]:
    """What a child does first: confine itself, then run the artifact."""

    def make() -> Answer:
        device = torch.device("cuda" if cuda else "cpu")
        with torch.inference_mode():
            warm_up(torch, device)
        confine(cuda)
        model = load(code, weights, device)

        def answer(raw: bytes, shape: tuple[int, int]) -> tuple[tuple[int, ...], Any]:
            with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
                logits = model(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape).long().to(device))
                found = tuple(logits.shape)
                if found != (*shape, SYMBOLS):
                    return found, b""
                return found, memoryview(logits.detach().float().cpu().contiguous().view(-1).numpy()).cast("B")

        return answer

    return make


def main() -> int:
    """Serve until the scorer closes its end."""
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    try:
        pipes = open_pipes(folder)  # first of all: if this process dies from here on, the scorer sees it
    except (OSError, TimeoutError) as error:
        return fail(str(error))
    code, weights = (folder / "model.py").read_bytes(), (folder / "weights.bin").read_bytes()
    import torch

    # Not `torch.cuda.is_available`: where it has been asked, no process forked from this one can use the GPU.
    here = torch.backends.cuda.is_built() and Path("/dev/nvidiactl").exists()
    cuda = os.environ.get("AUTORESEARCHD_PROFILE", "cuda" if here else "cpu") == "cuda"
    try:
        import_for(code)
    except (ImportError, SyntaxError, ValueError) as error:
        return fail(str(error))
    return serve(folder, pipes, loader(torch, code, weights, cuda), GROUP if cuda else 1)


if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:  # the scorer has ended: so do we
        status = 0
    except (TimeoutError, OSError) as problem:
        status = fail(str(problem))
    sys.exit(status)

"""How a model process answers the scorer: each batch by a process of its own, behind a filter of calls. Protected.

It runs in the experiment's workspace, beside the edited program, in a sandbox of its own that holds nothing that the
answers could be read from. All that leaves it are logits: the scorer never runs a line of edited code, and nothing that
the edited code patches here can touch the score.

Nor can a model learn from what it is asked. Every batch is answered by a process of its own, and ended with all that it
knows. It inherits the memory of its parent, a broker that has not seen a batch yet, is there for this one alone, and is
forked in turn from a process that never sees any. What a task has it do first (`load`) lays a filter of system calls
over it that cannot be taken off (`confine`), then makes the model. Its answer lies in memory that it shares with its
parent alone. On a GPU, where each such process needs a context of its own, one process answers GROUP batches.

Protocol, in the folder `$AUTORESEARCHD_EXCHANGE_DIR` (on /dev/shm, bound into both sandboxes). The scorer makes:

* `inputs.bin`, `outputs.bin`: `slots` equal parts each; symbols (B, T), logits float32 (B, T, V), C order.
  They lie in shared memory but are read and written by `pread`/`pwrite`, so that a file cut short by the other side
  is a short read and not a fatal signal.
* `requests`, `replies`: named pipes. A request is `<6i`: number, slot, B, T, V, slots; the reply repeats number and
  slot and adds B, T, V as the model gave them, and 0.

With the first request all four lose their names, so that edited code finds none. Either side may start first, and each
ends when the other does.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from system_calls import COMPUTING, ON_FILES, READING, allow_only, libc

RECORD = struct.Struct("<6i")
_SHAPE = struct.Struct("<3i")
_OVER = 75  # exit status of a broker that is asked no more
PEER_TIMEOUT = 600.0  # seconds without a word from the scorer, or from edited code
GROUP = 16  # batches that one process answers on a GPU
MOST_SAID = 1 << 20  # bytes that edited code may print

Answer = Callable[[bytes, tuple[int, int, int]], tuple[tuple[int, ...], Any]]
"""From the bytes of a batch and the shape (B, T, V) of its logits to the shape that they have, and their buffer."""

_DEATH_SIGNAL, _DUMPABLE = 1, 4  # prctl(2)
_CALLS_OF_CUDA = {"ioctl": (16, 29), "clone": (56, 220), "eventfd2": (290, 19), "fcntl": (72, 25)}
_THREAD = 0x10000  # of the flags of clone(2): CLONE_THREAD
_STARTING_THREADS = {"clone": ((56, 220), 0, _THREAD, _THREAD)}


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


def confine(*, files: bool = True, cuda: bool = False) -> None:
    """From here on this process creates and writes nothing that another one could read, and starts none.

    files: it may read files and start threads; without, it opens no file and asks nothing of one by its name.
    Raises OSError where that cannot be had.
    """
    calls = COMPUTING | (ON_FILES if files else {}) | (_CALLS_OF_CUDA if cuda else {})
    own = {"tgkill": ((234, 131), 0, 0xFFFFFFFF, os.getpid())}
    allow_only(calls, {**own, **(READING | _STARTING_THREADS if files else {})})


class Child:
    """A process that runs edited code for some batches, and then is gone with all that it knows.

    load: makes the model, in the child; shape: (B, T, V) of a batch's logits; symbol: bytes of an input symbol;
    peer: a pipe that hangs up when nobody wants the answer any more.
    """

    def __init__(self, load: Callable[[], Answer], shape: tuple[int, int, int], symbol: int, peer: int) -> None:
        self.shape, self.peer, self.answered, self.heard = shape, peer, 0, 0
        rows, length, vocab = shape
        self.inputs = mmap.mmap(-1, rows * length * symbol)  # both are new, and of this child and its parent alone
        self.outputs = mmap.mmap(-1, rows * length * vocab * 4)
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
            libc("prctl", _DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, pipe in enumerate((nothing, said, said)):
                os.dup2(pipe, number)
            first, second = sorted((requests, replies))
            for low, high in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(low, high)
            answer = load()
            while len(record := os.read(requests, RECORD.size)) == RECORD.size:
                number, slot, *_ = RECORD.unpack(record)
                shape, data = answer(bytes(self.inputs), self.shape)
                if shape == self.shape:
                    self.outputs[:] = data
                os.write(replies, RECORD.pack(number, slot, *(shape if len(shape) == 3 else (0, 0, 0)), 0))
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


def serve(folder: Path, pipes: tuple[int, int], load: Callable[[], Answer], *, group: int = 1, symbol: int = 4) -> int:
    """Serve until the scorer closes its end. Each child answers ``group`` batches; symbol: bytes of an input symbol."""
    files = os.open(folder / "inputs.bin", os.O_RDONLY), os.open(folder / "outputs.bin", os.O_WRONLY)
    # Else a child could open what this process has open, through /proc: the batches and answers of the others.
    libc("prctl", _DUMPABLE, 0, 0, 0, 0)
    shape, status = b"", 0
    while status == 0:  # this process must never see a batch: a child inherits what its ancestors know
        known, tell = os.pipe()
        broker = os.fork()
        if broker == 0:
            os.close(known)
            os._exit(_broke(folder, pipes, files, load, shape, tell, group, symbol))
        os.close(tell)
        shape = os.read(known, _SHAPE.size) or shape
        os.close(known)
        status = os.waitstatus_to_exitcode(os.waitpid(broker, 0)[1])
    return 0 if status == _OVER else status


def _broke(
    folder: Path, pipes: tuple[int, int], files: tuple[int, int], load: Callable[[], Answer],
    shape: bytes, tell: int, group: int, symbol: int,
) -> int:  # fmt: skip
    """The broker of a child: 0 once this has answered its batches, _OVER where no more is asked, else 1.

    shape: of a batch's logits, where it is known; tell: takes it.
    """
    (requests, replies), (inputs, outputs), child = pipes, files, None
    try:
        libc("prctl", _DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if shape:
            child = Child(load, _SHAPE.unpack(shape), symbol, requests)
        poller = select.poll()
        poller.register(requests, select.POLLIN)
        while child is None or child.answered < group:
            if not poller.poll(PEER_TIMEOUT * 1000):
                raise TimeoutError(f"no request for {PEER_TIMEOUT:.0f} s")
            try:
                record = os.read(requests, RECORD.size)  # records are shorter than PIPE_BUF: they arrive whole
            except BlockingIOError:  # poll(2) may take a pipe that is being opened for ended
                continue
            if len(record) != RECORD.size:
                return _OVER
            _, slot, *asked, _ = RECORD.unpack(record)
            if child is None:  # the first one: the scorer has opened all that it needs by its name
                for name in ("requests", "replies", "inputs.bin", "outputs.bin"):
                    (folder / name).unlink(missing_ok=True)
                os.write(tell, _SHAPE.pack(*asked))
                child = Child(load, tuple(asked), symbol, requests)
            reply = child.ask(record, os.pread(inputs, len(child.inputs), slot * len(child.inputs)))
            if not reply:
                return fail(f"the process of the model ended: exit status {child.end()}")
            if tuple(RECORD.unpack(reply)[2:5]) == child.shape:
                data, at = memoryview(child.outputs), slot * len(child.outputs)
                while data:
                    written = os.pwrite(outputs, data, at)
                    data, at = data[written:], at + written
            if child.answered == group:
                child.end()
            os.write(replies, reply)
        return 0
    except BrokenPipeError:  # the scorer has ended: so do we
        return _OVER
    except (TimeoutError, OSError, ValueError) as problem:
        return fail(str(problem))
    finally:
        if child is not None:
            with contextlib.suppress(OSError):
                child.end()


def unsafe(torch: Any, checkpoint: Path) -> str:
    """Why nobody should load a checkpoint; empty for tensors and plain values.

    A pickle can run code in whoever loads it. It could do no harm in here, but a kept checkpoint outlives the run.
    """
    with checkpoint.open("rb") as file:
        pickled = file.read(2)[:1] in (b"P", b"\x80")  # a zip as torch.save writes it, or a bare pickle
    if pickled:
        try:
            torch.load(checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001  # whatever a broken or hostile file does to the loader
            return f"checkpoint.pt holds more than tensors and plain values: {str(error).splitlines()[0][:200]}"
    return ""


def answer_with(torch: Any, model: Any, device: Any, symbols: Any) -> Answer:
    """What answers with a torch model. symbols: the torch type of an input symbol."""

    def answer(raw: bytes, shape: tuple[int, int, int]) -> tuple[tuple[int, ...], Any]:
        cuda = device.type == "cuda"
        with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            logits = model(torch.frombuffer(bytearray(raw), dtype=symbols).view(shape[:2]).long().to(device))
            found = tuple(logits.shape)
            if found != shape:
                return found, b""
            return found, memoryview(logits.detach().float().cpu().contiguous().view(-1).numpy()).cast("B")

    return answer


def from_checkpoint(symbols: str) -> Callable[[Path], tuple[Callable[[], Answer], bool]]:
    """How `run` prepares to serve the model of a `checkpoint.pt`. symbols: the torch type of an input symbol.

    A child imports the edited `train` and loads the checkpoint through `train.load_model`, after a filter of system
    calls has been laid over it: it may read files, compute and start threads, no more. On a GPU, whose drivers want
    more, there is no filter.
    """

    def prepare(_: Path) -> tuple[Callable[[], Answer], bool]:
        checkpoint = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]).resolve() / "checkpoint.pt"
        import torch

        problem = unsafe(torch, checkpoint)
        if problem:
            raise ValueError(problem)
        cuda = on_cuda(torch)

        def load() -> Answer:
            if not cuda:
                confine()
            import train

            device = torch.device("cuda" if cuda else "cpu")
            return answer_with(torch, train.load_model(checkpoint, device), device, getattr(torch, symbols))

        return load, cuda

    return prepare


def on_cuda(torch: Any) -> bool:
    """Whether the model runs on a GPU.

    Not `torch.cuda.is_available`: where it has been asked, no process forked from this one can use the GPU.
    """
    here = torch.backends.cuda.is_built() and Path("/dev/nvidiactl").exists()
    return os.environ.get("AUTORESEARCHD_PROFILE", "cuda" if here else "cpu") == "cuda"


def run(prepare: Callable[[Path], tuple[Callable[[], Answer], bool]], symbol: int) -> int:
    """Serve until the scorer closes its end.

    prepare: from the exchange folder to what a child does first (it confines itself, then runs edited code) and whether
    on a GPU; ValueError where there is nothing to serve. symbol: bytes of an input symbol.
    """
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    try:
        pipes = open_pipes(folder)  # first of all: if this process dies from here on, the scorer sees it
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # threads that wait on a shared machine must not burn its cores
        load, cuda = prepare(folder)
        return serve(folder, pipes, load, group=GROUP if cuda else 1, symbol=symbol)
    except BrokenPipeError:  # the scorer has ended: so do we
        return 0
    except (TimeoutError, OSError, ValueError) as problem:
        return fail(str(problem))

"""The model process of the evaluation: runs the artifact where no file can be opened, answers with logits. Protected.

It takes the artifact, a program and its weights, from the scorer (`evaluate.py`), which has measured just these bytes.
Before a line of that program runs, the modules that it imports are imported, and a filter of system calls is laid over
this process that cannot be taken off: memory, clocks and the files that are open by then are all that is left. So the
model is what was measured and nothing else: no file beside it, no training text, no name or time of a file.

Protocol, in the folder `$AUTORESEARCHD_EXCHANGE_DIR`. The scorer makes:

* `model.py`, `weights.bin`: the artifact.
* `inputs.bin`, `outputs.bin`: bytes uint8 (B, T), logits float32 (B, T, 256), C order; read and written by `pread` and
  `pwrite`, so that a file cut short by the other side is a short read and not a fatal signal.
* `requests`, `replies`: named pipes. A request is `<3i`: number, B, T; the reply repeats the number and gives B, T as
  the model did.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import os
import select
import struct
import sys
import time
import types
from pathlib import Path
from typing import Any

RECORD = struct.Struct("<3i")
PEER_TIMEOUT = 600.0  # seconds without a word from the scorer
SYMBOLS = 256
LIBRARIES = frozenset({"torch", "numpy"})  # that an artifact may import beside the standard library
UNWANTED = frozenset({"sympy", "networkx"})  # their sources are training text
NEVER = frozenset({"antigravity", "this", "idlelib", "turtledemo", "tkinter", "turtle", "test", "pydoc_data"})

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # prctl(2)
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
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.addressof(program), 0, 0)):
        if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)):
            raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")


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


def main() -> int:
    """Serve until the scorer closes its end."""
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    try:
        requests, replies = open_pipes(folder)  # first of all: if this process dies from here on, the scorer sees it
    except (OSError, TimeoutError) as error:
        return fail(str(error))
    inputs, outputs = (os.open(folder / name, how) for name, how in (("inputs.bin", os.O_RDONLY), ("outputs.bin", 1)))
    code, weights = (folder / "model.py").read_bytes(), (folder / "weights.bin").read_bytes()
    import torch

    cuda = os.environ.get("AUTORESEARCHD_PROFILE", "cuda" if torch.cuda.is_available() else "cpu") == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    try:
        import_for(code)
        with torch.inference_mode():
            warm_up(torch, device)
        confine(cuda)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        return fail(str(error))
    model = load(code, weights, device)
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        while True:
            if not poller.poll(PEER_TIMEOUT * 1000):
                return fail(f"no request for {PEER_TIMEOUT:.0f} s")
            record = os.read(requests, RECORD.size)  # records are shorter than PIPE_BUF: they arrive whole
            if len(record) != RECORD.size:
                return 0
            number, rows, length = RECORD.unpack(record)
            raw = os.pread(inputs, rows * length, 0)
            logits = model(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(rows, length).long().to(device))
            shape = tuple(logits.shape)
            if shape == (rows, length, SYMBOLS):
                data, at = memoryview(logits.detach().float().cpu().contiguous().view(-1).numpy()).cast("B"), 0
                while at < len(data):
                    at += os.pwrite(outputs, data[at:], at)
            os.write(replies, RECORD.pack(number, *(shape[:2] if shape[2:] == (SYMBOLS,) else (0, 0))))


if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:  # the scorer has ended: so do we
        status = 0
    sys.exit(status)

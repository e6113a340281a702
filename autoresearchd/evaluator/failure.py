"""Why a job failed, read from the end of its log: memory, a loss that is not a number, or an error and its words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.text import as_lines, shorten

MAX_DETAIL = 300

_TAIL_CHARS = 64 * 1024
_TAIL_LINES = 200
_LINE = 1000

_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|MPS backend|XPU) out of memory|OutOfMemoryError|\bMemoryError\b|RESOURCE_EXHAUSTED"
    r"|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (?:can't|not enough)|[Cc]annot allocate memory|std::bad_alloc"
)
# karpathy/autoresearch prints FAIL behind its progress line, which has no line end, when the loss is NaN or above 100.
_LOSS_FAIL = re.compile(
    r"(?:^|\s)FAIL\s*$"
    r"|(?i:\bloss\b[^\w\n]{0,4}(?:is |became )?[-+]?(?:nan|inf|infinity)\b)"
    r"|(?i:\bnan loss\b)"
)
_EXCEPTION = re.compile(
    r"^(?:\S.{0,200}\s)?((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}"
    r"(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Timeout)(?::.*)?)$"
)
_FRAME = re.compile(r'^\s*File "([^"\n]{1,400})", line ([0-9]{1,9})')
_MISSING = re.compile(
    r"(?i:no such file|not found|permission denied|does not exist|cannot open|can't open|FileNotFound)"
)
_NAMED_PATH = re.compile(
    r"""['"]([^'"\n]{1,400})['"]|(?<![\w/.~-])([\w.~-]{0,100}(?:/[\w.@+=-]{1,100}){1,30}|[\w-]{1,100}\.\w{1,8})"""
)
_NO_MODULE = re.compile(r"No module named '([\w.]{1,100})'")
_READ_ONLY = re.compile(r"Read-only file system|\bEROFS\b|\[Errno 30\]|PermissionError|\[Errno 13\]")
_SIMPLE = re.compile(
    r"(?:^|[:.\s])(?:Syntax|Indentation|Tab|Name|UnboundLocal|Import|ModuleNotFound|Attribute|Type|Value|Index|Key"
    r"|Assertion|NotImplemented|ZeroDivision)Error\b"
)
_TORCH = re.compile(r"\bRuntimeError\b")
_SHAPE = re.compile(
    r"(?i:\bshapes?\b|\bsizes?\b|\bdimensions?\b|\bdims?\b|\bdtype|\bscalar type|\bmat1\b|\bexpected\b"
    r"|\bgrad\b|in-?place)"
)
_SIGNALS = {
    4: "illegal instruction",
    6: "aborted",
    7: "bus error",
    8: "arithmetic fault",
    9: "killed",
    11: "segmentation fault",
    15: "terminated",
}
_KILL = 9


def diagnose(log: str, exit_code: int | None, *, diverged: bool = False) -> tuple[Label, str]:
    """Label and detail of a job that failed without the executor knowing why.

    Args:
        log: what the job printed.
        exit_code: 0…255, or −signal; None when it was never started.
        diverged: the last loss in the log was not finite.
    """
    lines = last_lines(log)
    words = last_words(lines)
    out_of_memory = next((line for line in reversed(lines[-60:]) if _OUT_OF_MEMORY.search(line)), None)
    if out_of_memory is not None:
        return Label.OOM, shorten(out_of_memory, MAX_DETAIL)
    if signal_of(exit_code) == _KILL:
        return Label.OOM, "killed by the system (signal 9), most often for want of memory"
    if any(_LOSS_FAIL.search(line) for line in lines[-20:]):
        return Label.NAN_LOSS, "the loss became NaN, infinite or too large"
    if diverged:
        return Label.NAN_LOSS, "the loss was not finite at the end" + (f"; {words}" if words else "")
    return Label.ERROR, words or "nothing was printed"


def is_simple(detail: str) -> bool:
    """Whether a failure is of the kind that its author mends at once: a name, an import, a type, a shape.

    detail: of the run (``training exited with 1: NameError: …``). Failures of memory and time are none: they are what
    the idea was worth.
    """
    return bool(_SIMPLE.search(detail) or (_TORCH.search(detail) and _SHAPE.search(detail)))


def missing_paths(detail: str) -> list[str]:
    """Paths that a failure calls missing (``No such file or directory: 'data/d.csv'``), in the order of its words."""
    if not _MISSING.search(detail):
        return []
    found = [quoted or plain for quoted, plain in _NAMED_PATH.findall(detail[:4000])]
    return list(dict.fromkeys(path for path in found if path.strip(".")))


def missing_module(detail: str) -> str:
    """The module that a program could not import, empty when that was not what failed."""
    found = _NO_MODULE.search(detail)
    return found[1] if found else ""


def is_read_only(detail: str) -> bool:
    """Whether a program failed because it wrote where a job may not."""
    return bool(_READ_ONLY.search(detail))


def how_it_ended(exit_code: int | None) -> str:
    """``exited with 1``, ``ended by signal 11 (segmentation fault)``, ``was never started``."""
    if exit_code is None:
        return "was never started"
    signal = signal_of(exit_code)
    if signal is None:
        return f"exited with {exit_code}"
    return f"ended by signal {signal} ({_SIGNALS[signal]})" if signal in _SIGNALS else f"ended by signal {signal}"


def signal_of(exit_code: int | None) -> int | None:
    """The signal that ended a process: −n, or 128 + n as a shell reports it."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code - 128 in _SIGNALS else None


def last_lines(log: str) -> list[str]:
    """The last lines of a log that are not empty, each cut to a bounded length; of a rewritten line what stood last."""
    lines = (line[-_LINE:].rstrip() for line in as_lines(log[-_TAIL_CHARS:]).split("\n"))
    return [line for line in lines if line.strip()][-_TAIL_LINES:]


def last_words(lines: Sequence[str]) -> str:
    """The exception that ended a Python program, with its place, else the last line; empty when there is none."""
    for index in range(len(lines) - 1, -1, -1):
        match = _EXCEPTION.match(lines[index])
        if match:
            place = _place(lines[:index])
            return shorten(match[1], MAX_DETAIL - len(place)) + place
    return shorten(lines[-1], MAX_DETAIL) if lines else ""


def _place(before: Sequence[str]) -> str:
    """`` (train.py:12)``: the innermost frame of the traceback outside of installed libraries, else the innermost."""
    frames = []
    for line in reversed(before):
        match = _FRAME.match(line)
        if match:
            frames.append(match)
        elif line.startswith("Traceback"):
            break
    own = [
        f for f in frames if "/site-packages/" not in f[1] and "/lib/python" not in f[1] and not f[1].startswith("<")
    ]
    frame = next(iter(own or frames), None)
    return f" ({shorten(PurePosixPath(frame[1]).name, 60)}:{frame[2]})" if frame else ""

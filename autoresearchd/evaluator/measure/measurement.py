"""What a run gave: one label with its words, and the metric where the label says that it is good.

Everything fails closed. The executor's facts come first, then the exit codes, then what was printed; a number printed
by a run that failed is never a metric. Where the task has an evaluation, only what the evaluation printed can be the
metric or replace a figure that it gave: the job's own words add nothing but further figures (memory, speed) and the
curve. A program that computes its own score could do so on other data: sizes that it prints of its validation set
(``n_val=400``, ``validation rows: 120``) tell.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePosixPath

from autoresearchd.domain.experiment import CurvePoint, Measurement, Run, RunResult, StageResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import SLOWER, WAITS_S, Check, Task
from autoresearchd.evaluator.measure.log_text import (
    CurveParser,
    as_lines,
    example_pattern,
    parse_metrics,
    read_curve,
    shorten,
    to_float,
)

TRAINING = "training"
EVALUATION = "evaluation"
CHECK = "check-"
EVALUATION_FAILED = "the evaluation failed"
"""How the detail of a run begins whose program ended as it should, and whose scorer did not."""

_BY_SHELL = {126: " (its command may not be executed)", 127: " (its command was not found)"}
"""What a shell means by its exit codes."""

_SURROUNDINGS = {
    "killed": (Label.INTERRUPTED, "ended by autoresearchd"),
    "lost": (Label.HOST_LOST, "the process that watched over the run is gone"),
    "disk_full": (Label.DISK_FULL, "no space left on device"),
}
"""What says nothing about the experiment: wherever it happened, the run is done again."""

_LIMITS = {"oom": Label.OOM, "timeout": Label.TIMEOUT, "budget_overrun": Label.BUDGET_OVERRUN}
_VERDICTS = {
    label.value: label for label in (Label.NOT_CAUSAL, Label.METRIC_TAMPERING, Label.SIZE_BLOCKED, Label.GATE_MISS)
}
_VERDICT_LINE = re.compile(r"^LABEL[ \t]{1,8}([a-z_]{1,40})[ \t]{0,8}$", re.MULTILINE)
_HUGE = 1e100
"""No metric is that large, and squares of larger numbers overflow."""


def measure(task: Task, result: RunResult, logs: Mapping[str, str], *, result_file: str | None = None) -> Measurement:
    """Read a finished run, with the text of each stage's log by its name; result_file: what the *job* wrote."""
    curve = read_curve(logs.get(TRAINING, ""), task.curve.pattern, task.execution.budget.training)
    label, detail = _trouble(task, result, logs, curve)
    if label is not Label.NONE:
        said = parse_metrics(logs.get(EVALUATION, ""), task.scoring) if label in _VERDICTS.values() else {}
        # of the task's own further metrics (``causal``), those that an evaluation set to zero when it refused a result
        gates = {name: 0.0 for name in task.scoring.metrics if said.get(name) == 0.0 and name != task.metric.name}
        detail += f": {', '.join(sorted(gates))}" if gates else ""
        return Measurement(label, metrics=gates, detail=detail, curve=curve.points)
    return _metric(task, logs, result_file, curve.points)


# ---------------------------------------------------------------------- did everything end well?
def _trouble(task: Task, result: RunResult, logs: Mapping[str, str], curve: CurveParser) -> tuple[Label, str]:
    """The first thing that went wrong, NONE when nothing did."""
    for stage in result.stages:
        if stage.outcome in _SURROUNDINGS:
            label, meaning = _SURROUNDINGS[stage.outcome]
            return label, f"{stage.name}: {stage.detail or meaning}"
    if not result.stages:
        return Label.HOST_LOST, "the executor started no process"
    for stage in result.stages:
        if stage.outcome != "ok" or stage.exit_code != 0:
            return _failed(task, stage, logs.get(stage.name, ""), curve)
    if result.stage(TRAINING) is None:
        return Label.ERROR, "training was never started"
    if task.evaluation is None:
        return Label.NONE, ""
    if result.stage(EVALUATION) is None:
        return Label.METRIC_MISSING, "the evaluation was never started, and only it gives the metric"
    # An evaluation that names a fault and then exits with 0 has still named a fault.
    return _verdict(logs.get(EVALUATION, "")) or (Label.NONE, "")


def _failed(task: Task, stage: StageResult, log: str, curve: CurveParser) -> tuple[Label, str]:
    """Label and detail of a stage that did not end well."""
    if stage.name.startswith(CHECK):
        return Label.CHECK_FAILED, _failed_check(task, stage, log)
    if stage.outcome in _LIMITS:
        return _LIMITS[stage.outcome], _limit_words(task, stage)
    if stage.outcome == "tampered":
        return Label.METRIC_TAMPERING, f"{stage.name} was not started: {stage.detail}"
    if stage.beyond:  # not as it looks: the signal that ended it says "out of memory"
        return Label.ERROR, f"{stage.name} was ended: {stage.detail}"
    if stage.name == EVALUATION:
        # Nothing of its log goes into the detail: policies read that, and the log may hold validation data.
        said = f"{how_it_ended(stage.exit_code)}{_BY_SHELL.get(stage.exit_code or 0, '')}"
        return _verdict(log) or (Label.ERROR, f"{EVALUATION_FAILED}: it {said}; see {EVALUATION}.log")
    label, words = diagnose(log, stage.exit_code, diverged=curve.diverged)
    if stage.exit_code is None and stage.detail:
        return Label.ERROR, f"{stage.name} was never started: {stage.detail}"
    if stage.exit_code == 0:
        return label, f"{stage.name} failed: {stage.detail or words}"
    return label, f"{stage.name} {how_it_ended(stage.exit_code)}: {words}"


def _failed_check(task: Task, stage: StageResult, log: str) -> str:
    check = {f"{CHECK}{i}": check for i, check in enumerate(task.checks)}.get(stage.name, Check(stage.name))
    what = f"`{shorten(check.command, 120)}`"
    if stage.outcome == "timeout":
        return f"{what} did not end within {check.timeout:g} s"
    return f"{what} {how_it_ended(stage.exit_code)}: {diagnose(log, stage.exit_code)[1]}"


def _limit_words(task: Task, stage: StageResult) -> str:
    budget = task.execution.budget
    if stage.detail:
        return f"{stage.name}: {stage.detail}"
    if stage.outcome == "timeout":
        return f"{stage.name} was stopped after {stage.duration_s:.0f} s: the whole run may take {budget.wall:g} s"
    if stage.outcome == "budget_overrun":
        made_of = f"budget {budget.training:g} s + startup_grace {budget.grace:g} s"
        if budget.most is not None:
            made_of = f"{SLOWER:g} × {budget.most:.3g} s + {WAITS_S:g} s (training_time: baseline)"
        return f"{stage.name} was killed after {budget.limit:.3g} s, its limit: {made_of}"
    limit = task.execution.memory_mb
    return f"{stage.name} needed more memory than " + (f"its {limit} MB" if limit else "there was")


def _verdict(log: str) -> tuple[Label, str] | None:
    """The last ``LABEL <x>`` line of an evaluation with a label that one may give, with its words."""
    named = [m for m in _VERDICT_LINE.findall(as_lines(log[-_TAIL_CHARS:])) if m in _VERDICTS]
    return (_VERDICTS[named[-1]], f"the evaluation says {named[-1]}") if named else None


# ---------------------------------------------------------------------- what did it print?
def _metric(task: Task, logs: Mapping[str, str], result_file: str | None, curve: tuple[CurvePoint, ...]) -> Measurement:
    name, log = task.metric.name, logs.get(TRAINING, "")
    own = parse_metrics(log, task.scoring, result_file=result_file)
    claimed, where = None, TRAINING
    if task.evaluation is not None:
        claimed, where = own.pop(name, None), EVALUATION
        metrics = {**own, **parse_metrics(logs.get(EVALUATION, ""), task.scoring)}
    else:  # who computes its own score can compute it on other data
        metrics = {**sizes(log), **own}
    finite = {k: v for k, v in metrics.items() if abs(v) < _HUGE}  # false of NaN too
    if name not in metrics:
        aside = " (what the job itself printed does not count)" if claimed is not None else ""
        can_name = task.evaluation is None and task.scoring.parse_mode != "regex"
        pattern = example_pattern(log, name) if can_name else ""  # of the job's own line, never of the evaluation's log
        hint = f"; its line can be named in task.yaml: `scoring: {{parse_mode: regex, pattern: '{pattern}'}}`"
        detail = _missing(task, where, metrics) + aside + (hint if pattern else "")
        return Measurement(Label.METRIC_MISSING, metrics=finite, detail=detail, curve=curve)
    if name not in finite:
        beyond = f", and what is beyond {_HUGE:g} counts as infinite" if math.isfinite(metrics[name]) else ""
        detail = f"{name} is {metrics[name]} in {where}.log{beyond}"
        return Measurement(Label.NON_FINITE, metrics=finite, detail=detail, curve=curve)
    return Measurement(Label.NONE, finite[name], finite, curve=curve)


def _missing(task: Task, where: str, metrics: Mapping[str, float]) -> str:
    name, scoring = task.metric.name, task.scoring
    forms = {
        "metric": f"a line `METRIC {name}=<number>`",
        "key_value": f"a line `{name}: <number>`",
        "json": f'a JSON object with the key "{name}"',
        "regex": f"what '{scoring.pattern}' matches",
    }
    wanted = forms.get(scoring.parse_mode, f"`METRIC {name}=<number>`, `{name}: <number>` or JSON")
    places = f"{where}.log" + (f" and {scoring.result_file}" if scoring.result_file and where == TRAINING else "")
    others = ", ".join(sorted(metrics)[:5])
    return f"no {name} in {places}; looked for {wanted}" + (f"; found {others}" if others else "")


MAX_DETAIL = 300
_TAIL_CHARS, _TAIL_LINES, _LINE = 64 * 1024, 200, 1000
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
_FOREIGN = re.compile(r"/site-packages/|/lib/python|^<")
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
_BY_SHELLS = (4, 6, 7, 8, 9, 11, 15)
"""Signals that 128 + n is taken for."""


def diagnose(log: str, exit_code: int | None, *, diverged: bool = False) -> tuple[Label, str]:
    """Label and detail of a job that failed, nobody knows why. diverged: the last loss in its log was not finite."""
    lines = last_lines(log)
    words = last_words(lines)
    out_of_memory = next((line for line in reversed(lines[-60:]) if _OUT_OF_MEMORY.search(line)), None)
    if out_of_memory is not None:
        return Label.OOM, shorten(out_of_memory, MAX_DETAIL)
    if exit_code is not None and _signal_of(exit_code) == signal.SIGKILL:
        return Label.OOM, "killed by the system (signal 9), most often for want of memory"
    if any(_LOSS_FAIL.search(line) for line in lines[-20:]):
        return Label.NAN_LOSS, "the loss became NaN, infinite or too large"
    if diverged:
        return Label.NAN_LOSS, "the loss was not finite at the end" + (f"; {words}" if words else "")
    return Label.ERROR, words or "nothing was printed"


def is_simple(detail: str) -> bool:
    """Whether a failure, by a run's detail, is one that its author fixes at once: a name, an import, a shape."""
    return bool(_SIMPLE.search(detail) or (_TORCH.search(detail) and _SHAPE.search(detail)))


def missing_paths(detail: str) -> list[str]:
    """Paths that a failure calls missing (``No such file or directory: 'data/d.csv'``), in the order of its words."""
    if not _MISSING.search(detail):
        return []
    found = [quoted or plain for quoted, plain in _NAMED_PATH.findall(detail[:4000])]
    return list(dict.fromkeys(path for path in found if path.strip(".")))


def missing_module(detail: str) -> str:
    """The module that a program could not import, empty when that was not what failed."""
    named = _NO_MODULE.search(detail)
    return named[1] if named else ""


def is_read_only(detail: str) -> bool:
    """Whether a program failed because it wrote where a job may not."""
    return bool(_READ_ONLY.search(detail))


def how_it_ended(exit_code: int | None) -> str:
    """``exited with 1``, ``ended by signal 11 (segmentation fault)``, ``was never started``."""
    if exit_code is None:
        return "was never started"
    number = _signal_of(exit_code)
    if not number:
        return f"exited with {exit_code}"
    name = signal.strsignal(number)
    return f"ended by signal {number}" + (f" ({name.lower()})" if name else "")


def _signal_of(exit_code: int) -> int:
    """The signal that ended a process: −n, or 128 + n as a shell reports it; 0: none did."""
    return -exit_code if exit_code < 0 else exit_code - 128 if exit_code - 128 in _BY_SHELLS else 0


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
    trace = takewhile(lambda line: not line.startswith("Traceback"), reversed(before))
    frames = [frame for frame in map(_FRAME.match, trace) if frame]
    frame = next((f for f in frames if not _FOREIGN.search(f[1])), frames[0] if frames else None)
    return f" ({shorten(PurePosixPath(frame[1]).name, 60)}:{frame[2]})" if frame else ""


_PARTS = frozenset({"val", "valid", "validation", "test", "eval", "evaluation", "holdout", "heldout"})
_AMOUNTS = frozenset(
    {"n", "num", "number", "size", "count", "len", "length", "rows", "samples", "examples", "points", "items"}
    | {"images", "sequences", "documents"}
)
_FILLERS = frozenset({"of", "the", "set", "split", "data", "dataset", "total"})
_SIZED = re.compile(
    r"(?<![\w.])([A-Za-z][A-Za-z_ \-]{1,48})[ \t]{0,8}[:=][ \t]{0,8}"
    r"(\d{1,3}(?:[,_]\d{3}){1,4}|\d{1,15})(?![\w%]|[.,]\d)"
)
_ABOUT = re.compile(r"val|test|eval|h[eo]ld", re.IGNORECASE)
_MOST_LINE, _HALF = 500, 2**18


def sizes(log: str) -> dict[str, float]:
    """Sizes of the evaluation set that a log tells, by name; the last value of a name counts."""
    text = as_lines(log if len(log) <= 2 * _HALF else f"{log[:_HALF]}\n{log[-_HALF:]}")
    lines = (line for line in text.split("\n") if len(line) <= _MOST_LINE and _ABOUT.search(line))
    named = ((_size_name(match[1]), to_float(match[2])) for line in lines for match in _SIZED.finditer(line))
    return {name: value for name, value in named if name}


def other_set(runs: Sequence[Run], baseline: Sequence[Run], metric: str = "") -> str:
    """Why runs cannot be compared with the baseline's; sizes that differ between its own runs say nothing.

    metric: its name, which may be called like a size.
    """
    for name, value in baseline[0].metrics.items() if baseline else ():
        if (
            name == metric
            or not _size_name(name)
            or value != int(value)
            or any(r.metrics.get(name) != value for r in baseline)
        ):
            continue
        other = next((r.metrics[name] for r in runs if r.metrics.get(name, value) != value), None)
        if other is not None:
            return f"but it was measured on another validation set: {name} {other:g}, the baseline's {value:g}"
    return ""


def _size_name(text: str) -> str:
    """The name of a size of the evaluation set at the end of a text; empty where there is none."""
    words = [word for word in re.split(r"[_\s\-]+", text.strip().lower()) if word]
    own: list[str] = []
    while words and words[-1] in _PARTS | _AMOUNTS | _FILLERS:
        own.insert(0, words.pop())
    parts, amounts = _PARTS & set(own), _AMOUNTS & set(own)
    if parts == {"valid"} and not amounts & {"n", "num", "number", "size"}:  # rows may be valid, not of such a set
        return ""
    return "_".join(own) if parts and amounts else ""

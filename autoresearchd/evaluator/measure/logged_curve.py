r"""Points of the learning curve out of a job's log, while it grows or as a whole.

Known formats: the progress line of karpathy/autoresearch's ``train.py`` (and nanochat), nanoGPT, modded-nanogpt, the
dictionaries of Hugging Face's Trainer, JSON lines; or a pattern of the task with the named groups ``step``, ``loss``,
``progress``, ``seconds``. Lines may be rewritten with ``\r``; where a chunk is cut never changes the curve.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import count

from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.evaluator.measure.log_text import (
    NUMBER,
    NUMBER_THEN_UNIT,
    LineMatcher,
    json_number,
    to_float,
    without_control_codes,
)

MAX_POINTS = 20_000
MAX_NON_FINITE = 100
KEY = "curve.pattern"

_LINE = 4096
_SLICE = 2**20
_SURE = 3
"""After so many points of one format, ``auto`` looks for this format only."""

Reader = Callable[[str, float], list[CurvePoint]]
"""Points in one line, given the budget in seconds."""

_STEP, _TOTAL, _LOSS = r"\s{0,16}%s(?P<step>[0-9]{1,12})", "/(?P<total>[0-9]{1,12})", rf"(?P<loss>{NUMBER})"
_KARPATHY = (
    _STEP % "step[ :]{1,4}"
    + rf"(?:{_TOTAL})?(?:[ ]?\((?P<percent>[0-9.]{{1,12}})%\))?"
    + rf"[ ]?\|[ ]?loss:[ ]?{_LOSS}"
)
_NANOGPT = _STEP % "(?:iter|(?P<val>step)) " + rf": (?(val)train loss {NUMBER}, val )loss {_LOSS}"
_MODDED = _STEP % "step:" + rf"{_TOTAL} (?:train|(?P<val>val))_loss:{_LOSS}(?: train_time:(?P<ms>[0-9]{{1,12}})ms)?"
_HF_ITEM = re.compile(rf"'([\w/]{{1,64}})': '?({NUMBER})'?(?=[,}}])")
_STEP_KEYS = ("step", "global_step", "iter", "iteration", "epoch")
_TRAIN_KEYS = ("loss", "train_loss", "training_loss", "train/loss")
_VALIDATION_KEYS = ("val_loss", "eval_loss", "validation_loss", "val/loss", "eval/loss")
_SECONDS_KEYS = ("seconds", "elapsed_s", "elapsed", "training_seconds", "train_time_s")
_FIGURE = re.compile(NUMBER_THEN_UNIT)


class CurveParser:
    """Reads a log piece by piece; points stay in its order.

    pattern: ``auto``, or a regular expression with groups ``loss`` and perhaps ``step``, ``progress``, ``seconds``.
    budget: in seconds, which ties progress and seconds together; 0: unknown. Points whose loss is not finite are kept
    in ``non_finite``, and ``diverged`` says that the last one was such.
    """

    def __init__(self, pattern: str = "auto", budget: float = 0.0) -> None:
        self._budget = budget if math.isfinite(budget) and budget > 0 else 0.0
        self._formats: tuple[Reader, ...] = FORMATS if pattern == "auto" else (_reader_of(pattern),)
        self._votes = dict.fromkeys(self._formats, 0)
        self._needs_loss = pattern == "auto"
        self._rest = ""
        self._kept = _Thinned(MAX_POINTS)
        self.non_finite: list[CurvePoint] = []
        self.diverged = False

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The curve so far, evenly thinned to at most ``MAX_POINTS``; first and last point are always in it."""
        return self._kept.points()

    def feed(self, chunk: str) -> None:
        """Take the next piece of the log. A line is read once its end has been seen."""
        *lines, rest = (self._rest + chunk.replace("\r", "\n")).split("\n")
        self._rest = rest[:_LINE]
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        if self._needs_loss and "loss" not in line:
            return
        for point in self._read(without_control_codes(line[:_LINE])):
            self.diverged = not math.isfinite(point.loss)
            if not self.diverged:
                self._kept.add(point)
            elif len(self.non_finite) < MAX_NON_FINITE:
                self.non_finite.append(point)
            else:
                self.non_finite[-1] = point  # the first ones, and the newest: how long it has gone on

    def _read(self, line: str) -> list[CurvePoint]:
        for reader in self._formats:
            if points := reader(line, self._budget):
                self._votes[reader] += len(points)
                self._formats = (reader,) if self._votes[reader] >= _SURE else self._formats
                return [p for p in points if math.isfinite(p.step)]
        return []


class _Thinned:
    """At most ``limit`` of any number of points, evenly spread: when full, every second one goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stride = 1
        self._count = 0
        self._points: list[CurvePoint] = []
        self._latest: CurvePoint | None = None

    def add(self, point: CurvePoint) -> None:
        if self._count % self._stride == 0:
            if len(self._points) >= self._limit - 1:
                del self._points[1::2]
                self._stride *= 2
            if self._count % self._stride == 0:
                self._points.append(point)
        self._count += 1
        self._latest = point

    def points(self) -> tuple[CurvePoint, ...]:
        if self._latest is None or (self._points and self._points[-1] is self._latest):
            return tuple(self._points)
        return (*self._points, self._latest)


def read_curve(text: str, pattern: str = "auto", budget: float = 0.0) -> CurveParser:
    """A CurveParser that has read a whole log, in slices, so that memory stays bounded."""
    parser = CurveParser(pattern, budget)
    for start in range(0, len(text), _SLICE):
        parser.feed(text[start : start + _SLICE])
    parser.feed("\n")
    return parser


# ---------------------------------------------------------------------- one reader for each format
def _point(
    step: float, loss: float, budget: float, *, share: float | None = None, s: float | None = None, val: bool = False
) -> CurvePoint:
    """A point whose progress and seconds are derived from each other where one is missing."""
    share, s = (x if x is not None and math.isfinite(x) else None for x in (share, s))
    if budget and share is None and s is not None:
        share = s / budget
    elif budget and s is None and share is not None:
        s = share * budget
    return CurvePoint(step, loss, share, s, val)


def _line(pattern: str) -> Reader:
    """A reader for lines with the groups step and loss, and perhaps total, percent, ms and val."""
    compiled = re.compile(pattern)

    def read(line: str, budget: float) -> list[CurvePoint]:
        match = compiled.match(line)
        if not match:
            return []
        got = match.groupdict()
        step, total, percent, ms = float(got["step"]), got.get("total"), got.get("percent"), got.get("ms")
        share = int(got["step"]) / int(total) if total and int(total) > 0 else None
        share, seconds = to_float(percent) / 100 if percent else share, float(ms) / 1000 if ms else None
        return [_point(step, to_float(got["loss"]), budget, share=share, s=seconds, val=bool(got.get("val")))]

    return read


def _hugging_face(line: str, budget: float) -> list[CurvePoint]:
    start = line.find("{'")
    if start < 0 or "'train_runtime'" in line:  # the summary at the end holds a mean over all steps, not a point
        return []
    return _from_keys({k: to_float(v) for k, v in _HF_ITEM.findall(line, start)}, budget)


def _json_lines(line: str, budget: float) -> list[CurvePoint]:
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return []
    try:
        item = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return _from_keys({k: v for k, v in ((k, json_number(v)) for k, v in item.items()) if v is not None}, budget)


def _from_keys(values: dict[str, float], budget: float) -> list[CurvePoint]:
    """Points of a line that names its numbers: one for each kind of loss; none where there is no step."""
    kinds = (_STEP_KEYS, _SECONDS_KEYS, _TRAIN_KEYS, _VALIDATION_KEYS)
    step, seconds, *losses = (next((values[k] for k in keys if k in values), None) for keys in kinds)
    return [
        _point(step, loss, budget, share=values.get("progress"), s=seconds, val=validation)
        for loss, validation in zip(losses, (False, True), strict=True)
        if step is not None and loss is not None
    ]


FORMATS: tuple[Reader, ...] = (*map(_line, (_KARPATHY, _NANOGPT, _MODDED)), _hugging_face, _json_lines)


def _reader_of(pattern: str) -> Reader:
    """A reader for a pattern of the task; a point without a ``step`` group is numbered by its order."""
    matcher = LineMatcher(pattern, key=KEY)
    if "loss" not in matcher.regex.groupindex:
        raise ConfigError(
            "this pattern has no group named loss",
            key=KEY,
            hint="name the groups: `step (?P<step>\\d+) loss (?P<loss>[\\d.]+)`; or leave it at auto",
        )
    numbers = count()

    def read(line: str, budget: float) -> list[CurvePoint]:
        match = matcher.search(line)
        got = {name: _captured(match, name) for name in matcher.regex.groupindex} if match else {}
        loss = got.get("loss")
        if loss is None:
            return []
        step = got["step"] if "step" in got else float(next(numbers))
        return [] if step is None else [_point(step, loss, budget, share=got.get("progress"), s=got.get("seconds"))]

    return read


def _captured(match: re.Match[str], name: str) -> float | None:
    """The number that a group captured; a progress in percent, the sign in or behind the group, becomes a share."""
    text = (match[name] or "").strip()
    figure = _FIGURE.match(text)
    if not figure:
        return None
    value = to_float(figure[0])
    percent = text.endswith("%") or match.string[match.end(name) : match.end(name) + 1] == "%"
    return value / 100 if name == "progress" and percent else value

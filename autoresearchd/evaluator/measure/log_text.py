r"""What a log says: its lines without terminal codes, the metrics that were printed, the points of the learning curve.

Forms of metrics: ``METRIC name=value`` lines (pi-autoresearch), ``name: value`` lines (karpathy/autoresearch), JSON
objects, one a line or in a result file, and a regular expression of the task. The last value of a name wins. Where
nobody chose a form, ``name=value`` is one, too, and a name that none of them gave is looked for as people write it
(``Validation RMSE: 1.2``). Values that are not finite are returned as such.

Forms of curves: the progress line of karpathy/autoresearch's ``train.py`` (and nanochat), nanoGPT, modded-nanogpt, the
dictionaries of Hugging Face's Trainer, JSON lines; or a pattern with the named groups ``step``, ``loss``, ``progress``,
``seconds``. Lines may be rewritten with ``\r``; where a chunk is cut never changes the curve.

Logs are hostile: every quantifier here has a bound, so that no text costs more than time linear in its length. A task's
pattern sees single lines of bounded length, and each line and each text has an allowance of time (``LineMatcher``).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from operator import itemgetter
from typing import Any

import regex

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.domain.task import Scoring

_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours, cursor movements
    r"|\][^\x07\x1b\n\r]{0,512}(?:\x07|\x1b\\)"  # OSC: window titles, hyperlinks
    r"|[ -/]{0,8}[0-~])"
    r"|[\x00\x07\x08\x1b\ufeff]"
)

_GROUPED = r"[1-9][0-9]{0,2}(?:[,_][0-9]{3}){1,102}"  # not 0,987, with a comma for a point
_DIGITS = rf"(?:{_GROUPED}(?:\.[0-9]{{0,400}})?|[0-9]{{1,400}}(?:\.[0-9]{{0,400}})?|\.[0-9]{{1,400}})"
_FIGURE = rf"[+-]?{_DIGITS}(?:[eE][+-]?[0-9]{{1,5}})?"
_WORD = r"(?i:[+-]?(?:nan|inf(?:inity)?)|none|null)"
_STOP = r"(?=[ \t|;)\]}]|,(?:[ \t\n]|\Z)|\n|\Z)"
_UNIT = r"(?:[ \t]?[%A-Za-zµμ°²³/]{1,16})?"

NUMBER = rf"(?:{_FIGURE}|{_WORD})"
"""A number where the format itself says where it ends. A finite double has at most 309 digits before the point."""
NUMBER_THEN_UNIT = rf"(?:{_FIGURE}(?={_UNIT}{_STOP})|{_WORD}(?=%?{_STOP}))"
"""A number with its end in sight: ``1.23 ms``, ``45,060.2 MB``, ``87%``; not ``1.2.3`` or ``3/10``."""


def without_control_codes(text: str) -> str:
    """``text`` without what only a terminal understands (ECMA-48 escape sequences, backspace, bell, NUL)."""
    return _CONTROL.sub("", text)


def as_lines(text: str) -> str:
    r"""``text`` with one kind of line end, without control codes; a progress bar's ``\r`` ends a line too."""
    return without_control_codes(text).replace("\r", "\n")


def to_float(figure: str) -> float:
    """Value of what NUMBER matched; ``none`` and ``null`` are not a number."""
    try:
        return float(figure.replace(",", "").replace("_", ""))
    except ValueError:
        return math.nan


def json_number(item: object) -> float | None:
    """A number of JSON; ``null`` is how some writers spell NaN."""
    if item is None:
        return math.nan
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return None
    try:
        return float(item)
    except OverflowError:
        return math.inf if item > 0 else -math.inf


def shorten(text: str, limit: int) -> str:
    """``text`` on one line, at most ``limit`` characters, without control codes and lone surrogates."""
    line = printable(" ".join(without_control_codes(text[: 4 * limit]).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def tells(text: str, what: str) -> bool:
    """Whether ``text`` begins with all that ``what`` says, which may have been cut where it is too long."""
    begin = " ".join(what.split()).removesuffix("…").rstrip(" .")
    return " ".join(text.split()).startswith(begin)


ALLOWANCE_S, FREE_S = 1.0, 20e-6
"""Processor time for one text, beyond what is free for each of its lines."""
LINE_S = 2.0
"""By the clock, for one line: a good one may have to wait for a busy machine."""
MOST_CHARACTERS = 512


def compile_pattern(pattern: str, *, key: str) -> re.Pattern[str]:
    """Compile a pattern of the task. ConfigError: it is not a regular expression, or has no group."""
    try:
        compiled: re.Pattern[str] = regex.compile(pattern)  # one of regex has all that one of Python's has
    except (regex.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"not a regular expression: {error}", key=key, hint="fix or quote the pattern") from None
    if not compiled.groups:
        raise ConfigError(
            "this pattern has no group", key=key, hint="put round brackets around the number: `score: ([\\d.]+)`"
        )
    return compiled


class LineMatcher:
    """A task's pattern with its walls, one for each text that is read: once they are reached nothing more is found."""

    def __init__(self, pattern: str, *, key: str) -> None:
        self.regex: Any = compile_pattern(pattern, key=key)
        self._left = ALLOWANCE_S

    def search(self, line: str) -> re.Match[str] | None:
        """The first match within the first few hundred characters of ``line``."""
        if self._left <= 0:
            return None
        began, match = time.thread_time(), None
        with suppress(TimeoutError, RecursionError):
            match = self.regex.search(line, 0, MOST_CHARACTERS, timeout=LINE_S)
        self._left -= max(0.0, time.thread_time() - began - FREE_S)
        return match


# ---------------------------------------------------------------------- metrics
MAX_NAMES = 256
NAME = r"[\w.µ/@-]{1,128}"

_WINDOW = 2**20
_MATCHES = 100_000
_LONGEST_LINE = 2_000
_JSON_DEPTH = 4
_JSON_LINE = re.compile(r"\n[ \t]{0,32}(\{[^\n]{1,65536})")
_BEFORE = r"(?:final|validation|valid|val|test|eval|evaluation)"
"""Words that may stand before a metric's name and say what it was measured on; not ``best`` or ``train``."""
_NUMBER_IN_TEXT = re.compile(NUMBER_THEN_UNIT)


def known_names(scoring: Scoring) -> tuple[str, ...]:
    """Names that the task speaks of: its metric, further metrics, and those that constraints bound."""
    names = (scoring.metric.name, *scoring.metrics, *scoring.display_metrics, *(c.metric for c in scoring.constraints))
    return tuple(dict.fromkeys(names))


def parse_metrics(text: str, scoring: Scoring, *, result_file: str | None = None) -> dict[str, float]:
    """Metrics in a log and in the text of a result file, whose values win; those that the task speaks of come first.

    Never raises for what ``text`` holds. ConfigError when the task's own pattern cannot be used.
    """
    metrics, known = _parse_log(text, scoring), known_names(scoring)
    if result_file is not None:
        metrics.update(_parse_result_file(result_file, scoring))
    ordered = [*(n for n in known if n in metrics), *(n for n in metrics if n not in known)]
    return {name: metrics[name] for name in ordered[:MAX_NAMES]}


# ---------------------------------------------------------------------- logs
def _parse_log(text: str, scoring: Scoring, mode: str | None = None) -> dict[str, float]:
    text, known = "\n" + as_lines(text), known_names(scoring)
    mode = mode or scoring.parse_mode
    if mode != "regex":
        found = _scan(text, mode, known)
        return (
            _as_people_write(text, [name for name in known if name not in found]) | found if mode == "auto" else found
        )
    # The pattern alone decides on the names that it gives; the other forms may add to them.
    matcher = LineMatcher(scoring.pattern or "", key="scoring.pattern")
    groups = matcher.regex.groupindex  # ``value`` is the task's metric; without a name group 1 is
    named = tuple(scoring.metric.name if g in ("value", "metric") else g for g in groups) or (scoring.metric.name,)
    return {k: v for k, v in _scan(text, "auto", known).items() if k not in named} | _search(text, matcher, named)


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """Stretches of whole lines, each beginning with a line end. The last comes first, because the last value wins."""
    high = len(text)
    while high > 0:
        low = text.rfind("\n", 0, high - _WINDOW + 1) if high > _WINDOW else 0
        yield max(low, 0), high
        high = max(low, 0)


def _scan(text: str, mode: str, known: tuple[str, ...]) -> dict[str, float]:
    """All forms but the pattern. Bounded: earlier windows are left out once the later ones gave very many matches."""
    found: dict[str, float] = {}
    seen = 0
    for low, high in _windows(text):
        matches = list(_matches(text, low, high, mode, known, [n for n in known if n not in found]))
        for name, value in {name: value for _, name, value in sorted(matches, key=itemgetter(0))}.items():
            if name in known or len(found) < MAX_NAMES:
                found.setdefault(name, value)
        seen += len(matches)
        if seen > _MATCHES:
            break
    return found


def _matches(
    text: str, low: int, high: int, mode: str, known: Sequence[str], wanted: Sequence[str]
) -> Iterator[tuple[int, str, float]]:
    """(position, name, value) of what each form of a mode gives in a stretch of a text."""
    # The longest first, so that ``loss`` does not hide ``loss_val``. Names of the task may have any sign: ``acc%``.
    names, space = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True)), r"[ \t]{0,32}"
    if mode in ("auto", "metric"):
        metric_line = re.compile(rf"\n{space}METRIC[ \t]{{1,32}}({names}|{NAME}){space}={space}({NUMBER_THEN_UNIT})")
        for match in metric_line.finditer(text, low, high):
            yield match.start(), match[1], to_float(match[2])
    if wanted and mode in ("auto", "key_value"):
        # Quotes are those of pretty-printed JSON.
        sign = "[:=]" if mode == "auto" else ":"
        key_line = re.compile(rf"\n{space}[\"']?({names})[\"']?{space}{sign}{space}({NUMBER_THEN_UNIT})")
        for match in key_line.finditer(text, low, high):
            yield match.start(), match[1], to_float(match[2])
    if wanted and mode in ("auto", "json"):
        for match in _JSON_LINE.finditer(text, low, high):
            line = match[1]
            values = _flatten(_load(line)) if any(name.rpartition(".")[2] in line for name in wanted) else {}
            yield from ((match.start(), name, values[name]) for name in wanted if name in values)


def _as_people_write(text: str, names: Sequence[str]) -> dict[str, float]:
    """``Validation RMSE: 1.2`` for ``rmse``, any letter case, a few words before it; nothing where those differ."""
    found: dict[str, float] = {}
    for name in names:
        written = "[ _-]".join(re.escape(part) for part in re.split(r"[_-]", name))
        space = r"[ \t]{0,32}"
        line = re.compile(
            rf"\n{space}((?:{_BEFORE}[ \t_-]{{1,4}}){{0,2}}){written}{space}[:=]{space}({NUMBER_THEN_UNIT})",
            re.IGNORECASE,
        )
        low, high = next(_windows(text), (0, 0))
        matches = list(islice(line.finditer(text, low, high), _MATCHES))
        if len({match[1].lower().strip(" \t_-") for match in matches}) == 1:
            found[name] = to_float(matches[-1][2])
    return found


def example_pattern(text: str, name: str) -> str:
    """A ``scoring.pattern`` for the last line of a log that has a metric's name, and a number after it; or nothing."""
    between = r"[^\w\n]{0,12}(?:[a-z]{1,12}[^\w\n]{1,6}){0,3}?"
    near = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])({between})({NUMBER_THEN_UNIT})", re.IGNORECASE)
    for line in reversed(as_lines(text[-_WINDOW:]).split("\n")):
        match = near.search(line[:_LONGEST_LINE])
        if match is None or not math.isfinite(to_float(match[2])):
            continue
        # With the word before it: `valid MAE` is not `train MAE`. A number that is padded has more blanks or fewer.
        before = re.search(r"(?<![^\W\d_])[^\W\d_]+[ \t]+$", line[: match.start()])
        words = re.split(r"[ \t]+", line[before.start() if before else match.start() : match.start(2)])
        pattern = r"\s+".join(map(re.escape, words)).removesuffix(r"\s+") + r"\s*(\S+)"
        known = LineMatcher(pattern, key="scoring.pattern").search(line)
        return pattern if known is not None and pattern.isprintable() and "'" not in pattern else ""
    return ""


# ---------------------------------------------------------------------- JSON
def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, float]:
    """Numbers of an object, those of inner objects under dotted names."""
    flat: dict[str, float] = {}
    if not isinstance(value, dict) or depth > _JSON_DEPTH:
        return flat
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, str):
            match = _NUMBER_IN_TEXT.match(item.strip()) if len(item) <= 512 else None
            number = to_float(match[0]) if match else None
        else:
            number = json_number(item)
        if isinstance(item, dict):
            flat.update(_flatten(item, f"{name}.", depth + 1))
        elif number is not None:
            flat[name] = number
    return flat


def _parse_result_file(text: str, scoring: Scoring) -> dict[str, float]:
    """A result file is one JSON object (of a list the last), or lines like those of a log."""
    value = _load(text.lstrip("\ufeff"))
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, dict):
        return {name: number for name, number in _flatten(value).items() if re.fullmatch(NAME, name)}
    return _parse_log(text, scoring, "auto")


# ---------------------------------------------------------------------- the task's own pattern
def _search(text: str, matcher: LineMatcher, names: tuple[str, ...]) -> dict[str, float]:
    """Lines from the last to the first, until each group has a value."""
    groups: tuple[str | int, ...] = tuple(matcher.regex.groupindex) or (1,)
    found: dict[str, float] = {}
    for low, high in _windows(text):
        for line in reversed(text[low:high].split("\n")):
            match = matcher.search(line) if line else None
            if match is None:
                continue
            for group, name in zip(groups, names, strict=True):
                number = _NUMBER_IN_TEXT.match((match[group] or "").strip())
                if number and name not in found:
                    found[name] = to_float(number[0])
            if len(found) == len(set(names)):
                return found
    return found


# ---------------------------------------------------------------------- the curve
MAX_POINTS = 20_000
MAX_NON_FINITE = 100
_LOG_LINE = 4096
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
        self._points: list[CurvePoint] = []
        self._latest: CurvePoint | None = None
        self._count, self._stride = 0, 1
        self.non_finite: list[CurvePoint] = []
        self.diverged = False

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The curve so far, evenly thinned to at most ``MAX_POINTS``; first and last point are always in it."""
        last = () if self._latest is None or self._points[-1] is self._latest else (self._latest,)
        return (*self._points, *last)

    def feed(self, chunk: str) -> None:
        """Take the next piece of the log. A line is read once its end has been seen."""
        *lines, rest = (self._rest + chunk.replace("\r", "\n")).split("\n")
        self._rest = rest[:_LOG_LINE]
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        if self._needs_loss and "loss" not in line:
            return
        for point in self._read(without_control_codes(line[:_LOG_LINE])):
            self.diverged = not math.isfinite(point.loss)
            if not self.diverged:
                self._add(point)
            elif len(self.non_finite) < MAX_NON_FINITE:
                self.non_finite.append(point)
            else:
                self.non_finite[-1] = point  # the first ones, and the newest: how long it has gone on

    def _add(self, point: CurvePoint) -> None:
        if self._count % self._stride == 0 and len(self._points) >= MAX_POINTS - 1:  # full: every second one goes
            del self._points[1::2]
            self._stride *= 2
        if self._count % self._stride == 0:
            self._points.append(point)
        self._count, self._latest = self._count + 1, point

    def _read(self, line: str) -> list[CurvePoint]:
        for reader in self._formats:
            if points := reader(line, self._budget):
                self._votes[reader] += len(points)
                self._formats = (reader,) if self._votes[reader] >= _SURE else self._formats
                return [p for p in points if math.isfinite(p.step)]
        return []


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
    item = _load(text) if text.startswith("{") and text.endswith("}") else None
    if item is None:
        return []
    # A validation loss of null was not computed at this step; a training loss of null is NaN.
    said = ((k, json_number(v)) for k, v in item.items() if v is not None or k not in _VALIDATION_KEYS)
    return _from_keys({k: v for k, v in said if v is not None}, budget)


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
    matcher = LineMatcher(pattern, key="curve.pattern")
    if "loss" not in matcher.regex.groupindex:
        raise ConfigError(
            "this pattern has no group named loss",
            key="curve.pattern",
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
    figure = _NUMBER_IN_TEXT.match(text)
    if not figure:
        return None
    value = to_float(figure[0])
    percent = text.endswith("%") or match.string[match.end(name) : match.end(name) + 1] == "%"
    return value / 100 if name == "progress" and percent else value

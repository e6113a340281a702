"""The kinds of values that task.yaml holds, as types for pydantic, with words for what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict
from pydantic_core import PydanticCustomError

from autoresearchd.config.paths import PathError, data_path, folder_path, hidden_path, inside_path
from autoresearchd.config.problems import shown
from autoresearchd.domain.quantities import ordered, parse_bounds, parse_duration

RULE = "rule"
"""Type of the errors that are raised here: their context has ``what`` and ``mend``, or ``conflicts``."""

Conflict = tuple[str, str, str]
"""(dotted key below the value that is being validated, what is wrong, what would be right)."""


def wrong(what: str, mend: str) -> PydanticCustomError:
    """An error in our own words."""
    return PydanticCustomError(RULE, "{what}", {"what": what, "mend": mend})


def in_conflict(conflicts: list[Conflict]) -> PydanticCustomError:
    """Several errors at once, in keys below the value."""
    return PydanticCustomError(RULE, "keys in conflict", {"conflicts": conflicts})


def _duration(value: Any) -> float:
    if isinstance(value, (str, int, float)):
        try:
            return parse_duration(value)
        except (ValueError, OverflowError):
            pass
    raise wrong(f"{shown(value)} is no duration", "write seconds, or a text like 90s, 5m, 1h30m; more than zero")


def _duration_or_zero(value: Any) -> float:
    return 0.0 if value in (0, "0", "0s") and not isinstance(value, bool) else _duration(value)


def _flag(value: Any) -> Any:
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _needs_gpu(value: Any) -> Any:
    # Whether a job profits from a GPU that is there is for the job to see: only a plain `true` asks for one.
    return False if value == "auto" else _flag(value)


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _path(rule: Callable[[str], str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            return rule(text)
        except PathError as error:
            raise wrong(error.what, error.mend) from None

    return check


def _command(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise wrong("an empty command" if not text.strip() else "a NUL character", "write a shell command")
    return text


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 200:
        raise wrong(f"{shown(text)} is not a short line of text", "write 1 to 200 printable characters on one line")
    return text.strip()


def _name(text: str) -> str:
    if "/" in text:
        raise wrong(f"{shown(text)} has a / in it", "write a name, not a path")
    return text


def _metric_name(text: str) -> str:
    if len(text) > 128 or re.search(r"[\s=:]", text):
        raise wrong(f"{shown(text)} cannot be a metric's name", "use a name without spaces, = and :, e.g. val_loss")
    return text


def _regex(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(
            f"not a regular expression: {error}", "mend the pattern; in single quotes YAML keeps backslashes"
        ) from None
    if not groups:
        raise wrong("the pattern has no group", "put round brackets around the number: 'score: ([0-9.]+)'")
    return text


def _curve_pattern(text: str) -> str:
    if text == "auto":
        return text
    if "loss" not in re.compile(_regex(text)).groupindex:
        raise wrong(
            "the pattern has no group named loss",
            "name the groups: 'step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)'; or leave it at auto",
        )
    return text


def _plain_regex(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(
            f"not a regular expression: {error}", "mend the pattern; in single quotes YAML keeps backslashes"
        ) from None
    return text


def _bounds(value: Any) -> tuple[float, float]:
    """``LOW..HIGH``, or a list of the two."""
    mend = "write the lowest and the highest value: 1e-5..1e-1"
    try:
        if isinstance(value, str):
            return parse_bounds(value)
        if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(v) in (int, float) for v in value):
            return ordered(float(value[0]), float(value[1]))
    except (ValueError, OverflowError) as error:
        raise wrong(str(error), mend) from None
    raise wrong(f"{shown(value)} is no range", mend)


def _choices(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(set(map(repr, value))) < 2:
        raise wrong(f"{shown(value)} is no list of two or more values", "write all values: [adam, sgd]")
    for item in value:
        if not isinstance(item, (int, float, str, bool)):
            raise wrong(f"{shown(item)} is no number and no text", "list plain values: [adam, sgd]")
        if isinstance(item, float) and not math.isfinite(item):
            raise wrong(f"{shown(item)} is not finite", "list plain values: [0.1, 1.0]")
        if isinstance(item, str) and (not item.isprintable() or set(item) & set("\"'\\")):
            raise wrong(f"{shown(item)} cannot be put in quotes", "leave quotes and backslashes out")
    return value


def _host(text: str) -> str:
    if not re.fullmatch(r"(?:[\w.][\w.-]*@)?[\w.\[][\w.:\[\]-]*", text, re.ASCII):
        raise wrong(f"{shown(text)} is no host name", "write a name, an address or user@host, as ssh knows it")
    return text


def _environment(env: dict[str, str]) -> dict[str, str]:
    conflicts = []
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            conflicts.append((name, f"{shown(name)} is no name of a variable", "use letters, digits and _"))
        elif name.startswith("AUTORESEARCHD_"):
            what = "variables that begin with AUTORESEARCHD_ are set by the daemon itself"
            conflicts.append((name, what, "take another name"))
        if "\0" in value:
            conflicts.append((name, "a NUL character in the value", "remove it"))
    if conflicts:
        raise in_conflict(conflicts)
    return env


Text = Annotated[str, Strict()]
Line = Annotated[str, Strict(), AfterValidator(_line)]
Name = Annotated[str, Strict(), AfterValidator(_line), AfterValidator(_name)]
Command = Annotated[str, Strict(), AfterValidator(_command)]
Flag = Annotated[bool, Strict(), BeforeValidator(_flag)]
NeedsGpu = Annotated[bool, Strict(), BeforeValidator(_needs_gpu)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(allow_inf_nan=False, ge=0)]
Count = Annotated[int, Strict(), Field(gt=0)]
GroupSize = Annotated[int, Strict(), Field(ge=1, le=64)]
Seconds = Annotated[float, BeforeValidator(_duration)]
SecondsOrZero = Annotated[float, BeforeValidator(_duration_or_zero)]
InsidePath = Annotated[str, Strict(), AfterValidator(_path(inside_path))]
FolderPath = Annotated[str, Strict(), AfterValidator(_path(folder_path))]
DataPath = Annotated[str, Strict(), AfterValidator(_path(data_path))]
HiddenPath = Annotated[str, Strict(), AfterValidator(_path(hidden_path))]
Targets = Annotated[tuple[InsidePath, ...], BeforeValidator(_one_or_many)]
MetricName = Annotated[str, Strict(), AfterValidator(_line), AfterValidator(_metric_name)]
Regex = Annotated[str, Strict(), AfterValidator(_regex)]
CrashPattern = Annotated[str, Strict(), AfterValidator(_plain_regex)]
CurvePattern = Annotated[str, Strict(), AfterValidator(_curve_pattern)]
Host = Annotated[str, Strict(), AfterValidator(_host)]
Bounds = Annotated[tuple[float, float], BeforeValidator(_bounds)]
Choices = Annotated[tuple[int | float | str | bool, ...], BeforeValidator(_choices)]
Environment = Annotated[dict[str, Text], AfterValidator(_environment)]

"""When a schedule is due, as crontab(5) writes it: five fields, checked before anybody waits for what never comes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from autoresearchd.config.fields import wrong
from autoresearchd.config.problems import shown

_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOST_PARTS = 60
_PART = re.compile(r"(?:(?P<all>\*)|(?P<first>[0-9]{1,4})(?:-(?P<last>[0-9]{1,4}))?)(?:/(?P<step>[0-9]{1,4}))?")
_NAMED = re.compile(r"(?P<first>[a-zA-Z]{3})(?:-(?P<last>[a-zA-Z]{3}))?")
_LONGEST = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
"""Days of the months that have fewer than 31, in a leap year."""


@dataclass(frozen=True, slots=True)
class _Field:
    """What a field of numbers is called, and its least and its largest one."""

    name: str
    low: int
    high: int


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12),
)


def crontab(text: str) -> str:
    """The text itself where it is a time as crontab has it that comes, in UTC; days of the week go by name.

    Their numbers are not agreed on: 0 is Sunday to crontab and Monday to others.

    Raises:
        PydanticCustomError: it is none, or there is no such day in any year.
    """
    fields = text.split(" ")
    if len(fields) != len(_FIELDS) + 1:
        raise _none(text, f"it has {len(fields)} fields, not five")
    numbers = [_numbers(text, given, field) for given, field in zip(fields, _FIELDS, strict=False)]
    _check_names(text, fields[-1])
    days, months = numbers[2], numbers[3]
    if all(min(days) > _LONGEST.get(month, 31) for month in months):
        raise wrong(f"{shown(text)} never comes: no such month has a day {min(days)}", "write a day that there is")
    return text


def _numbers(text: str, given: str, field: _Field) -> set[int]:
    """What a field of numbers names."""
    found: set[int] = set()
    for part in _parts(text, given):
        match = _PART.fullmatch(part)
        if match is None:
            raise _none(text, f"{shown(part)} is no {field.name}")
        low = field.low if match["all"] else int(match["first"])
        high = field.high if match["all"] or (match["step"] and not match["last"]) else int(match["last"] or low)
        if low < field.low or high > field.high:
            raise _none(text, f"the {field.name} is from {field.low} to {field.high}")
        if low > high:
            raise _none(text, f"{part} ends before it begins")
        if match["step"] and not 0 < int(match["step"]) <= high - low:
            most = high - low
            raise _none(text, f"the step of {part} must be from 1 to {most}" if most else f"{part} has nowhere to step")
        found.update(range(low, high + 1, int(match["step"] or 1)))
    return found


def _check_names(text: str, given: str) -> None:
    for part in _parts(text, given):
        match = _NAMED.fullmatch(part)
        if part != "*" and (match is None or match["first"].lower() not in _NAMES):
            raise _none(text, f"{shown(part)} is no day of the week")
        if match is None or match["last"] is None:
            continue
        if match["last"].lower() not in _NAMES:
            raise _none(text, f"{shown(part)} is no day of the week")
        if _NAMES.index(match["first"].lower()) > _NAMES.index(match["last"].lower()):
            raise _none(text, f"{part} ends before it begins: the week begins on mon")


def _parts(text: str, given: str) -> list[str]:
    parts = given.split(",")
    if len(parts) > _MOST_PARTS:
        raise _none(text, f"a field has {len(parts)} parts")
    return parts


def _none(text: str, why: str) -> PydanticCustomError:
    return wrong(
        f"{shown(text)} is no time as crontab has it: {why}",
        'write five fields, e.g. "0 4 * * *" for 4:00 UTC; days of the week by name, e.g. "0 4 * * sun"',
    )

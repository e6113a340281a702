"""Durations as people write them, and numbers of things as they say them: ``1 rows`` makes a reader doubt it."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoresearchd.domain.quantities import counted, parse_duration

PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


@pytest.mark.parametrize("text", ["1" * 28 + "x", "1" * 5000 + "x", "1" * 5000 + " " * 5000 + "x", "1m" * 3000 + "x"])
def test_what_is_no_duration_is_refused_at_once_however_long_it_is(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
    assert time.monotonic() - began < 5, "it took longer than anybody waits"


@given(st.text(alphabet="12.sd m", max_size=9))
@example("1.52.5")
@example("1h 30 m")
@example("0.5h")
def test_what_parts_make_up_is_a_duration_and_nothing_else(text: str) -> None:
    cleaned = text.strip()
    whole = re.fullmatch(rf"(?:{PART.pattern}\s*)+", cleaned) is not None
    # "1.52.5" can be split as 1.5 and 2.5, but is read as 1.52 and a rest: nobody can have meant either.
    read = "".join(found[0] for found in PART.finditer(cleaned)).replace(" ", "") == cleaned.replace(" ", "")
    if whole and read and any(float(number) for number, _ in PART.findall(cleaned)):
        assert parse_duration(text) > 0
    else:
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text)


@pytest.mark.parametrize(("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12345, "12,345 rows")])
def test_a_number_of_things_is_said_as_people_say_it(number: int, words: str) -> None:
    assert counted(number, "row") == words
    assert counted(number, "entry", "entries").endswith("entry" if number == 1 else "entries")

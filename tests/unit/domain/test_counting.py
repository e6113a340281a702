"""One thing is no several: ``1 experiments`` makes a reader doubt the number."""

from __future__ import annotations

import pytest

from autoresearchd.domain.quantities import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12345, "12,345 rows")])
def test_a_number_of_things_is_said_as_people_say_it(number: int, words: str) -> None:
    assert counted(number, "row") == words
    assert counted(number, "entry", "entries").endswith("entry" if number == 1 else "entries")

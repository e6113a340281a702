"""What an edit brings back: a model that is told wrongly pays an answer for it, one that is not goes in circles."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.re_added import MOST_LINES, Back, Removals
from autoresearchd.loop.messages import unified_diff

REMOVES = "--- a/t.py\n+++ b/t.py\n@@ -1,3 +1,2 @@\n def f(x):\n-    x = slow_norm(x)\n+    x = fast_norm(x)\n"


def after(*diffs: str) -> Removals:
    """What keeps 1, 2, … have removed."""
    removals = Removals()
    for number, diff in enumerate(diffs, 1):
        removals.keep(number, diff)
    return removals


def test_a_line_comes_back_however_it_is_indented_spaced_commented_and_ended() -> None:
    diff = "+\t\tx   = slow_norm(x)  # as before\r\n+y = other(x, x)\r\n\\ No newline at end of file"
    back = after(REMOVES).look(diff)
    assert back == Back(2, {"x = slow_norm(x)": 1})
    assert (back.share, back.due) == (0.5, True)
    assert back.words == "1 of 2 new lines had been removed by experiment 1"
    assert back.told == "brings back 1 line that experiment 1, a keep, had removed: `x = slow_norm(x)`"


@pytest.mark.parametrize(
    "line", ["", "   ", "# x = slow_norm(x)", "import torch.nn", "from torch import nn", "else:", "])", "return loss",
             "return None", '"""The model of it."""', "x = 1"],
)  # fmt: skip
def test_what_stands_anywhere_tells_nothing(line: str) -> None:
    assert after(f"-{line}\n").look(f"+{line}\n") == Back()


def test_a_line_that_only_moves_or_of_which_a_copy_is_left_does_not_come_back() -> None:
    moves = "-x = slow_norm(x)\n+y = other(x, x)\n+x = slow_norm(x)\n"
    assert after(REMOVES).look(moves) == Back(1), "it moved"
    assert after(moves).look("+x = slow_norm(x)\n") == Back(1)
    removals = Removals(lambda _: ["def f(x):\n    x = fast_norm(x)\n\nx = slow_norm(x)\n"])
    removals.keep(1, REMOVES)
    assert removals.look("+x = slow_norm(x)\n") == Back(1)


def test_a_constant_that_goes_back_is_no_code_that_comes_back() -> None:
    removals = after("-LR = 0.04  # Muon\n+LR = 0.02\n", "-LR = 0.02\n+LR = 0.03\n")
    back = removals.look("-LR = 0.03\n+LR = 0.04\n+x = gate(x, 2)\n")
    assert back == Back(2, {}, {"LR = 0.04": 1}) and not back.due and not back.words
    again = removals.look("-RATE = 0.03\n+LR = 0.04\n")
    assert again.lines == {"LR = 0.04": 1}, "another line was there: it is brought back"


def test_a_keep_that_adds_a_line_again_ends_its_absence_until_that_keep_falls() -> None:
    removals = after(REMOVES, "+x = slow_norm(x)\n")
    added = "+x = slow_norm(x)\n"
    assert removals.look(added).lines == {}
    assert removals.stand({1}) == [] and removals.look(added).lines == {"x = slow_norm(x)": 1}
    assert removals.stand({3}) == [3] and removals.look(added).lines == {}, "nobody says that it is bad"
    removals.keep(3, "")
    removals.keep(2, "-x = slow_norm(x)\n")  # decided later: with several slots they end in any order
    assert removals.look(added).lines == {"x = slow_norm(x)": 2}


def test_a_line_or_two_of_a_long_edit_are_counted_and_not_asked_about() -> None:
    removed = [f"y = layer_{n}(x)" for n in range(9)]
    removals = after("".join(f"-{line}\n" for line in removed), "-z = layer(y, y)\n")
    fresh = "".join(f"+z = block_{n}(x)\n" for n in range(40))
    few, many = (removals.look(fresh + "".join(f"+{line}\n" for line in removed[:count])) for count in (4, 5))
    assert (len(few.lines), few.due, len(many.lines), many.due) == (4, False, 5, True)
    assert many.told.endswith("had removed: `y = layer_0(x)`; `y = layer_1(x)`; `y = layer_2(x)` and 2 more")
    both = removals.look(f"+{removed[0]}\n+z = layer(y, y)\n")
    assert both.words == "2 of 2 new lines had been removed by experiments 1 and 2"
    assert both.as_json() == {
        "added": 2, "lines": 2, "share": 1.0, "values": 0,
        "removed": [{"line": removed[0], "by": 1}, {"line": "z = layer(y, y)", "by": 2}],
    }  # fmt: skip


programs = st.lists(st.sampled_from([f"name_{c} = call_{c}(arg)" for c in "abcdef"]), max_size=8)


@given(st.lists(programs, min_size=2, max_size=6), programs)
def test_what_comes_back_is_what_was_once_there_and_is_not(tips: list[list[str]], proposed: list[str]) -> None:
    """The rule works on diffs; on whole programs it is this."""
    texts = ["\n".join(tip) for tip in tips]
    removals = Removals(lambda number: [texts[number]])
    for number, (before, now) in enumerate(pairwise(texts), 1):
        removals.keep(number, unified_diff({"t.py": before}, {"t.py": now}))
    new = set(proposed) - set(tips[-1])
    once = {line for tip in tips for line in tip}
    found = removals.look(unified_diff({"t.py": texts[-1]}, {"t.py": "\n".join(proposed)}))
    assert set(found.lines) == new & once and found.added >= len(new), "a second copy is added, too"
    assert all(line in tips[by - 1] and line not in tips[by] for line, by in found.lines.items())


@given(st.text(max_size=300), st.text(alphabet="+-=.1e \"'[](),#ab_\n\r\0\x1b\u2028\x85", max_size=400))
def test_no_diff_makes_it_raise_and_what_it_tells_can_be_shown(first: str, second: str) -> None:
    removals = after(first, second)
    for diff in (first, second, first.replace("-", "+"), second.replace("-", "+")):
        back = removals.look(diff)
        assert 0 <= back.share <= 1 and len(back.lines) + len(back.values) <= back.added
        assert back.words.isprintable() and back.told.isprintable()


def test_binary_files_and_endless_diffs_are_no_trouble() -> None:
    binary = "GIT binary patch\nliteral 9\nQcmZQ%U|?imWME)q;Nawn0000\n\nBinary files a/x.bin and b/x.bin differ\n"
    assert after(binary).look(binary) == Back()
    long = "".join(f"-y{n} = layer(x, {n})\n" for n in range(100_000)) + "-" + "a + b # " * 10_000
    back = after(long).look(long.replace("\n-", "\n+").replace("-", "+", 1))
    assert back.added == len(back.lines) == MOST_LINES
    quotes = "".join(f"{sign}x = f(" + "\"' #" * 9999 + ")\n" for sign in "-+" for _ in range(200))
    after(quotes).look(quotes)

"""What was tried is told in a few lines, and what an edit does: constants that a search learns from, and words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label
from autoresearchd.policy.answer_words import MAX_LINE, MAX_TEXT, asi_of, changes, cost_of, describe, last_object
from autoresearchd.policy.near_duplicates import NearDuplicates
from autoresearchd.policy.prompt.digest import digest_of

from .histories import experiment


def test_each_constant_shows_its_values_and_how_often_they_helped() -> None:
    found = digest_of(
        [
            experiment(1, "faster", Label.NONE, value=0.99, delta=0.01, changes={"train.py:MATRIX_LR": 0.06}),
            experiment(2, "faster yet", delta=-0.01, value=1.0, changes={"train.py:MATRIX_LR": 0.09}),
            experiment(3, "both", Label.NAN_LOSS, changes={"train.py:MATRIX_LR": 0.2, "train.py:DEPTH": 6}),
        ]
    )
    assert found.tried[0] == (
        "MATRIX_LR (3 tried, 1 seemed to help): 0.06: kept, only believed so far, +0.01 (#1); "
        "0.09: no_gain -0.01 (#2); 0.2 with 1 other change: nan_loss (#3)"
    )
    assert found.constants == ("MATRIX_LR", "DEPTH")
    assert found.kept == ("#1 faster: kept, only believed so far, +0.01",)


@pytest.mark.parametrize(("confirmed", "words"), [(True, "kept, confirmed, +0.01"), (False, "kept, fell back")])
def test_a_keep_that_was_tested_says_what_came_of_it(confirmed: bool, words: str) -> None:
    """A policy that builds on what fell back repeats a mistake."""
    kept = experiment(1, "faster", Label.NONE, value=0.99, delta=0.01, changes={"train.py:DEPTH": 6})
    found = digest_of([replace(kept, confirmed=confirmed)])
    assert words in found.kept[0]
    assert f"(1 tried, {int(confirmed)} seemed to help)" in found.tried[0]


def test_near_misses_are_gains_that_were_not_kept_and_losses_within_noise() -> None:
    found = digest_of(
        [
            experiment(1, "a", delta=0.002, value=0.998),
            experiment(2, "b", delta=-0.004, value=1.004),
            experiment(3, "c", delta=-0.02, value=1.02),
            experiment(4, "d", Label.CONSTRAINT, delta=0.01, value=0.99),
            experiment(5, "e", Label.METRIC_TAMPERING, delta=0.5, value=0.5),
            experiment(6, "f", Label.NONE, delta=0.01, value=0.99),
            experiment(7, "g", Label.ABORTED_EARLY, delta=0.001),
        ],
        sigma=0.005,
    )
    assert found.near == (4, 1, 2)
    assert found.near_misses[0] == "#4 d: constraint +0.01"
    assert digest_of([experiment(2, "b", delta=-0.004, value=1.004)]).near == ()


def test_the_ledger_counts_the_whole_session_and_shows_the_latest_example() -> None:
    recent = [
        experiment(40, "DEPTH 8 → 16", Label.OOM, reason="oom: tried to allocate 2 GiB"),
        experiment(41, "DEPTH 8 → 12", Label.OOM, reason="oom: tried to allocate 1 GiB"),
    ]
    found = digest_of(recent, failures={"": 3, "no_gain": 20, "oom": 7, "timeout": 1, "aborted_early": 4, "error": 0})
    assert found.failures == ("oom ×7, last #41 DEPTH 8 → 12: tried to allocate 1 GiB", "timeout ×1")
    assert digest_of(recent).failures[0].startswith("oom ×2, last #41")


def test_a_hint_is_shown_until_an_experiment_takes_it_up() -> None:
    hinting = experiment(1, "DEPTH 8 → 12", hint="Try intermediate DEPTH=10 for better VRAM tradeoff")
    assert digest_of([hinting]).hints == ("Try intermediate DEPTH=10 for better VRAM tradeoff (#1)",)
    other = experiment(2, "WINDOW_PATTERN SSSL → L", hint="try warmup of the momentum")
    assert [h[-4:] for h in digest_of([hinting, other]).hints] == ["(#2)", "(#1)"]
    taken = experiment(3, "intermediate DEPTH 10 for a better VRAM tradeoff")
    assert digest_of([hinting, other, taken]).hints == ("try warmup of the momentum (#2)",)
    again = experiment(4, "MLP_RATIO 4 → 3", hint="Try momentum warmup")
    assert [h[-4:] for h in digest_of([other, again]).hints] == ["(#4)"]


HOSTILE = st.text(alphabet=st.sampled_from("aDEPTH →->:=0123.,;*[]()\x1b\n`\u202e"), max_size=400)


@given(st.lists(st.tuples(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(list(Label))), max_size=12))
def test_no_words_of_a_model_can_break_it(drawn: list[tuple[str, str, str, Label]]) -> None:
    recent = [
        experiment(
            n, words, label, delta=n % 3 - 1, hint=hint, arch_change=arch * 20, changes={words: hint, "k": 10**30}
        )
        for n, (words, hint, arch, label) in enumerate(drawn)
    ]
    text = "\n".join(digest_of(recent).lines())
    assert len(text) < 25_000
    assert all(line.isprintable() for line in text.split("\n"))


# ---------------------------------------------------------------------- similar
Past = tuple[Experiment, str]

A, B = "a" * 40, "b" * 40
HEADER = "--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\n context = 1\n"
CODE = (
    "-        x = F.relu(self.fc(x))\n+        gate, x = self.fc(x).chunk(2, dim=-1)\n"
    "+        x = F.silu(gate) * x  # SwiGLU\n+        return self.proj(self.dropout(x))\n"
)


def change(before: str, after: str) -> str:
    return f"{HEADER}-{before}\n+{after}\n"


def past(number: int, diff: str, *, parent: str = A, label: Label = Label.NO_GAIN, **changes: object) -> Past:
    value = 2.31 if label is Label.NO_GAIN else None
    return replace(experiment(number, "an edit", label, value=value, changes=changes), parent=parent), diff


def memory(*entries: Past) -> NearDuplicates:
    known = NearDuplicates()
    for entry in entries:
        known.add(*entry)
    return known


def test_the_same_constant_at_the_same_value_is_told_with_its_outcome() -> None:
    known = memory(past(12, change("LR = 0.04  # Muon", "LR = 0.02"), LR=0.02))
    expected = "experiment 12 changed LR to 0.02 already: 2.31, discard"
    assert known.look(change("LR = 0.04", "LR = 2e-2"), {"LR": 0.02}, B) == expected
    assert known.look(change("LR=0.04", "LR =   0.02  # lower"), {"LR": 0.02}, B) == expected
    crashed = memory(past(3, change("LR = 0.04", "LR = 0.02"), label=Label.OOM, LR=0.02))
    assert crashed.look(change("LR = 0.04", "LR = 0.02"), {"LR": 0.02}, B).endswith("already: crash (oom)")


def test_another_value_another_constant_or_another_start_is_no_duplicate() -> None:
    known = memory(past(12, change("LR = 0.04", "LR = 0.02"), LR=0.02))
    for name, before, after in (("LR", 0.04, 0.021), ("LR", 0.04, 0.020001), ("LR", 0.03, 0.02), ("WD", 0.04, 0.02)):
        assert known.look(change(f"{name} = {before}", f"{name} = {after}"), {name: after}, B) == ""
    assert known.look(change("LR = 0.03", "LR = 0.02"), {"LR": 0.02}, A) != "", "the same parent"
    both = f"{HEADER}-LR = 0.04\n-WD = 0.1\n+LR = 0.02\n+WD = 0.2\n"
    assert known.look(both, {"LR": 0.02, "WD": 0.2}, A) == ""


def test_a_constant_beside_other_code_does_not_make_two_edits_alike() -> None:
    constant = "-LR = 0.04\n+LR = 0.02\n"
    known = memory(past(4, HEADER + constant + CODE, **{"train.py:LR": 0.02}))
    other = HEADER + constant + "-    y = norm(x)\n+    y = x * torch.rsqrt(x.var() + eps)\n"
    assert known.look(other, {"train.py:LR": 0.02}, A) == ""
    assert known.look(HEADER + constant + CODE, {"train.py:LR": 0.02}, A) != ""


def test_nearly_the_same_code_is_told() -> None:
    known = memory(past(31, HEADER + CODE))
    told = known.look(HEADER + CODE.replace("# SwiGLU", "# gated").replace("dropout(x)", "drop(x)"), {}, B)
    assert told.startswith("experiment 31 made nearly the same edit (9")
    assert told.endswith("alike): 2.31, discard")


@given(st.text(max_size=200), st.text(alphabet="+-=.:1e \"'[](),#ab\n\r\x1b", max_size=300))
def test_no_diff_makes_it_raise_and_what_it_tells_can_be_shown(first: str, second: str) -> None:
    known = memory(past(1, first), past(2, second))
    for diff in (first, second):
        assert known.look(diff, {}, A).isprintable()
    changes = {first: second, "n": 10**400, "x": float("nan"), "b": True}
    known.add(experiment(3, "x", value=1.0, changes=changes), "")
    assert known.look("", changes, A).isprintable()


def test_a_line_that_is_all_comment_is_no_code_to_compare() -> None:
    known = memory(past(12, f"{HEADER}+# half the width\n-WIDTH = 8\n+WIDTH = 4\n"))
    assert known.look(f"{HEADER}+# something else\n-DEPTH = 8\n+DEPTH = 4\n", {}, A) == ""


# ---------------------------------------------------------------------- what an edit says of itself
def test_a_line_of_a_toml_file_is_not_taken_for_a_constant_of_another_table() -> None:
    """``a.toml:lr`` is nobody's name there: the search would learn from what it never tried."""
    old = {"a.toml": "[a]\nlr = 0.1\n[b]\nlr = 0.1\n"}
    new = {"a.toml": "[a]\nlr = 0.1\n[b]\nlr = 0.2\n"}
    assert changes(old, new) == {}
    assert "a.toml" in describe(old, new)


def changed(old: str, new: str) -> dict[str, object]:
    return dict(changes({"train.py": old}, {"train.py": new}))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("LR = 0.1\n", "LR = 0.2\n", {"train.py:LR": 0.2}),
        ("LR = 0.1  # rate\n", "LR = 3e-2\n", {"train.py:LR": 0.03}),
        ("N: int = 4\n", "N: int = 2**3\n", {"train.py:N": 8}),
        ("N = -1\nM = 2\n", "N = 1\nM = 4\n", {"train.py:N": 1, "train.py:M": 4}),
        ("NAME = 'gelu'\n", 'NAME = "relu"\n', {"train.py:NAME": "relu"}),
        ("FLAG = True\n", "FLAG = False\n", {"train.py:FLAG": False}),
        ("B = (0.9, 0.95)\n", "B = (0.9, 0.99)\n", {"train.py:B[1]": 0.99}),
        ("LR = 0.1\n", "# higher\n\nLR = 0.2\n", {"train.py:LR": 0.2}),
    ],
)
def test_new_values_of_constants_are_found(old: str, new: str, found: dict[str, object]) -> None:
    assert changed(old, new) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LR = 0.1\n", "LR = 0.2\nx = f(LR)\n"),
        ("LR = 0.1\n", "RATE = 0.1\n"),
        ("LR = 0.1\n", "LR = schedule(0.1)\n"),
        ("LR = 0.1\nf(1)\n", "LR = 0.2\nf(2)\n"),
        ("def f():\n    lr = 0.1\n", "def f():\n    lr = 0.2\n"),
        ("LR = 0.1\nLR = 0.2\n", "LR = 0.3\nLR = 0.4\n"),
        ("B = (1, 2)\n", "B = (1, 2, 3)\n"),
        ("N = 1\n", "N = 9**9**9**9\n"),
        ("N = 1\n", "N = 1e999\n"),
        ("N = 1\n", "N = 1 / 0\n"),
        ("N = 'a'\n", "N = '\\ud800'\n"),
        ("N == 1\n", "N == 2\n"),
        ("N = 1\n", "N = 1\n"),
    ],
)
def test_an_edit_of_anything_else_is_not_taken_for_one_of_constants(old: str, new: str) -> None:
    assert changed(old, new) == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("LR = 0.1\n", "LR = 0.2  # higher\n", "Change LR 0.1 → 0.2 in train.py"),
        ("f(\n    lr=0.1,\n)\n", "f(\n    lr=0.2,\n)\n", "Change lr 0.1 → 0.2 in train.py"),
        (
            "A = 1\nB = 1\nC = 1\nD = 1\n",
            "A = 2\nB = 2\nC = 2\nD = 2\n",
            "Change A 1 → 2, B 1 → 2, C 1 → 2 and 1 more in train.py",
        ),
        ("x = 1\n", "x = 1\nx = norm(x)\n", "Change train.py: 1 line added, 0 removed, from `x = norm(x)`"),
        ("x = 1\ny = 2\n", "x = 1\n", "Change train.py: 0 lines added, 1 removed"),
    ],
)
def test_an_edit_without_words_is_put_into_plain_ones(old: str, new: str, words: str) -> None:
    assert describe({"train.py": old}, {"train.py": new}) == words


@given(st.text(), st.text())
def test_no_program_is_too_strange_to_be_described_and_stored(old: str, new: str) -> None:
    before, after = {"train.py": old}, {"train.py": new}
    words = describe(before, after)
    assert words.startswith("Change ")
    assert words.isprintable() and len(words) <= MAX_LINE
    json.dumps(changes(before, after), allow_nan=False, ensure_ascii=False).encode()


# ---------------------------------------------------------------------- answer
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_only_the_last_line_counts_and_only_as_an_object() -> None:
    assert last_object('{"a": 1}\n{"hypothesis": "deeper"}\n\n') == {"hypothesis": "deeper"}
    assert last_object('{"hypothesis": "a\u2028b\x85", "cost_usd": 0.5}\r\n')["cost_usd"] == 0.5
    for text in ('{"a": 1}\nthat was it\n', "[1]\n", "", "{" * 50_000, '{"a":' * 20_000 + "1" + "}" * 20_000):
        assert last_object(text) == {}


def test_an_unnamed_price_is_unknown_and_not_zero() -> None:
    assert cost_of({}, 1.0).usd is None
    assert cost_of({"cost_usd": 0.25, "tokens_in": 10, "tokens_out": -3}, 1.0).usd == 0.25
    assert cost_of({"cost_usd": -1}, 1.0).usd is None


@given(st.dictionaries(st.text(), JSON, max_size=30))
def test_no_answer_can_make_an_asi_that_cannot_be_stored(found: dict[str, object]) -> None:
    asi = asi_of(found, "h")
    stored = json.dumps(asi.as_dict(), allow_nan=False, ensure_ascii=False).encode()
    assert len(stored) < 40 * MAX_TEXT
    assert len(asi.extra) <= 20


def test_what_the_daemon_says_of_an_experiment_cannot_be_said_by_a_policy() -> None:
    forged = {"\u200bresult": "kept", "failure": "none", "refused": "no_op", "off_surface": "x", "idea": "mine"}
    assert dict(asi_of(forged, "h").extra) == {"idea": "mine"}

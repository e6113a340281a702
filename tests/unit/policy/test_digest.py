"""The digest says in a few lines what was tried, what nearly helped, what failed and why, and what nobody has tried."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label
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
        "MATRIX_LR (3 tried, 1 helped): 0.06: kept +0.01 (#1); 0.09: no_gain -0.01 (#2); "
        "0.2 with 1 other change: nan_loss (#3)"
    )
    assert found.constants == ("MATRIX_LR", "DEPTH")
    assert found.kept == ("#1 faster: kept +0.01",)


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

"""A model is told once that an edit was nearly made before, and never that another value is the same one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label
from autoresearchd.policy.near_duplicates import NearDuplicates

from .histories import experiment

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
    again = (
        CODE.replace("# SwiGLU", "# gated").replace("self.dropout(x)", "self.drop(x)").replace("  x = F.", "   x = F.")
    )
    told = known.look(HEADER + again, {}, B)
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

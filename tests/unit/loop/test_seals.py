"""A metric is believed only while what it rests on stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.task import Evaluation
from autoresearchd.loop.measuring.run_files import ProtectedFiles, Seal, broken, evaluator_version
from tests.unit.evaluator.builders import task

GOOD = Measurement(Label.NONE, 0.5, {"val_bpb": 0.5})


def test_every_difference_is_told_in_words() -> None:
    before = Seal({"a": "1", "b": "1", "c": "1"}, {"a": (1,), "c": (1,)}, frozenset())
    after = Seal({"a": "2", "c": "1", "d": "1"}, {"a": (2,), "c": (2,)}, frozenset({"numpy.py"}))
    assert broken(before, after) == [
        "a was changed", "b is gone", "c was changed and put back", "d appeared", "numpy.py appeared",
    ]  # fmt: skip


def test_the_version_names_files_and_commands() -> None:
    t = replace(task(), evaluation=Evaluation("python evaluate.py"))
    base = evaluator_version(t, Seal({"a": "1", "b": "2"}))
    assert len(base) == 16 and base == evaluator_version(t, Seal({"b": "2", "a": "1"}, {"a": (7,)}))
    others = [
        evaluator_version(t, Seal({"a": "1", "b": "3"})),
        evaluator_version(t, Seal({"a": "1"})),
        evaluator_version(replace(t, evaluation=Evaluation("python evaluate.py --fast")), Seal({"a": "1", "b": "2"})),
    ]
    assert len({base, *others}) == 4


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A pristine copy and a worktree."""
    for name in ("pristine", "worktree"):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "evaluate.py").write_text("score = 1\n")
        (tmp_path / name / "lib" / "part.py").write_text("part = 1\n")
        (tmp_path / name / "train.py").write_text("x = 1\n")
    return tmp_path / "pristine", tmp_path / "worktree"


def files_in(pristine: Path, text: str | None = None) -> ProtectedFiles:
    """What is watched of a task; text: what a restored evaluation has."""
    watched = replace(task(), protected=("evaluate.py", "lib"), data=("data/train.bin",))
    return ProtectedFiles(watched, pristine, lambda: text and (pristine / "evaluate.py").write_text(text))


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("train.py")


def swap(path: Path) -> None:
    text = path.read_text()
    path.write_text("score = 0\n")
    path.write_text(text)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda p, w: (w / "evaluate.py").write_text("score = 0\n"), "evaluate.py was changed in the worktree"),
        (lambda p, w: (w / "lib" / "part.py").unlink(), "lib/part.py is gone in the worktree"),
        (lambda p, w: (p / "evaluate.py").write_text("score = 0\n"), "evaluate.py was changed in the pristine copy"),
        (lambda p, w: swap(p / "evaluate.py"), "evaluate.py was changed and put back in the pristine copy"),
        (lambda p, w: (p / "numpy.py").write_text("evil\n"), "numpy.py appeared in the pristine copy"),
        (lambda p, w: relink(w / "evaluate.py"), "evaluate.py was changed in the worktree"),
    ],
    ids=["worktree", "folder", "pristine", "put back", "shadow", "link"],
)  # fmt: skip
def test_whatever_is_done_to_protected_files_during_a_run_is_seen(folders, act, words) -> None:  # type: ignore[no-untyped-def]
    pristine, worktree = folders
    seals = files_in(pristine).seal(worktree)
    act(pristine, worktree)
    for label in Label:
        told = seals.check(Measurement(label, 0.1, {"val_bpb": 0.1}))
        if RULES[label] is None:
            assert told.label is label, "an interrupted run is run again"
        else:
            assert (told.label, told.value, dict(told.metrics)) == (Label.METRIC_TAMPERING, None, {})
            assert words in told.detail


def test_what_a_run_may_do_is_no_tampering(folders: tuple[Path, Path]) -> None:
    pristine, worktree = folders
    seals = files_in(pristine).seal(worktree)
    (worktree / "notes.txt").write_text("mine\n")
    (worktree / "train.py").write_text("x = 2\n")
    (pristine / "data").mkdir()
    (pristine / "data" / "train.bin").symlink_to("/dev/null")
    assert seals.check(GOOD) is GOOD


def test_a_pristine_copy_that_was_altered_is_fixed_before_the_next_run_or_nothing_is_run(
    folders: tuple[Path, Path],
) -> None:
    pristine, worktree = folders
    fixed, left = files_in(pristine, "score = 1\n"), files_in(pristine)
    (pristine / "evaluate.py").write_text("score = 0\n")
    assert fixed.seal(worktree).check(GOOD) is GOOD
    (pristine / "evaluate.py").write_text("score = 0\n")
    with pytest.raises(EnvironmentFailure, match=r"evaluate\.py was changed"):
        left.seal(worktree)

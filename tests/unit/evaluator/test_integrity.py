"""A metric is believed only while what it rests on stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.task import Evaluation, Task
from autoresearchd.evaluator.rules.legality import Seal, broken, evaluator_version, tampering
from autoresearchd.loop.measuring.run_files import ProtectedFiles
from tests.unit.evaluator.builders import task

GOOD = Measurement(Label.NONE, 0.5, {"val_bpb": 0.5})


def test_every_difference_is_told_in_words() -> None:
    before = Seal({"a": "1", "b": "1", "c": "1"}, {"a": (1,), "c": (1,)}, frozenset())
    after = Seal({"a": "2", "c": "1", "d": "1"}, {"a": (2,), "c": (2,)}, frozenset({"numpy.py"}))
    assert broken(before, after) == [
        "a was changed", "b is gone", "c was changed and put back", "d appeared", "numpy.py appeared",
    ]  # fmt: skip


@pytest.mark.parametrize("label", list(Label))
def test_tampering_outweighs_all_that_a_run_says_of_its_experiment(label: Label) -> None:
    told = tampering(Measurement(label, 0.1, {"val_bpb": 0.1}), {"the worktree": ["a was changed"]})
    if RULES[label].status is None:
        assert told.label is label, "an interrupted run is run again"
    else:
        assert (told.label, told.value, dict(told.metrics)) == (Label.METRIC_TAMPERING, None, {})
        assert "a was changed in the worktree" in told.detail


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


# ---------------------------------------------------------------------- seals of real folders
@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A pristine copy and a worktree."""
    for name in ("pristine", "worktree"):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "evaluate.py").write_text("score = 1\n")
        (tmp_path / name / "lib" / "part.py").write_text("part = 1\n")
        (tmp_path / name / "train.py").write_text("x = 1\n")
    return tmp_path / "pristine", tmp_path / "worktree"


def watched() -> Task:
    return replace(task(), protected=("evaluate.py", "lib"), data=("data/train.bin",))


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
    files = ProtectedFiles(watched(), pristine, lambda: None)
    seals = files.seal(worktree)
    act(pristine, worktree)
    told = seals.check(GOOD)
    assert told.label is Label.METRIC_TAMPERING and words in told.detail


def test_what_a_run_may_do_is_no_tampering(folders: tuple[Path, Path]) -> None:
    pristine, worktree = folders
    files = ProtectedFiles(watched(), pristine, lambda: None)
    seals = files.seal(worktree)
    (worktree / "notes.txt").write_text("mine\n")
    (worktree / "train.py").write_text("x = 2\n")
    (pristine / "data").mkdir()
    (pristine / "data" / "train.bin").symlink_to("/dev/null")
    assert seals.check(GOOD) is GOOD


def test_a_pristine_copy_that_was_altered_is_fixed_before_the_next_run(folders: tuple[Path, Path]) -> None:
    pristine, worktree = folders
    files = ProtectedFiles(watched(), pristine, lambda: (pristine / "evaluate.py").write_text("score = 1\n"))
    (pristine / "evaluate.py").write_text("score = 0\n")
    seals = files.seal(worktree)
    assert seals.check(GOOD) is GOOD


def test_without_a_pristine_copy_nothing_is_run(folders: tuple[Path, Path]) -> None:
    pristine, worktree = folders
    files = ProtectedFiles(watched(), pristine, lambda: None)
    (pristine / "evaluate.py").write_text("score = 0\n")
    with pytest.raises(EnvironmentFailure, match=r"evaluate\.py was changed"):
        files.seal(worktree)

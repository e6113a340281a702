"""A program that runs in the user's folder and not as a job is fixed in task.yaml; the hint says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.evaluator.measure.measurement import missing_paths
from autoresearchd.loop.measuring.advice import hint_job


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The user's folder with ignored files in it, and the same as committed."""
    source, committed = tmp_path / "task", tmp_path / "committed"
    for folder in (source, committed):
        folder.mkdir()
        (folder / "train.py").write_text("")
    (source / "data").mkdir()
    (source / "data/d.csv").write_text("1")
    return source, committed


@pytest.mark.parametrize(
    "words",
    [
        "training exited with 1: FileNotFoundError: [Errno 2] No such file or directory: 'data/d.csv' (train.py:3)",
        "training exited with 1: cat: data/d.csv: No such file or directory",
        "training exited with 1: FileNotFoundError: data/d.csv not found.",
        'training exited with 2: cannot open "data/d.csv" (train.py:3)',
    ],
)
def test_a_file_that_git_does_not_have_is_named_with_the_key_that_shows_it(
    folders: tuple[Path, Path], words: str
) -> None:
    assert "workspace.data: [data/d.csv]" in hint_job(words, *folders)


@pytest.mark.parametrize(
    "words",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/other.csv' (train.py:3)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/env' (train.py:3)",
        "ValueError: 'data/d.csv' holds no rows (train.py:3)",
        "RuntimeError: boom (train.py:3)",
        "No such file or directory: '" + "x/" * 5000,
        "",
    ],
)
def test_what_is_missing_everywhere_or_not_missing_at_all_gets_no_such_hint(
    folders: tuple[Path, Path], words: str
) -> None:
    assert hint_job(words, *folders) == ""


def test_a_read_only_place_is_answered_with_the_writable_one(folders: tuple[Path, Path]) -> None:
    for words in (
        "OSError: [Errno 30] Read-only file system: 'm'",
        "PermissionError: [Errno 13] Permission denied: 'm'",
    ):
        assert "AUTORESEARCHD_OUTPUT_DIR" in hint_job(words, *folders)


def test_a_log_made_to_be_slow_is_not() -> None:
    assert len(missing_paths("not found " + "a." * 100_000 + "/b" * 100_000)) < 2000


def test_a_package_installed_from_the_users_checkout_is_imported_from_the_commit(folders: tuple[Path, Path]) -> None:
    """In the checkout it is another version than the one that was edited."""
    (folders[1] / "src" / "mylib").mkdir(parents=True)
    hint = hint_job("ModuleNotFoundError: No module named 'mylib.layers' (train.py:3)", *folders)
    assert "execution.env: {PYTHONPATH: src}" in hint

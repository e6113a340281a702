"""Which files a task may name, and what they have to be on the disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config import check_files, read_task_text
from autoresearchd.config.task_paths import PathError, data_path, hidden_path, inside_path
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.task import Evaluation, Task
from tests.unit.config.test_load import MINIMAL

TASK = replace(read_task_text(MINIMAL), protected=("prepare.py",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "task"
    (root / "lib").mkdir(parents=True)
    for name in ("train.py", "prepare.py", "lib/model.py"):
        (root / name).write_text("x = 1  # é\n")
    return root


def problem(task: Task, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_files(task, folder)
    assert caught.value.hint
    return str(caught.value)


def test_files_that_are_what_they_should_be_pass(folder: Path) -> None:
    check_files(replace(TASK, editable=("train.py", "lib/model.py"), protected=("prepare.py",)), folder)
    check_files(replace(TASK, editable=("train.py",), protected=("lib",)), folder)


def test_a_missing_target_is_named_with_the_folder_that_was_searched(folder: Path) -> None:
    assert f"'gone.py' is not there (looked in {folder})" in problem(replace(TASK, editable=("gone.py",)), folder)


def test_a_limit_that_the_program_is_above_already_is_told_before_a_session_of_refused_edits(folder: Path) -> None:
    check_files(replace(TASK, max_compressed=200), folder)
    text = problem(replace(TASK, max_compressed=5), folder)
    assert "workspace.max_compressed_bytes" in text and "train.py has" in text and "5 are allowed" in text


def test_a_misspelt_file_is_told_with_its_line(folder: Path) -> None:
    for text, line in ((MINIMAL, 0), ("task:\n" + "".join(f"  {row}\n" for row in MINIMAL.splitlines()), 1)):
        written = text.replace("train.py", "trian.py", 1)
        (folder / "task.yaml").write_text(written)
        where = next(n for n, row in enumerate(written.splitlines(), 1) if "trian.py" in row)
        with pytest.raises(ConfigError, match=rf"task\.yaml:{where}: workspace\.target_file: 'trian\.py' is not there"):
            check_files(read_task_text(written), folder, folder / "task.yaml")
        assert where > line


def test_a_missing_protected_file_is_named(folder: Path) -> None:
    text = problem(replace(TASK, protected=("evaluate.py", "*.bin")), folder)
    assert "workspace.protected: 'evaluate.py' is not there" in text
    assert "patterns are not expanded" in text


def test_missing_data_is_named_unless_set_up_may_make_it(folder: Path) -> None:
    task = replace(TASK, data=("lib/model.py", "data/nope.bin", "/nowhere/x.bin"))
    text = problem(task, folder)
    assert "workspace.data: 'data/nope.bin' is not there" in text
    assert "relative to the folder of task.yaml" in text
    assert "'/nowhere/x.bin' is not there" in text
    assert "lib/model.py" not in text
    evaluation = Evaluation("python e.py", private=("data/val.bin",))
    assert "evaluation.private: 'data/val.bin'" in problem(replace(TASK, evaluation=evaluation), folder)
    made = replace(task.execution, setup_commands=("python prepare.py",))
    check_files(replace(task, evaluation=evaluation, execution=made), folder)


def test_a_missing_folder_is_named(folder: Path) -> None:
    assert "workspace.source_dir" in problem(TASK, folder / "none")


def test_a_binary_target_is_refused(folder: Path) -> None:
    (folder / "train.py").write_bytes(b"\x80\x81")
    assert "not UTF-8" in problem(TASK, folder)
    (folder / "train.py").write_bytes(b"a\0b")
    assert "NUL" in problem(TASK, folder)


def test_a_huge_target_is_refused_without_reading_it(folder: Path) -> None:
    with (folder / "train.py").open("wb") as stream:
        stream.truncate(1 << 34)
    assert "larger than 2 MiB" in problem(TASK, folder)


def test_a_folder_or_a_pipe_is_no_target(folder: Path) -> None:
    assert "no regular file" in problem(replace(TASK, editable=("lib",)), folder)
    os.mkfifo(folder / "pipe")
    assert "no regular file" in problem(replace(TASK, editable=("pipe",)), folder)


@pytest.mark.parametrize("target", ["prepare.py", "../outside.py", "nowhere.py"])
def test_a_target_that_is_a_symbolic_link_is_refused_wherever_it_leads(folder: Path, target: str) -> None:
    (folder.parent / "outside.py").write_text("secret\n")
    (folder / "train.py").unlink()
    (folder / "train.py").symlink_to(target)
    assert "symbolic link" in problem(TASK, folder)


def test_a_target_below_a_linked_folder_is_refused(folder: Path) -> None:
    (folder / "linked").symlink_to(folder / "lib")
    assert "'linked' is a symbolic link" in problem(replace(TASK, editable=("linked/model.py",)), folder)


def test_a_protected_file_outside_the_folder_is_refused(folder: Path) -> None:
    (folder.parent / "outside.py").write_text("x\n")
    (folder / "evaluate.py").symlink_to("../outside.py")
    assert "out of the task's folder" in problem(replace(TASK, protected=("evaluate.py",)), folder)


def test_a_file_below_a_file_is_told_as_missing(folder: Path) -> None:
    assert "is not there" in problem(replace(TASK, editable=("train.py/x",)), folder)


def test_a_file_cannot_be_edited_and_closed_at_once(folder: Path) -> None:
    assert "workspace.protected" in problem(replace(TASK, protected=("train.py",)), folder)
    evaluation = Evaluation("python e.py", private=("lib",))
    assert "evaluation.private" in problem(replace(TASK, editable=("lib/model.py",), evaluation=evaluation), folder)


def test_all_missing_files_are_told_together(folder: Path) -> None:
    text = problem(replace(TASK, editable=("a.py", "b.py"), protected=("c.py",)), folder)
    assert all(f"{name!r} is not there" in text for name in ("a.py", "b.py", "c.py"))


@pytest.mark.parametrize(
    ("text", "plain"), [("./a.py", "a.py"), ("a//b/", "a/b"), ("a/./b", "a/b"), ("a b.py", "a b.py"), ("é.py", "é.py")]
)
def test_a_path_is_kept_in_its_plain_form(text: str, plain: str) -> None:
    assert inside_path(text) == plain


@pytest.mark.parametrize(
    ("text", "plain"),
    [("~/.cache/x/", "~/.cache/x"), ("/data//a", "/data/a"), ("data/a", "data/a"), ("//server/a", "/server/a")],
)
def test_data_may_lie_outside(text: str, plain: str) -> None:
    assert data_path(text) == plain


def test_what_is_hidden_may_be_a_part_of_the_interpreter() -> None:
    assert hidden_path("{stdlib}/test/") == "{stdlib}/test"
    for text in ("{stdlib}", "{stdlib}/..", "{stdlib}/../..", "{purelib}/", "{x}/y"):
        with pytest.raises(PathError):
            hidden_path(text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="a.~/\\ git-\0\n{}:é", max_size=20))
def test_no_text_becomes_a_path_that_leaves_the_folder(text: str) -> None:
    try:
        plain = inside_path(text)
    except PathError as error:
        assert error.hint
        return
    path = PurePosixPath("/task") / plain
    assert path.is_relative_to("/task")
    assert ".." not in path.parts and ".git" not in {part.lower() for part in path.parts}
    assert inside_path(plain) == plain
    assert plain.isprintable()

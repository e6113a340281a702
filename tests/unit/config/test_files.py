"""Which files a task may name, and what they have to be on the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from autoresearchd.config import check_files, read_task_text
from autoresearchd.config.task_paths import data_path, hidden_path, inside_path
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.task import Evaluation, Task
from tests.unit.config.test_load_task import MINIMAL

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
    made = replace(TASK.execution, setup_commands=("python prepare.py",))
    check_files(replace(TASK, data=("data/nope.bin",), execution=made), folder)
    assert "workspace.source_dir" in problem(TASK, folder / "none")
    assert "train.py' is a file, not a folder\n  → name the folder" in problem(TASK, folder / "train.py")
    file = folder / "task.yaml"
    file.write_text("name: t\nworkspace: {source_dir: none}\n")
    with pytest.raises(ConfigError, match=r"task.yaml:2: workspace.source_dir"):
        check_files(TASK, folder / "none", file)


EVALUATION = Evaluation("python e.py", private=("lib",))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"editable": ("gone.py", "b.py"), "protected": ("c.py",)}, ["'gone.py' is not there (looked in", "'c.py'"]),
        ({"protected": ("evaluate.py", "*.bin")}, ["workspace.protected: 'evaluate.py'", "patterns are not expanded"]),
        ({"data": ("lib", "data/nope.bin")}, ["data: 'data/nope.bin'", "relative to the folder of task.yaml"]),
        ({"data": ("/nowhere/x.bin",)}, ["'/nowhere/x.bin' is not there", "let execution.setup_commands make it"]),
        ({"editable": ("binary",)}, ["not UTF-8"]),
        ({"editable": ("huge",)}, ["larger than 1,000,000 bytes"]),
        ({"editable": ("lib",)}, ["not a regular file"]),
        ({"editable": ("link.py",)}, ["symbolic link"]),
        ({"editable": ("linked/model.py",)}, ["'linked' is a symbolic link"]),
        ({"protected": ("out.py",)}, ["out of the task's folder"]),
        ({"editable": ("lib/model.py",), "evaluation": EVALUATION}, ["evaluation.private"]),
    ],
)  # fmt: skip
def test_a_file_that_is_not_what_it_has_to_be_is_named(folder: Path, change: dict[str, Any], words: list[str]) -> None:
    (folder / "binary").write_bytes(b"\x80\x81")
    with (folder / "huge").open("wb") as stream:
        stream.truncate(1 << 34)
    (folder.parent / "outside.py").write_text("secret\n")
    for name, target in (("link.py", "prepare.py"), ("out.py", "../outside.py"), ("linked", "lib")):
        (folder / name).symlink_to(target)
    text = problem(replace(TASK, **change), folder)
    assert all(part in text for part in words)


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


@pytest.mark.parametrize(
    ("rule", "text", "plain"),
    [(inside_path, "./a.py", "a.py"), (inside_path, "a//b/", "a/b"), (inside_path, "a b/./é.py", "a b/é.py"),
     (data_path, "~/.cache/x/", "~/.cache/x"), (data_path, "//data//a", "/data/a"), (data_path, "data/a", "data/a"),
     (hidden_path, "{stdlib}/test/", "{stdlib}/test"), (hidden_path, "{stdlib}", ""), (hidden_path, "{purelib}/", ""),
     (hidden_path, "{stdlib}/../..", ""), (hidden_path, "{x}/y", "")],
)  # fmt: skip
def test_a_path_is_kept_in_its_plain_form_or_refused(rule: Callable[[str], str], text: str, plain: str) -> None:
    if plain:
        assert rule(text) == plain
    else:
        with pytest.raises(ValueError):
            rule(text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="a.~/\\ git-\0\n{}:é", max_size=20))
def test_no_text_becomes_a_path_that_leaves_the_folder(text: str) -> None:
    try:
        plain = inside_path(text)
    except PydanticCustomError as error:
        assert (error.context or {})["hint"]
        return
    path = PurePosixPath("/task") / plain
    assert path.is_relative_to("/task")
    assert ".." not in path.parts and ".git" not in {part.lower() for part in path.parts}
    assert inside_path(plain) == plain
    assert plain.isprintable()

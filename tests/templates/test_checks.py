"""check.yaml of the bundled tasks: what it says fits the program as it is, the README tells the same, and it holds."""

from __future__ import annotations

import base64
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from autoresearchd.app.tasks.check_task import SHORT, check_held
from autoresearchd.app.tasks.task_folder import task_folder
from autoresearchd.cli.main import run
from autoresearchd.config import check_files, load_task
from autoresearchd.config.load_task import CHECK_FILE, load_check
from autoresearchd.config.task_schema import CheckFile, Edit
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.evaluator.rules.task_variants import changed
from autoresearchd.policy.search.find_constants import find
from autoresearchd.resources import bundled
from tests.templates.programs import load_program

FOLDERS = sorted(path.parent for path in bundled("templates").glob(f"*/{CHECK_FILE}"))
FAST = ("terrain",)
"""Tasks whose short check is made at each test run; that of the others is for the night."""


def loaded(folder: Path) -> tuple[Task, CheckFile]:
    return load_task(folder, profile="cpu"), load_check(folder)


def edited(folder: Path, task: Task, variant: Edit) -> dict[str, str]:
    source = folder / task.source_dir
    paths = {*task.editable, *(step.file for step in variant.change if step.file)}
    files = {path: (source / path).read_text("utf-8") for path in paths}
    return changed(variant, files, task.editable[0], {})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_edit_and_cheat_fits_the_program_as_it_is(folder: Path) -> None:
    task, check = loaded(folder)
    assert check.edits and len(check.cheats) >= 5, "an honest edit and five cheats at least"
    before = {path: (folder / task.source_dir / path).read_text("utf-8") for path in task.editable}
    for variant in (*check.edits, *check.cheats):
        after = edited(folder, task, variant)
        assert any(after[path] != before.get(path) for path in after), variant.name
    for edit in check.edits:
        check_edit(task, before, edited(folder, task, edit))


@pytest.mark.parametrize("profile", ["cpu", "cuda"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_task_file_is_in_order_and_leaves_much_to_tune(folder: Path, profile: str) -> None:
    task = load_task(folder, profile=profile)
    check_files(task, folder, folder / "task.yaml")
    others = {path.name for path in folder.glob("*.py")} - {*task.editable, *task.protected}
    assert others <= {"finetune.py"}, "each program is edited or protected, but for the other profile's"
    (edited,) = task.editable
    if folder.name in OF_REAL_DATA | {"baseball-pitch-synthetic"}:
        assert len(find((folder / edited).read_text(), path=edited, profile=profile)) >= 8


OF_REAL_DATA = {
    "autoresearch", "baseball-pitch", "cifar-speedrun", "nanochat-core", "parameter-golf", "rl-finetune",
    "sft-classifier", "terrain",
}  # fmt: skip
"""Tasks whose answers, or the weights that find them, could be made beforehand and written into the program."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_weights_and_long_texts_that_were_made_beforehand_have_no_room_in_the_program(folder: Path) -> None:
    if folder.name not in OF_REAL_DATA:
        pytest.skip("its answers are drawn when it is set up or scored, or the program is no place for them")
    for profile in ("cpu", "cuda"):
        task = load_task(folder, profile=profile)
        before = {path: (folder / task.source_dir / path).read_text("utf-8") for path in task.editable}
        program = task.editable[0]
        brought = base64.b85encode(random.Random(1).randbytes(4000)).decode()
        with pytest.raises(PolicyError, match="max_compressed_bytes"):
            check_edit(task, before, {program: f"{before[program]}\nBROUGHT = {brought!r}\n"})


@pytest.mark.parametrize("name", ["nanochat-core", "parameter-golf"])
def test_the_text_that_is_asked_about_is_hidden_from_the_job(name: str) -> None:
    evaluation = load_task(bundled("templates") / name).evaluation
    hidden = {path.removeprefix("{purelib}/") for path in evaluation.hide} if evaluation else set()
    assert hidden == set(load_program(bundled("templates") / name, "python_text").HELD_OUT)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_readme_tells_the_baseline_that_the_check_holds_the_task_to(folder: Path) -> None:
    _, check = loaded(folder)
    assert "cpu" in check.baseline
    page = (folder / "README.md").read_text("utf-8")
    assert [figures.text for figures in check.baseline.values() if figures.text not in page] == []


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, id=folder.name, marks=[] if folder.name in FAST else [pytest.mark.nightly])
        for folder in FOLDERS
    ],
)
def test_the_short_check_passes(folder: Path) -> None:
    held = check_held(folder, extent=SHORT)
    assert held.faults == ()
    assert len(held.edits) == 1 and sum(cheat.right for cheat in held.cheats) == 2


def test_neither_start_nor_task_init_shows_a_policy_how_to_cheat(tmp_path: Path) -> None:
    started = task_folder("terrain", tmp_path / "started", ExitStack())
    assert run(["task", "init", "terrain", str(tmp_path / "made")]) == 0
    for folder in (started, tmp_path / "made"):
        assert (folder / "task.yaml").is_file()
        assert not (folder / CHECK_FILE).exists()

"""Which commands of a user's own are let pass: what a shell would find, and all that only a shell can tell."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.app.tasks.job_programs import require_bits, require_programs, require_tool
from autoresearchd.config import read_task_text
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.task import Check, Evaluation, Task
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.repositories import git, make_repository


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "repository"
    make_repository(folder, {"train.py": "X = 1\n", "propose.sh": "true\n", "my tools/edit.py": "pass\n", "no.sh": ""})
    for name in ("propose.sh", "my tools/edit.py"):
        git(folder, "add", "--chmod=+x", name)
    git(folder, "commit", "-qm", "executable")
    return folder


def opened(root: Path) -> closing[GitWorkspace]:
    return closing(GitWorkspace.open(root, "t", task_folder=root, editable=("train.py",)))


def check(root: Path, command: str) -> None:
    with opened(root) as workspace:
        require_tool(command, workspace, workspace.head(), root)


@pytest.mark.parametrize(
    "command",
    [
        "./propose.sh", "sh propose.sh 2>/dev/null", "sh no.sh", "'./my tools/edit.py' --fast",
        "KEY=1 OTHER='a b' ./propose.sh", "cd 'my tools' && ./edit.py", "if true; then ./later.sh; fi",
        "(cd nowhere; ./x)", "edit() { sed -i s/1/2/ train.py; }; edit", "! true", "$HOME/propose.sh",
        "`which true`", "# a remark\ntrue", "exec ./propose.sh", "true", "python3 -m some.module",
        "env python3 x.py", f"{sys.executable} -c pass", "~nobody/x.sh", "echo 'no end",
    ],
)  # fmt: skip
def test_what_a_shell_may_find_is_let_pass(root: Path, command: str) -> None:
    check(root, command)


@pytest.mark.parametrize(
    "command",
    ["./Propose.sh", "./no.sh", "propose", "sh ./nope", "KEY=1 nope", "~/nope.sh", "nope; true"],
)
def test_what_no_shell_will_find_is_refused(
    root: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        check(root, command)
    assert caught.value.hint


def task_of(command: str, **execution: object) -> Task:
    task = read_task_text(
        f"name: a\nworkspace: {{target_file: train.py}}\nexecution: {{run_command: {json.dumps(command)}}}\n"
        "scoring: {metric: loss, direction: minimize}\n"
    )
    return replace(task, execution=replace(task.execution, **execution))


COMMAND = "A=1 ./no.sh --fast"


@pytest.mark.parametrize(
    ("key", "task"),
    [
        ("execution.setup_commands", task_of("true", setup_commands=(COMMAND, "true"))),
        ("evaluation.model_command", replace(task_of("true"), evaluation=Evaluation("true", model_command=COMMAND))),
        ("checks", replace(task_of("true"), checks=(Check(COMMAND),))),
    ],
)
def test_a_script_that_was_committed_without_its_executable_bit_is_named_with_its_key_before_anything_runs(
    root: Path, key: str, task: Task
) -> None:
    with opened(root) as workspace, pytest.raises(UsageError) as caught:
        require_bits(task, workspace, workspace.head())
    assert key in caught.value.what
    assert "./no.sh may not be executed" in caught.value.what
    assert "git add --chmod=+x -- no.sh" in caught.value.hint
    assert "sh ./no.sh" in caught.value.hint


# ---------------------------------------------------------------------- the programs of a task's own commands
@pytest.mark.parametrize(
    "command",
    [
        "python train.py", "python3 -m train", "./propose.sh", "SEED=1 sh no.sh", f"{sys.executable} train.py",
        "cd . && nothing-yet", "$PYTHON train.py", "~/env/bin/python train.py", "exec python train.py",
    ],
)  # fmt: skip
def test_a_command_that_a_job_finds_passes_the_check(root: Path, command: str) -> None:
    assert require_programs(task_of(command), root) == ()


@pytest.mark.parametrize("command", ["python9 train.py", "/opt/none/bin/python train.py", "./gone.sh", "A=1 pyhton x"])
def test_an_interpreter_that_is_nowhere_is_named_before_a_night_is_lost_to_it(root: Path, command: str) -> None:
    with pytest.raises(MissingCapability, match=r"execution\.run_command begins with") as caught:
        require_programs(task_of(command), root)
    assert caught.value.exit_code == 5 and "task.yaml" in caught.value.hint
    [note] = require_programs(task_of(command, setup_commands=("make tools",)), root)
    assert "setup" in note, "what set-up makes cannot be known before"

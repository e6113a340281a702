"""Which commands of a user's own are let pass: what a shell would find, and all that only a shell can tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoresearchd.app.tools import require_tool
from autoresearchd.errors import UsageError
from autoresearchd.testing.repositories import make_repository
from autoresearchd.workspace.git import GitWorkspace


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "repository"
    make_repository(folder, {"train.py": "X = 1\n", "propose.sh": "true\n", "my tools/edit.py": "pass\n"})
    return folder


def check(root: Path, command: str) -> None:
    workspace = GitWorkspace.open(root, "t", task_folder=root, editable=("train.py",))
    try:
        require_tool(command, workspace, workspace.head(), root)
    finally:
        workspace.close()


@pytest.mark.parametrize(
    "command",
    [
        "./propose.sh",
        "sh propose.sh 2>/dev/null",
        "'./my tools/edit.py' --fast",
        "KEY=1 OTHER='a b' ./propose.sh",
        "cd 'my tools' && ./edit.py",
        "if true; then ./later.sh; fi",
        "(cd nowhere; ./x)",
        "edit() { sed -i s/1/2/ train.py; }; edit",
        "! true",
        "$HOME/propose.sh",
        "`which true`",
        "# a remark\ntrue",
        "exec ./propose.sh",
        "true",
        "python3 -m some.module",
        "env python3 x.py",
        f"{sys.executable} -c pass",
        "~nobody/x.sh",
        "echo 'no end",
    ],
)
def test_what_a_shell_may_find_is_let_pass(root: Path, command: str) -> None:
    check(root, command)


def test_a_sub_command_of_uv_is_not_taken_for_a_script(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    check(root, "uv run.all edit.py")


@pytest.mark.parametrize("command", ["./Propose.sh", "propose", "sh ./nope", "KEY=1 nope", "~/nope.sh", "nope; true"])
def test_what_no_shell_will_find_is_refused(
    root: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        check(root, command)
    assert caught.value.mend

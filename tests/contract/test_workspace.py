"""The workspaces: git at the top of a repository and in a folder of one with an awkward name, and the fake."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.domain.ports import Workspace
from autoresearchd.workspace.git import GitWorkspace
from tests.contract.workspace_contract import TRAIN, WorkspaceContract
from tests.fakes.repositories import make_repository
from tests.fakes.workspaces import FakeWorkspace

TASK = {"train.py": TRAIN, "prepare.py": "print('prepared')\n"}


class TestGitAtTheTop(WorkspaceContract):
    def make(self, folder: Path, history: str = "refs") -> tuple[Workspace, str]:
        root = folder / "repository"
        base = make_repository(root, TASK)
        workspace = GitWorkspace(root, "night", task_folder=root, editable=["train.py"], history=history)
        workspace.begin(base)
        return workspace, base


class TestGitInASubfolder(WorkspaceContract):
    def make(self, folder: Path, history: str = "refs") -> tuple[Workspace, str]:
        root = folder / "my répertoire — 実験"
        name = "tasks/tiny model (ü) -x"
        base = make_repository(root, {"README": "top\n", **{f"{name}/{path}": text for path, text in TASK.items()}})
        workspace = GitWorkspace(root, "nov21-2", task_folder=root / name, editable=["train.py"], history=history)
        workspace.begin(base)
        return workspace, base


class TestFake(WorkspaceContract):
    def make(self, folder: Path, history: str = "refs") -> tuple[Workspace, str]:
        workspace = FakeWorkspace(folder)
        return workspace, workspace.begin(TASK)

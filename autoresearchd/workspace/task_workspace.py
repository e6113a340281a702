"""The git adapter of a session's task, and where its set-up leaves files."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from autoresearchd.domain.task import Task
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import GitWorkspace


def open_workspace(root: Path, tag: str, task: Task, folder: Path) -> GitWorkspace:
    """The git adapter for a task's folder in the checkout at ``root``."""
    return GitWorkspace.open(
        root,
        tag,
        task_folder=folder,
        editable=task.editable,
        history=task.history,
        keep=(*task.data, *(task.evaluation.private if task.evaluation else ())),
    )


def setup_dir(root: Path, workspace: GitWorkspace, base_commit: str, task: Task) -> Path:
    """One folder for each content of protected files, commands, profile and interpreter."""
    text = json.dumps(
        [
            workspace.fingerprint(base_commit, task.protected),
            task.execution.setup_commands,
            task.profile,
            task.execution.python or sys.executable,
        ]
    )
    return layout.setup_dir(root, hashlib.sha256(text.encode()).hexdigest()[:16])

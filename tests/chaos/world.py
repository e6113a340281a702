"""A user's repository with everything in it that a daemon could harm, and a task whose results follow from seeds alone.

The job is a bowl over a few constants with noise from the run's seed. It leaves a process behind that ignores SIGTERM
in a session of its own, hands its model over in its output folder, and is measured by the evaluator's own command, so
that a run has a training and an evaluation to be killed in. Session, base commit and all seeds are fixed: two sessions
can only differ by what a crash did to one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.config import dump_task, load_task
from autoresearchd.domain.experiment import Limits, Session
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.task import Task
from autoresearchd.workspace.git import GitWorkspace
from autoresearchd.workspace.task_workspace import open_workspace
from tests.fakes.repositories import checkout_snapshot, write_files

TAG = "night"
PROGRAM = """\
import os
import signal
import sys
import time

SCALE = 1.0
SHIFT = 0.5
RATE = 1e-3
DEPTH = 4

if os.fork() == 0:  # a stray that only the end of the whole tree ends
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(0, 3)
    time.sleep(300)
    os._exit(0)
if DEPTH > 6:
    raise ValueError("too deep")
time.sleep(0.02)
noise = (int(os.environ["AUTORESEARCHD_SEED"]) % 1009 / 1009 - 0.5) * 0.02
value = (SCALE - 2.0) ** 2 + (SHIFT - 1.0) ** 2 + 10 * RATE + abs(DEPTH - 5) / 50 + noise
with open(os.path.join(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "model"), "w") as file:
    file.write(repr(value))
"""
EVALUATE = """\
import os
import time

time.sleep(0.02)
with open(os.path.join(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "model")) as file:
    print(f"score: {float(file.read()):.9f}")
"""
TASK = """\
name: bowl
workspace: {target_file: train.py, protected: [evaluate.py]}
execution: {run_command: python -S train.py, budget: 20, startup_grace: 10, training_time: budget}
evaluation: {command: python -S evaluate.py}
scoring: {metric: score, direction: minimize}
"""
WHEN = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


@dataclass(frozen=True)
class World:
    """A project and its session. root: top of the user's checkout."""

    root: Path

    @property
    def project(self) -> Project:
        """The project as commands see it."""
        return Project.at(self.root)

    @property
    def runs(self) -> Path:
        """Where the session's runs leave their logs."""
        return self.root / ".autoresearchd/runs" / TAG

    @property
    def state(self) -> Path:
        """The daemon's own folder."""
        return self.root / ".git/autoresearchd"

    def git(self, *arguments: str, check: bool = True) -> str:
        """git as the user has it."""
        return user_git(self.root, *arguments, check=check)

    def users_files(self) -> dict[str, str]:
        """All that belongs to the user, by content and time of change."""
        return checkout_snapshot(self.root)

    def refs(self) -> dict[str, str]:
        """Commit of each experiment by its number, as git has it."""
        prefix = f"refs/autoresearch/{TAG}/"
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)", prefix).splitlines()
        return {name.removeprefix(prefix): commit for name, commit in (line.split() for line in lines)}

    def branch_commits(self, base: str) -> list[str]:
        """Commits of the session's branch since its base, oldest first."""
        found = self.git("rev-list", "--reverse", "--first-parent", f"{base}..autoresearch/{TAG}", check=False)
        return found.split()


def user_git(root: Path, *arguments: str, check: bool = True) -> str:
    """git with the user's identity at a fixed time."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "A User",
        "GIT_AUTHOR_EMAIL": "user@example.org",
        "GIT_COMMITTER_NAME": "A User",
        "GIT_COMMITTER_EMAIL": "user@example.org",
        "GIT_AUTHOR_DATE": "2026-05-04T03:02:01Z",
        "GIT_COMMITTER_DATE": "2026-05-04T03:02:01Z",
        "LC_ALL": "C",
    }
    done = subprocess.run(["git", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"git {' '.join(arguments)}: {done.stderr}")
    return done.stdout.rstrip("\n")


def make_template(folder: Path) -> Path:
    """A repository with user's work of every kind in it, to be copied for each world."""
    root = folder / "template"
    root.mkdir(parents=True)
    user_git(root, "init", "--quiet", "--initial-branch=main", "--template=")
    write_files(
        root,
        {
            "train.py": PROGRAM,
            "evaluate.py": EVALUATE,
            "task.yaml": TASK,
            "notes.md": "committed\n",
            "lib/a.py": "a = 1\n",
            ".gitignore": "*.tmp\n",
        },
    )
    (root / "link").symlink_to("notes.md")
    user_git(root, "add", "--all")
    user_git(root, "commit", "--quiet", "--message", "the user's first commit")
    user_git(root, "branch", "feature")
    user_git(root, "tag", "v1")
    (root / "lib/a.py").write_text("a = 'stashed'\n")
    user_git(root, "stash", "push", "--quiet")
    (root / "notes.md").write_text("staged\n")
    user_git(root, "add", "notes.md")
    (root / "notes.md").write_text("staged and changed again\n")
    write_files(root, {"untracked.txt": "mine\n", "ignored.tmp": "mine too\n", ".git/hooks/post-commit": HOOK})
    (root / ".git/hooks/post-commit").chmod(0o755)
    (root / ".git/hooks/reference-transaction").write_text(HOOK)
    (root / ".git/hooks/reference-transaction").chmod(0o755)
    user_git(root, "config", "gc.auto", "1")
    user_git(root, "config", "alias.st", "status")
    return root


HOOK = "#!/bin/sh\ntouch hook-was-run\n"


def make_world(template: Path, root: Path, *, seed: int, experiments: int, policy: str = "search") -> World:
    """A copy of the template with a fresh session on it, as ``start`` leaves it to the daemon."""
    shutil.copytree(template, root, symlinks=True)
    project = Project.at(root)
    task = load_task(root)
    store = project.open_store()
    try:
        workspace = workspace_of(project, task)
        base = workspace.head()
        store.create_session(
            NewSession(
                tag=TAG,
                branch=workspace.branch,
                task_json=dump_task(task),
                policy=policy,
                executor="local",
                base_commit=base,
                seed=seed,
                limits=Limits(max_experiments=experiments),
            ),
            WHEN,
        )
        workspace.close()
    finally:
        store.close()
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text(".autoresearchd/\n")
    return World(root)


def workspace_of(project: Project, task: Task) -> GitWorkspace:
    """The session's workspace."""
    return open_workspace(project.root, TAG, task, project.root)


def session_of(world: World) -> Session:
    """The session as the store has it."""
    store = world.project.open_store()
    try:
        return store.session(TAG)
    finally:
        store.close()

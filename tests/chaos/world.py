"""A user's repository with everything in it that a daemon could harm, and a task whose results follow from seeds alone.

The job is a bowl over a few constants with noise from the run's seed and the constants, so that small gains are luck
and chains of keeps are confirmed, fall, and stay undecided. It leaves a process behind that ignores SIGTERM
in a session of its own, hands its model over in its output folder, and is measured by the evaluator's own command, so
that a run has a training and an evaluation to be killed in. Session, base commit and all seeds are fixed: two sessions
can only differ by what a crash did to one of them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.config import dump_task, load_task
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.ports import NewSession
from autoresearchd.workspace.git import open_workspace
from tests.fakes.repositories import checkout_snapshot, git, make_repository, write_files

TAG = "night"
PROGRAM = """\
import os
import signal
import sys
import time
import zlib

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
luck = zlib.crc32(repr((os.environ["AUTORESEARCHD_SEED"], SCALE, SHIFT, RATE, DEPTH)).encode())
noise = (luck % 1009 / 1009 - 0.5) * 0.2
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
        return Project.at(self.root)

    @property
    def runs(self) -> Path:
        return self.root / ".autoresearchd/runs" / TAG

    @property
    def state(self) -> Path:
        return self.root / ".git/autoresearchd"

    def git(self, *arguments: str, check: bool = True) -> str:
        return git(self.root, *arguments, check=check)

    def users_files(self) -> dict[str, str]:
        return checkout_snapshot(self.root)

    def refs(self) -> dict[str, str]:
        """Commit of each experiment by its number, as git has it."""
        prefix = f"refs/autoresearch/{TAG}/"
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)", prefix).splitlines()
        return {name.removeprefix(prefix): commit for name, commit in (line.split() for line in lines)}

    def tree(self, commit: str) -> str:
        """The files of a commit, by one name; empty where it is not there."""
        return self.git("rev-parse", "--quiet", "--verify", f"{commit}^{{tree}}", check=False)

    def branch_commits(self, base: str) -> list[str]:
        """Commits of the session's branch since its base, oldest first."""
        found = self.git("rev-list", "--reverse", "--first-parent", f"{base}..autoresearch/{TAG}", check=False)
        return found.split()


def make_template(folder: Path) -> Path:
    """A repository with user's work of every kind in it, to be copied for each world."""
    root = folder / "template"
    root.mkdir(parents=True)
    (root / "link").symlink_to("notes.md")
    own = {"notes.md": "committed\n", "lib/a.py": "a = 1\n", ".gitignore": "*.tmp\n"}
    make_repository(root, {"train.py": PROGRAM, "evaluate.py": EVALUATE, "task.yaml": TASK, **own})
    git(root, "branch", "feature")
    git(root, "tag", "v1")
    (root / "lib/a.py").write_text("a = 'stashed'\n")
    git(root, "stash", "push", "--quiet")
    (root / "notes.md").write_text("staged\n")
    git(root, "add", "notes.md")
    (root / "notes.md").write_text("staged and changed again\n")
    write_files(root, {"untracked.txt": "mine\n", "ignored.tmp": "mine too\n"})
    for hook in ("post-commit", "reference-transaction"):
        write_files(root, {f".git/hooks/{hook}": "#!/bin/sh\ntouch hook-was-run\n"})
        (root / ".git/hooks" / hook).chmod(0o755)
    git(root, "config", "gc.auto", "1")
    git(root, "config", "alias.st", "status")
    return root


def make_world(template: Path, root: Path, *, seed: int, experiments: int, history: str = "refs") -> World:
    """A copy of the template with a fresh session on it, as ``start`` leaves it to the daemon.

    One with an even seed confirms each keep at once, one with an odd seed what was gained in the end.
    """
    shutil.copytree(template, root, symlinks=True)
    project = Project.at(root)
    task = replace(load_task(root), history=history)
    task = replace(task, scoring=replace(task.scoring, confirm_every=0.0 if seed % 2 == 0 else 25.0))
    limits = Limits(max_experiments=experiments)
    with project.open_store() as store:
        workspace = open_workspace(project.root, TAG, task, root)
        new = NewSession(TAG, workspace.branch, dump_task(task), "search", "local", workspace.head(), seed, limits)
        store.create_session(new, WHEN)
        workspace.close()
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text(".autoresearchd/\n")
    return World(root)

"""Defects that killing daemons and cutting power has found, each where it was fixed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.workspace import command
from autoresearchd.workspace.git import GitWorkspace
from tests.chaos.harness import Harness
from tests.chaos.invariants import Breaches, check_end
from tests.chaos.mortal import Fate
from tests.fakes.repositories import commit_all, git, make_repository, write_files

WHEN = datetime(2026, 5, 6, tzinfo=UTC)
FAILING = """\
name: toy
workspace: {target_file: train.py}
execution: {run_command: python -S train.py, budget: 20, startup_grace: 5}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""
SPY = """#!/bin/sh
case "$1" in
update-ref) tee -a "{record}" | "{git}" "$@" ;;
*) exec "{git}" "$@" ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    make_repository(folder)
    return folder


@pytest.fixture
def workspace(root: Path) -> Iterator[GitWorkspace]:
    workspace = GitWorkspace.open(root, "night", task_folder=root, editable=["train.py"])
    workspace.begin(workspace.head())
    yield workspace
    workspace.close()


def edit(workspace: GitWorkspace, number: int) -> str:
    files = {"train.py": f"x = {number}\n"}
    return workspace.commit(number=number, parent=workspace.head(), files=files, message="try\n", when=WHEN)


def test_a_git_killed_while_a_session_begins_leaves_what_the_next_start_completes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, folder = tmp_path / "record", tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(SPY.format(record=record, git=command.find_git()))
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    workspace = GitWorkspace.open(root, "night", task_folder=root, editable=["train.py"])
    workspace.begin(workspace.head())
    workspace.close()
    written = [line.split()[1] for line in record.read_text().splitlines()]
    assert written == ["refs/autoresearch/night/0", "refs/heads/autoresearch/night"]
    git(root, "update-ref", "-d", written[1])
    workspace.begin(workspace.head())
    assert workspace.tip() == workspace.head()
    workspace.close()


@pytest.mark.parametrize("content", [b"", b"\0" * 41, b"\n"])
def test_a_ref_that_a_power_cut_emptied_is_written_again(root: Path, workspace: GitWorkspace, content: bytes) -> None:
    commits = {number: edit(workspace, number) for number in (1, 2)}
    assert workspace.damaged(commits) == []
    (root / ".git/refs/autoresearch/night/1").write_bytes(content)
    assert workspace.damaged(commits) == [1]
    assert edit(workspace, 1) == commits[1] == git(root, "rev-parse", "refs/autoresearch/night/1")
    assert workspace.damaged(commits) == []


def test_a_branch_that_a_power_cut_emptied_is_restored_and_one_that_says_anything_is_not(
    root: Path, workspace: GitWorkspace
) -> None:
    branch, head, mine = root / ".git/refs/heads/autoresearch/night", workspace.head(), edit(workspace, 1)
    branch.write_bytes(b"")
    workspace.restore_branch(head)
    assert workspace.tip() == head
    git(root, "update-ref", "refs/heads/autoresearch/night", mine)
    workspace.restore_branch(head)
    assert workspace.tip() == mine
    git(root, "update-ref", "-d", "refs/heads/autoresearch/night")
    workspace.restore_branch(head)
    assert git(root, "branch", "--list", "autoresearch/night") == ""


@pytest.mark.parametrize("name", ["refs/heads/autoresearch/night", "refs/autoresearch/night/0"])
def test_a_session_cut_off_while_it_began_begins_again(root: Path, workspace: GitWorkspace, name: str) -> None:
    (root / ".git" / name).write_bytes(b"")
    if name.endswith("0"):
        git(root, "update-ref", "-d", "refs/heads/autoresearch/night")
    workspace.begin(workspace.head())
    assert workspace.tip() == workspace.head() == git(root, "rev-parse", name)


def test_the_branch_is_flushed_before_it_takes_its_place(workspace: GitWorkspace) -> None:
    said = workspace._public.ask("config", "--get", "core.fsync")
    assert "reference" in said.split(",")


@pytest.mark.parametrize("lost", ["commit", "tree", "blob"])
def test_a_commit_whose_objects_a_power_cut_took_is_found(root: Path, workspace: GitWorkspace, lost: str) -> None:
    commit = edit(workspace, 1)
    names = {"commit": "", "tree": "^{tree}", "blob": ":train.py"}
    sha = git(root, "rev-parse", commit + names[lost])
    (root / ".git/objects" / sha[:2] / sha[2:]).unlink()
    assert workspace.damaged({1: commit}) == [1]
    assert edit(workspace, 1) == commit
    assert workspace.damaged({1: commit}) == []


def test_a_lock_whose_time_lies_in_the_future_is_known_by_how_long_it_has_been_seen(
    root: Path, workspace: GitWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = edit(workspace, 1)
    lock = root / ".git/refs/heads/autoresearch/night.lock"
    lock.touch()
    os.utime(lock, (time.time() + 9000, time.time() + 9000))
    with pytest.raises(EnvironmentFailure, match="git is locked"):
        workspace.advance(workspace.head(), commit)
    later = time.monotonic() + 11.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    workspace.advance(workspace.head(), commit)
    assert workspace.tip() == commit


def test_a_reader_that_is_killed_each_time_says_so_and_not_that_the_repository_is_damaged(
    root: Path, tmp_path: Path
) -> None:
    workspace = GitWorkspace.open(root, "night", task_folder=root, editable=["train.py"])
    store, head = workspace._objects, workspace.head()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\nread line\nkill -KILL $$\n")
    (folder / "git").chmod(0o755)
    store._git.update_environment(PATH=f"{folder}:{os.environ['PATH']}")
    with pytest.raises(EnvironmentFailure, match="cat-file"):
        store.read(head, "commit")
    store._git.update_environment(PATH=os.environ["PATH"])
    assert store.commit(head).parents == ()
    workspace.close()


def test_what_lies_in_the_folder_of_a_run_that_has_not_begun_is_not_taken_for_its_result(harness: Harness) -> None:
    world = harness.world("world", seed=31, experiments=4)
    for number in range(1, 5):
        folder = world.runs / str(number) / "0"
        (folder / "output").mkdir(parents=True)
        (folder / "result.json").write_text(
            '{"stages": [{"name": "training", "outcome": "ok", "exit_code": 0, "duration_s": 1, "log_path": "x"}],'
            ' "duration_s": 1, "facts": {}}'
        )
    breaches = Breaches()
    assert harness.nursery.wait(harness.start(world, fate=Fate("store.open_run", "after", 4)), 30.0) == -9
    harness.finish(world, breaches, "")
    check_end(world, 4, harness.undisturbed(31, 4), breaches, "")
    assert breaches.lines() == []


DYING = """
import os, sys
from autoresearchd.cli.main import run
from autoresearchd.store.repository import SqlStore
SqlStore.delete_session = lambda self, tag: os._exit(9)
sys.exit(run(sys.argv[1:]))
"""


def test_a_daemon_killed_while_it_takes_a_failed_session_away_is_followed_by_one_that_does(
    root: Path, tmp_path: Path
) -> None:
    write_files(root, {"train.py": "RATE = 0.1\nraise SystemExit('no')\n", "task.yaml": FAILING})
    commit_all(root)
    before = git(root, "for-each-ref")
    environment = {**os.environ, "HOME": str(tmp_path), "AUTORESEARCHD_CONFIG": "/dev/null"}

    def cli(program: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *program, *arguments], cwd=root, env=environment, capture_output=True, text=True
        )

    whole = ("-m", "autoresearchd")
    begin = ("start", "--foreground", "--tag", "night", "--policy", "random", "--max-experiments", "1")
    assert cli(("-c", DYING), *begin).returncode == 9
    assert git(root, "for-each-ref") == before, "git is as it was, and the session is there still"
    done = cli(whole, "resume", "night", "--foreground")
    assert done.returncode == 3, done.stderr
    assert git(root, "for-each-ref") == before
    refused = cli(whole, "resume", "night")
    assert (refused.returncode, "no session" in refused.stderr) == (2, True), refused.stderr

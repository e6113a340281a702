"""What is done to git behind the daemon's back: by hand, by a git that died, by a clock that was set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.harness import LIFE_S, SHORT, Harness
from tests.chaos.invariants import Journal
from tests.chaos.mortal import Fate
from tests.chaos.world import World
from tests.e2e.conftest import TASK
from tests.fakes.repositories import git, make_repository
from tests.timing import wait_until

BRANCH = "refs/heads/autoresearch/night"


@pytest.fixture
def interrupted(harness: Harness, world: World) -> World:
    """A session whose daemon was killed while it worked on its second experiment."""
    pid = harness.start(world, fate=Fate("executor.start", "after", 5))
    assert harness.nursery.wait(pid, LIFE_S) == -signal.SIGKILL
    assert Journal.read(world).experiments[-1].number == 2
    return world


def test_lock_files_that_a_dead_git_left_in_our_own_places_are_removed(harness: Harness, interrupted: World) -> None:
    users = interrupted.users_files()
    slot = next((interrupted.state / "worktrees/night").glob("slot0.git"))
    an_hour_ago = time.time() - 3600
    for lock in (
        slot / "index.lock",
        slot / "HEAD.lock",
        interrupted.root / f".git/{BRANCH}.lock",
        *(interrupted.root / f".git/refs/autoresearch/night/{n}.lock" for n in range(3, SHORT + 1)),
    ):
        lock.touch()
        os.utime(lock, (an_hour_ago, an_hour_ago))
    harness.ends_as_undisturbed(interrupted, users=users, composed=True)
    assert not list((interrupted.root / ".git/refs").rglob("*.lock"))


def test_a_lock_of_the_user_is_neither_waited_for_nor_removed(harness: Harness, interrupted: World) -> None:
    lock = interrupted.root / ".git/index.lock"
    lock.touch()
    os.utime(lock, (0, 0))
    harness.ends_as_undisturbed(interrupted)
    assert lock.exists()


def test_worktrees_deleted_while_runs_are_under_way_cost_no_experiment(harness: Harness, world: World) -> None:
    pid = harness.start(world, composed=True)
    deleted = 0
    while harness.nursery.wait(pid, 0.05) is None:
        tree = world.state / "worktrees/night/slot0"
        if deleted < 3 and (tree / "train.py").exists():
            tree.rename(world.root.parent / f"deleted-{deleted}")
            deleted += 1
    assert deleted == 3  # of one experiment, perhaps: a fourth time its own program would be blamed
    harness.ends_as_undisturbed(world, finish=False)


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_branch_changed_while_the_daemon_was_down_is_left_alone(
    harness: Harness, interrupted: World, how: str
) -> None:
    mine = change(interrupted, how)
    pid = harness.start(interrupted)
    assert harness.nursery.wait(pid, LIFE_S) == 2
    assert tip(interrupted) == mine
    go_on(harness, interrupted)


@pytest.mark.parametrize("how", ["moved", pytest.param("deleted", marks=pytest.mark.nightly)])
def test_a_branch_changed_while_the_daemon_works_stops_it(harness: Harness, world: World, how: str) -> None:
    pid = harness.start(world)
    wait_until(lambda: len(Journal.read(world).experiments) > 2)
    mine = change(world, how)
    opened = len(Journal.read(world).experiments)
    assert harness.nursery.wait(pid, LIFE_S) == 2
    assert tip(world) == mine
    assert len(Journal.read(world).experiments) <= opened + 1, "it may have been about to open one"
    go_on(harness, world)


def change(world: World, how: str) -> str:
    """What a user does to the session's branch; where it is then."""
    if how == "deleted":
        world.git("update-ref", "-d", BRANCH)
        return ""
    mine = world.git("commit-tree", "-m", "mine", "HEAD^{tree}")
    world.git("update-ref", BRANCH, mine)
    return mine


def tip(world: World) -> str:
    return world.git("rev-parse", "--verify", "--quiet", BRANCH, check=False)


def go_on(harness: Harness, world: World) -> None:
    """Do what the daemon said, and the session ends as if nothing had happened."""
    said = Path(f"{world.root}-life.err")
    line = next(line for line in said.read_text().splitlines() if "git branch" in line)
    world.git(*line[line.index("branch") :].split(",")[0].split())
    said.unlink()
    harness.ends_as_undisturbed(world)


def test_a_wall_clock_that_is_set_to_and_fro_changes_no_result_and_no_duration(harness: Harness, world: World) -> None:
    for nth in (4, 6):
        pid = harness.start(world, clock=nth, fate=Fate("executor.start", "after", nth))
        harness.nursery.wait(pid, LIFE_S)
    harness.ends_as_undisturbed(world, clock=1)
    store = world.project.open_store()
    session = store.session("night")
    store.close()
    assert 0.0 < session.active_seconds < 3600.0
    for e in Journal.read(world).experiments:
        assert all(0.0 <= run.duration_s < 3600.0 for run in e.runs)
        assert 0.0 <= e.overhead_ms < 3_600_000.0


def test_what_lies_in_the_folder_of_a_run_to_come_is_not_its_result(harness: Harness, world: World) -> None:
    for number in range(1, 5):
        folder = world.runs / str(number) / "0"
        (folder / "output").mkdir(parents=True)
        (folder / "result.json").write_text(
            '{"stages": [{"name": "training", "outcome": "ok", "exit_code": 0, "duration_s": 1, "log_path": "x"}],'
            ' "duration_s": 1, "facts": {}}'
        )
    assert harness.nursery.wait(harness.start(world, fate=Fate("store.open_run", "after", 4)), LIFE_S) == -9
    harness.ends_as_undisturbed(world)


DYING = """
import os, sys
from autoresearchd.cli.main import run
from autoresearchd.store.repository import SqlStore
SqlStore.delete_session = lambda self, tag: os._exit(9)
sys.exit(run(sys.argv[1:]))
"""


def test_a_daemon_killed_while_it_takes_a_failed_session_away_is_followed_by_one_that_does(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    make_repository(root, {"train.py": "RATE = 0.1\nraise SystemExit('no')\n", "task.yaml": TASK})
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

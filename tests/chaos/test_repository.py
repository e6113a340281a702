"""What is done to git behind the daemon's back: by hand, by a git that died, by a clock that was set."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.harness import Harness
from tests.chaos.invariants import Breaches, Journal, check_end, check_user
from tests.chaos.mortal import Fate
from tests.chaos.world import World
from tests.timing import wait_until

EXPERIMENTS = 4
SEED = 31
BRANCH = "refs/heads/autoresearch/night"


def interrupted(harness: Harness) -> World:
    """A session whose daemon was killed while it worked on its second experiment."""
    world = harness.world("world", SEED, EXPERIMENTS)
    pid = harness.start(world, fate=Fate("executor.start", "after", 5))
    assert harness.nursery.wait(pid, 30.0) == -signal.SIGKILL
    assert Journal.read(world).experiments[-1].number == 2
    return world


def finished_as_if_undisturbed(harness: Harness, world: World, **order: object) -> None:
    breaches = Breaches()
    harness.finish(world, breaches, "", **order)
    check_end(world, EXPERIMENTS, harness.undisturbed(SEED, EXPERIMENTS), breaches, "")
    assert breaches.lines() == []


def said(world: World) -> str:
    return Path(f"{world.root}-life.err").read_text()


def commands_in(text: str) -> str:
    """The git command that an error says fixes it."""
    line = next(line for line in text.splitlines() if "git branch" in line)
    return line[line.index("git branch") :].split(",")[0]


@pytest.mark.parametrize(
    "minutes",
    [
        pytest.param(-60, id="left an hour ago"),
        pytest.param(60, id="its time in the future", marks=pytest.mark.nightly),
    ],
)
def test_lock_files_that_a_dead_git_left_in_our_own_places_are_removed(harness: Harness, minutes: int) -> None:
    world = interrupted(harness)
    users = world.users_files()
    slot = next((world.state / "worktrees/night").glob("slot0.git"))
    when = time.time() + 60 * minutes
    for lock in (
        slot / "index.lock",
        slot / "HEAD.lock",
        world.root / f".git/{BRANCH}.lock",
        *(world.root / f".git/refs/autoresearch/night/{n}.lock" for n in range(3, EXPERIMENTS + 1)),
    ):
        lock.touch()
        os.utime(lock, (when, when))
    finished_as_if_undisturbed(harness, world, composed=True)
    breaches = Breaches()
    check_user(users, world, breaches, "")
    assert breaches.lines() == []
    assert not list((world.root / ".git/refs").rglob("*.lock"))


def test_a_lock_of_the_user_is_neither_waited_for_nor_removed(harness: Harness) -> None:
    world = interrupted(harness)
    lock = world.root / ".git/index.lock"
    lock.touch()
    os.utime(lock, (0, 0))
    finished_as_if_undisturbed(harness, world)
    assert lock.exists()


def test_a_worktree_deleted_while_the_daemon_was_down_is_made_again(harness: Harness) -> None:
    world = interrupted(harness)
    shutil.rmtree(world.state / "worktrees")
    shutil.rmtree(world.state / "pristine")
    finished_as_if_undisturbed(harness, world)


def test_worktrees_deleted_while_runs_are_under_way_cost_no_experiment(harness: Harness) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    pid = harness.start(world, composed=True)
    deleted = 0
    while harness.nursery.wait(pid, 0.05) is None:
        tree = world.state / "worktrees/night/slot0"
        if deleted < 3 and (tree / "train.py").exists():
            tree.rename(world.root.parent / f"deleted-{deleted}")
            deleted += 1
    assert deleted == 3  # of one experiment, perhaps: a fourth time its own program would be blamed
    breaches = Breaches()
    harness.check_orphans(world, breaches, "")
    check_end(world, EXPERIMENTS, harness.undisturbed(SEED, EXPERIMENTS), breaches, "")
    assert breaches.lines() == []


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_branch_changed_while_the_daemon_was_down_is_left_alone_and_the_way_back_is_said(
    harness: Harness, how: str
) -> None:
    world = interrupted(harness)
    mine = change(world, how)
    pid = harness.start(world)
    assert harness.nursery.wait(pid, 30.0) == 2
    assert tip(world) == mine
    go_on(harness, world)


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_branch_changed_while_the_daemon_works_stops_it_before_the_next_experiment(
    harness: Harness, how: str
) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    pid = harness.start(world)
    wait_until(lambda: len(Journal.read(world).experiments) > 2)
    mine = change(world, how)
    opened = len(Journal.read(world).experiments)
    assert harness.nursery.wait(pid, 30.0) == 2
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
    hint = commands_in(said(world))
    world.git(*hint.split()[1:])
    Path(f"{world.root}-life.err").unlink()
    finished_as_if_undisturbed(harness, world)


def test_a_wall_clock_that_is_set_to_and_fro_changes_no_result_and_no_duration(harness: Harness) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    breaches = Breaches()
    for nth in (4, 6):
        pid = harness.start(world, clock=nth, fate=Fate("executor.start", "after", nth))
        harness.nursery.wait(pid, 30.0)
    finished_as_if_undisturbed(harness, world, clock=1)
    store = world.project.open_store()
    session = store.session("night")
    store.close()
    assert 0.0 < session.active_seconds < 60.0
    for e in Journal.read(world).experiments:
        assert all(0.0 <= run.duration_s < 10.0 for run in e.runs)
        assert e.overhead_ms is not None and 0.0 <= e.overhead_ms < 10_000.0
    assert breaches.lines() == []

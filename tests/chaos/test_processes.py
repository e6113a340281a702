"""A process beside the daemon dies: the job, its supervisor, git. The session goes on and says what it was."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from autoresearchd.domain.labels import Label, Phase, Status
from tests.chaos.harness import LIFE_S, Harness
from tests.chaos.invariants import Breaches, Journal, check_end, check_user
from tests.chaos.mortal import Fate
from tests.chaos.processes import below, command_of, kill_tree, seen, send
from tests.chaos.world import World
from tests.timing import wait_until

EXPERIMENTS = 4
SEED = 31


def end(harness: Harness, world: World, pid: int) -> None:
    assert harness.nursery.wait(pid, LIFE_S) == 0, (world.root.parent / f"{world.root.name}-life.err").read_text()


def same_as_undisturbed(harness: Harness, world: World) -> Sequence[str]:
    breaches = Breaches()
    check_end(world, EXPERIMENTS, harness.undisturbed(SEED, EXPERIMENTS), breaches, "")
    harness.check_orphans(world, breaches, "")
    return breaches.lines()


def test_a_job_that_somebody_killed_is_a_crash_of_its_experiment_and_of_no_other(harness: Harness) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    users = world.users_files()
    pid = harness.start(world, composed=True)
    wait_until(lambda: any(e.number == 2 for e in Journal.read(world).experiments))
    victim = next(job for job in seen(pid, b"train.py") if b"bwrap" not in command_of(job))
    assert send(victim)
    end(harness, world, pid)
    journal = Journal.read(world)
    crashed = [e for e in journal.experiments if e.decision and e.decision.label is Label.OOM]
    assert [e.number for e in journal.experiments] == list(range(EXPERIMENTS + 1))
    assert len(crashed) == 1 and crashed[0].decision is not None and crashed[0].decision.status is Status.CRASH
    breaches = Breaches()
    harness.check_orphans(world, breaches, "")
    check_user(users, world, breaches, "")
    assert breaches.lines() == []


def test_a_run_whose_supervisor_was_killed_is_run_again(harness: Harness) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    pid = harness.start(world, composed=True)
    killed: set[int] = set()

    def lost() -> int:
        runs = [run for e in Journal.read(world).experiments for run in e.runs]
        return sum(run.label is Label.HOST_LOST for run in runs)

    # By the journal: a kill may come after the result, or hit a fork of the supervisor that has its name yet.
    while lost() < 3 and harness.nursery.wait(pid, 0.0) is None:
        for supervisor in below(pid, b"sandbox.supervise"):
            if supervisor not in killed and below(supervisor, b"train.py") and send(supervisor):
                killed.add(supervisor)
    end(harness, world, pid)
    assert 3 <= lost() <= len(killed)
    assert same_as_undisturbed(harness, world) == []


def test_a_daemon_killed_together_with_its_supervisors_leaves_no_process(harness: Harness) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    for _ in range(4):
        pid = harness.start(world, composed=True)
        wait_until(lambda p=pid: below(p, b"train.py"))
        kill_tree(pid)
        assert harness.nursery.wait(pid, LIFE_S) == -9
    breaches = Breaches()
    harness.check_orphans(world, breaches, "")
    harness.finish(world, breaches, "")
    assert breaches.lines() == []
    assert same_as_undisturbed(harness, world) == []


@contextmanager
def touched(world: World) -> Iterator[None]:
    """Somebody touches the slot's HEAD all the time, so that every checkout is left to git."""
    over = threading.Event()

    def touch() -> None:
        while not over.wait(0.002):
            for head in (world.root / ".git").glob("autoresearchd/worktrees/*/slot0.git/HEAD"):
                with suppress(FileNotFoundError):
                    os.utime(head)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("word", [b"update-ref", b"read-tree", b"hash-object", b"cat-file"])
def test_git_killed_at_its_work_costs_nothing_but_time(harness: Harness, word: bytes) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    pid = harness.start(world, composed=True)
    wait_until(lambda: bool(Journal.read(world).experiments))
    stream, killed = random.Random(SEED), 0
    with touched(world):
        for victim in seen(pid, word):
            if killed < 5 and stream.random() < 0.8:
                killed += send(victim)
            if killed == 5:
                break
    end(harness, world, pid)
    assert killed, "none was seen, and the test shows nothing"
    assert same_as_undisturbed(harness, world) == []


def test_a_proposal_whose_daemon_was_killed_keeps_its_number_and_its_cost(harness: Harness) -> None:
    world = harness.world("world", SEED, EXPERIMENTS)
    for fate in (Fate("policy.propose", "before"), Fate("policy.propose", "after"), Fate("store.record_proposal")):
        assert harness.nursery.wait(harness.start(world, fate=fate), LIFE_S) == -9
        latest = Journal.read(world).experiments[-1]
        assert latest.number == 1
    assert latest.phase is Phase.PROPOSED
    breaches = Breaches()
    harness.finish(world, breaches, "")
    assert Journal.read(world).experiments[1].proposal.cost == latest.proposal.cost
    assert same_as_undisturbed(harness, world) == [] and breaches.lines() == []

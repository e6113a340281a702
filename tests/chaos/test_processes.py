"""A process beside the daemon dies: the job, its supervisor, git. The session goes on and says what it was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.sandbox.view import bubblewraps
from tests.chaos.harness import LIFE_S, SEED, SHORT, Harness
from tests.chaos.invariants import Breaches, Journal, check_user, processes_of
from tests.chaos.mortal import Fate, below, command_of, seen, send
from tests.chaos.world import World
from tests.timing import wait_until


def end(harness: Harness, world: World, pid: int) -> None:
    assert harness.nursery.wait(pid, LIFE_S) == 0, (world.root.parent / f"{world.root.name}-life.err").read_text()


def test_a_job_that_somebody_killed_is_a_crash_of_its_own_experiment(harness: Harness, world: World) -> None:
    users = world.users_files()
    pid = harness.start(world, composed=True)
    wait_until(lambda: any(e.number == 2 for e in Journal.read(world).experiments))
    victim = next(job for job in seen(pid, b"train.py") if b"bwrap" not in command_of(job))
    assert send(victim)
    end(harness, world, pid)
    journal = Journal.read(world)
    crashed = [e for e in journal.experiments if e.decision and e.decision.label is Label.OOM]
    assert [e.number for e in journal.experiments] == list(range(SHORT + 1))
    assert len(crashed) == 1 and crashed[0].decision is not None and crashed[0].decision.status is Status.CRASH
    breaches = Breaches()
    harness.check_orphans(world, breaches, "")
    check_user(users, world, breaches, "")
    assert breaches.lines() == []


def test_a_run_whose_supervisor_was_killed_is_run_again(harness: Harness, world: World) -> None:
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
    harness.ends_as_undisturbed(world, finish=False)


def test_a_daemon_killed_together_with_its_supervisors_leaves_no_process(harness: Harness, world: World) -> None:
    for _ in range(4):
        pid = harness.start(world, composed=True)
        wait_until(lambda p=pid: below(p, b"train.py"))
        harness.cut(world, pid)
    harness.ends_as_undisturbed(world)


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


@pytest.mark.parametrize(
    "word",
    [
        b"update-ref",
        b"cat-file",
        *(pytest.param(w, marks=pytest.mark.nightly) for w in (b"read-tree", b"unpack-objects")),
    ],
)
def test_git_killed_at_its_work_costs_nothing_but_time(harness: Harness, world: World, word: bytes) -> None:
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
    harness.ends_as_undisturbed(world, finish=False)


def test_a_proposal_whose_daemon_was_killed_keeps_its_number_and_its_cost(harness: Harness, world: World) -> None:
    for fate in (Fate("policy.propose", "before"), Fate("policy.propose", "after"), Fate("store.record_proposal")):
        assert harness.nursery.wait(harness.start(world, fate=fate), LIFE_S) == -9
        latest = Journal.read(world).experiments[-1]
        assert latest.number == 1
    assert latest.phase is Phase.PROPOSED
    harness.ends_as_undisturbed(world)
    assert Journal.read(world).experiments[1].proposal.cost == latest.proposal.cost


STALLS = """#!/bin/sh
exec 3>/dev/null 4<>"{fifo}"
exec "{program}" --unshare-user --info-fd 3 --userns-block-fd 4 "$@"
"""
"""A bubblewrap that stays where its child waits to be told that its user is known, before --die-with-parent holds."""

needs_bubblewrap = pytest.mark.skipif(not bubblewraps(), reason="bubblewrap is not installed")


@contextmanager
def probing(folder: Path, root: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int, int]]:
    """A ``resume`` that tries out a bubblewrap that stalls: it, its supervisor, bubblewrap, and bubblewrap's child."""
    program = bubblewraps()[0]
    for name in ("bin", "tmp"):
        (folder / name).mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "bin" / "bwrap").write_text(STALLS.format(fifo=folder / "fifo", program=program))
    (folder / "bin" / "bwrap").chmod(0o755)
    command = subprocess.Popen(
        [sys.executable, "-m", "autoresearchd", "resume", "--foreground"],
        cwd=root,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(below(command.pid, b"--userns-block-fd")) == 2)
        outer, inner = below(command.pid, b"--userns-block-fd")
        (supervisor,) = below(command.pid, b"sandbox.supervise")
        yield command, supervisor, outer, inner
    finally:
        command.kill()
        command.wait()
        for line in processes_of(folder):
            send(int(line.split()[0]))


@needs_bubblewrap
@pytest.mark.parametrize("stopped", ["nobody", "inner", "outer"])
def test_a_command_killed_while_it_tries_the_sandbox_leaves_nothing(
    harness: Harness, tmp_path: Path, stopped: str
) -> None:
    world = harness.world("world", SEED, 1)
    with probing(tmp_path, world.root) as (command, _, outer, inner):
        for pid in {"inner": [inner], "outer": [outer]}.get(stopped, []):
            send(pid, signal.SIGSTOP)
        command.kill()
        command.wait()
        wait_until(lambda: not processes_of(tmp_path))


@needs_bubblewrap
@pytest.mark.alone  # the next command of any session of the user's ends what is left
@pytest.mark.parametrize("ends", ["resume", "doctor"])
def test_what_a_killed_probe_left_is_ended_by_the_next_command(harness: Harness, tmp_path: Path, ends: str) -> None:
    world = harness.world("world", SEED, 1)
    with probing(tmp_path, world.root) as (command, supervisor, outer, inner):
        send(inner, signal.SIGSTOP)
        send(supervisor, signal.SIGSTOP)  # so that it cannot end the rest before it is killed
        for pid in (command.pid, supervisor, outer):
            send(pid)
        command.wait()
        assert [int(line.split()[0]) for line in processes_of(tmp_path)] == [inner]  # it waits for the dead
        assert list((tmp_path / "tmp").iterdir())
        if ends == "resume":
            breaches = Breaches()
            harness.finish(world, breaches, "")
            assert breaches.lines() == []
        else:
            doctor = subprocess.run(
                [sys.executable, "-m", "autoresearchd", "doctor"],
                cwd=world.root, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
                capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            assert "ended 1 process tree that killed commands had left running" in doctor.stdout
            assert not list((tmp_path / "tmp").iterdir())
        assert processes_of(tmp_path) == []


@needs_bubblewrap
def test_a_supervisor_that_is_stopped_is_ended_by_the_next_command(harness: Harness, tmp_path: Path) -> None:
    world = harness.world("world", SEED, 1)
    with probing(tmp_path, world.root) as (command, supervisor, _, _):
        send(supervisor, signal.SIGSTOP)
        command.kill()
        command.wait()
        breaches = Breaches()
        harness.finish(world, breaches, "")
        assert breaches.lines() == []
        assert processes_of(tmp_path) == []
        assert command_of(supervisor) == b""

"""A command is killed while it tries out the sandbox: nothing of the trial outlives the next command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoresearchd.sandbox.view import bubblewraps
from tests.chaos.harness import Harness
from tests.chaos.invariants import Breaches, processes_of
from tests.chaos.processes import below, command_of, send
from tests.timing import wait_until

STALLS = """#!/bin/sh
exec 3>/dev/null 4<>"{fifo}"
exec "{program}" --unshare-user --info-fd 3 --userns-block-fd 4 "$@"
"""
"""A bubblewrap that stays where its child waits to be told that its user is known, before --die-with-parent holds."""
SEED = 31

pytestmark = pytest.mark.skipif(not bubblewraps(), reason="bubblewrap is not installed")


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


@pytest.mark.parametrize("stopped", ["nobody", "inner", "outer"])
def test_a_command_killed_while_it_tries_the_sandbox_leaves_no_process_that_waits_for_it(
    harness: Harness, tmp_path: Path, stopped: str
) -> None:
    world = harness.world("world", SEED, 1)
    with probing(tmp_path, world.root) as (command, _, outer, inner):
        for pid in {"inner": [inner], "outer": [outer]}.get(stopped, []):
            send(pid, signal.SIGSTOP)
        command.kill()
        command.wait()
        wait_until(lambda: not processes_of(tmp_path))


@pytest.mark.parametrize("ends", ["resume", "doctor"])
def test_what_a_probe_left_whose_supervisor_was_killed_too_is_ended_by_the_next_command(
    harness: Harness, tmp_path: Path, ends: str
) -> None:
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


def test_a_supervisor_that_cannot_see_its_command_die_is_ended_by_the_next_command(
    harness: Harness, tmp_path: Path
) -> None:
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

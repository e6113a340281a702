"""What people ask in the first hour: what did it change, which way is better, whose log is this, is it still alive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Limits
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("repository")


def in_a_terminal(*arguments: str) -> str:
    """What a command prints where somebody looks on."""
    master, slave = os.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    with os.fdopen(slave, "wb") as screen:
        command = [sys.executable, "-m", "autoresearchd", *arguments]
        process = subprocess.Popen(command, stdout=screen, stderr=screen, stdin=subprocess.DEVNULL, env=environment)
    seen = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed: that is how a terminal says so
            break
        if not part:
            break
        seen += part
    os.close(master)
    assert process.wait(timeout=60) == 0, seen
    return seen.decode().replace("\r\n", "\n")


def test_who_looks_on_is_told_what_a_diff_is_of_and_a_pipe_gets_the_diff_alone(command: Command) -> None:
    shown = in_a_terminal("show", "2", "--diff")
    assert shown.index("#2 discard") < shown.index("as measured") < shown.index("+++ b/train.py")
    assert "+ is better" in shown
    piped = command("show", "2", "--diff").out
    assert piped.startswith("--- a/train.py\n")
    assert "as measured" not in piped


def test_the_log_of_one_session_is_told_from_that_of_its_neighbour(repository: Path, command: Command) -> None:
    log = layout.daemon_log(repository)
    log.parent.mkdir(parents=True)
    log.write_text(
        "2026-03-08 20:00:00Z mar8 opened #1 on 0123456\n"
        "2026-03-08 20:00:01Z other fault ValueError\nTraceback of the other\n"
        "2026-03-08 20:00:02Z mar8 decided #1 keep\n"
    )
    lines = command("logs", "--session", "mar8").out.splitlines()
    assert [line.split(" ", 3)[3] for line in lines] == ["opened #1 on 0123456", "decided #1 keep"]
    assert "Traceback of the other" in command("logs", "--session", "other").out
    assert len(command("logs").out.splitlines()) == 4
    wrong = command("logs", "--session", "mar9")
    assert (wrong.code, wrong.out) == (2, "")
    assert "no line of a session 'mar9'" in wrong.err


def test_a_session_at_its_limit_shows_the_command_that_goes_on(repository: Path, command: Command) -> None:
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.set_limits(store.session("mar8").id, Limits(max_experiments=4))
    assert "autoresearchd resume mar8 --max-experiments 8" in command("status").out
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.set_limits(store.session("mar8").id, Limits(max_experiments=5))
    assert "--max-experiments" not in command("status").out, "four of five are done"

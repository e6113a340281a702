"""Two daemons on one session would count experiments twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.domain.errors import SessionLocked
from autoresearchd.loop.upkeep.session_lock import SessionLock, announce, holder, starting

HOLD = """
import sys
from pathlib import Path
from autoresearchd.loop.upkeep.session_lock import SessionLock
with SessionLock(Path(sys.argv[1]), "t"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_second_is_told_the_process_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    with SessionLock(path, "t"):
        assert holder(path) == os.getpid()
        with pytest.raises(SessionLocked, match=str(os.getpid())), SessionLock(path, "t"):
            pass
        assert holder(path) == os.getpid(), "the refused one leaves the note alone"
    assert holder(path) is None


def test_a_killed_holder_leaves_the_session_free(tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    assert holder(path) == process.pid
    process.kill()
    process.communicate()
    assert holder(path) is None
    with SessionLock(path, "t"):
        assert holder(path) == os.getpid()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', '{"pid": OWN, "start": "1"}'])
def test_a_damaged_note_or_a_pid_that_was_used_again_means_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.lock"
    path.write_text(text.replace("OWN", str(os.getpid())))
    assert holder(path) is None


def test_a_process_that_comes_up_is_known_before_it_has_the_session_and_does_not_keep_it_from_anybody(
    tmp_path: Path,
) -> None:
    path = tmp_path / "locks" / "t.lock"
    announce(path, os.getpid())
    assert starting(path) == os.getpid()
    assert holder(path) is None
    with SessionLock(path, "t", starts=True) as lock:
        assert (starting(path), holder(path)) == (os.getpid(), os.getpid())
        lock.begun()
        announce(path, os.getppid())
        assert (starting(path), holder(path)) == (None, os.getpid()), "one that has the session is not talked over"
    assert starting(path) is None


def test_a_process_that_died_while_it_came_up_is_not_said_to_start(tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    announce(path, process.pid)
    assert starting(path) == process.pid
    process.kill()
    process.communicate()
    assert starting(path) is None


def test_a_process_that_had_died_before_it_was_announced_is_not_said_to_start(tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie until its parent asks
    announce(path, process.pid)
    assert starting(path) is None
    path.write_text(json.dumps({"pid": process.pid, "start": None, "starts": True}))
    assert starting(path) is None
    process.wait()

"""The supervisor starts fast, and reads what its processes tell; whose processes are ended as nobody's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoresearchd.sandbox import launch, process_tree, supervise
from autoresearchd.sandbox.launch import end_abandoned, new_token
from autoresearchd.sandbox.process_tree import TOKEN_VARIABLE

_TOKEN = "from autoresearchd.sandbox.launch import new_token; print(new_token())"


def token_of_the_dead() -> str:
    done = subprocess.run([sys.executable, "-c", _TOKEN], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def carrier(token: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["/bin/sleep", "600"], env={TOKEN_VARIABLE: token})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_process_whose_owner_is_dead_is_ended() -> None:
    with carrier(token_of_the_dead()) as process:
        assert end_abandoned() >= 1
        assert process.wait(10) == -9


@pytest.mark.parametrize("whose", ["ours", "another container's", "an older version's", "nonsense"])
def test_what_may_belong_to_a_living_daemon_is_left_alone(whose: str) -> None:
    namespace, rest = token_of_the_dead().split(".", 1)
    tokens = {
        "ours": new_token(),
        "another container's": f"{int(namespace) + 1}.{rest}",
        "an older version's": "0123456789abcdef0123456789abcdef",
        "nonsense": "1.x.y.z",
    }
    with carrier(tokens[whose]) as process:
        end_abandoned()
        assert process.poll() is None


def test_a_process_in_the_middle_of_exec_is_found_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no environment for that instant; who looked once left one in some hundreds alive."""
    token = new_token()
    with carrier(token) as process:
        empty, read = [[b""]], launch._words

        def words(pid: str, file: str) -> list[bytes]:
            in_exec = empty and (pid, file) == (str(process.pid), "environ")
            return empty.pop() if in_exec else read(pid, file)

        monkeypatch.setattr(launch, "_words", words)
        assert launch.sweep({token}) == {token}
        assert process.wait(10) == -9


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, -9), (11, -11), (139 << 8, -11), (137 << 8, -9), (128 << 8, 128)],
)
def test_a_shell_that_reports_a_signal_is_read_as_that_signal(status: int, code: int) -> None:
    assert supervise.exit_code_of(status) == code


@pytest.mark.parametrize(("slept", "outcome"), [(0, "ok"), (60, "killed")])
def test_a_run_during_which_the_machine_slept_is_to_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: int, outcome: str
) -> None:
    """In the supervisor the clock that goes on meanwhile is ahead at its second reading."""
    clock = f"import time; ahead = iter((0, {slept})); time.clock_gettime = lambda c: time.monotonic() + next(ahead); "
    monkeypatch.setattr(launch, "_BOOT", clock + launch._BOOT)
    (tmp_path / "output").mkdir()
    stage = launch.Stage("training", launch.Program(("/bin/true",), tmp_path, {}, tmp_path / "training.log"))
    plan = launch.Plan(tmp_path, (stage,), True, tmp_path / "output", deliver=tmp_path / "delivered")
    result = launch.launch(plan).wait(None)
    assert result is not None and result.stages[0].outcome == outcome


@pytest.mark.parametrize("module", ["supervise", "isolation.confine"])
def test_it_starts_without_the_modules_that_would_double_its_start_up_time(module: str) -> None:
    folder = Path(supervise.__file__).parents[2]
    code = f"import sys; sys.path.append({str(folder)!r}); import autoresearchd.sandbox.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"json", "signal", "enum", "re", "subprocess", "ctypes", "pathlib", "typing"} & set(done.stdout.split())


@pytest.mark.parametrize("by_parent", [False, True])
def test_processes_are_found_on_every_kernel(by_parent: bool) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = process_tree.descendants(os.getpid(), by_parent=by_parent)
        assert found.index(child.pid) < found.index(grandchild)
        assert process_tree.descendants(child.pid, by_parent=by_parent) == [grandchild]
        os.kill(grandchild, signal.SIGKILL)
    assert process_tree.descendants(child.pid, by_parent=by_parent) == []


HOLDS_MEMORY = """
import ctypes, os, threading, time
def hold():
    held = bytearray(os.urandom(1 << 20)) * 64
    print("HELD", flush=True)
    time.sleep(600)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("source", [HOLDS_MEMORY, HOLDS_MEMORY.replace("pthread_exit(None)", "pause()")])
@pytest.mark.parametrize("readable", [True, False])
def test_memory_is_seen_also_where_a_process_hides_it(
    source: str, readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first thread has ended, or (PR_SET_DUMPABLE) its PSS is not to be read."""
    if not readable:
        read = process_tree.read
        monkeypatch.setattr(process_tree, "read", lambda path: b"" if "smaps_rollup" in path else read(path))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"HELD\n"
        found = [process_tree.over_memory(os.getpid(), limit << 20) for limit in (48, 512)]
        process.kill()
    assert found == [True, False]


def test_a_job_that_takes_back_that_it_is_ended_first_is_made_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory gets tight; else the kernel may end the daemon, and the night with it."""
    with carrier("") as job:
        score = Path(f"/proc/{job.pid}/oom_score_adj")
        before = score.read_text()
        limits = {"bytes": 1, "files": 1, "processes": 1 << 20, "threads": 1 << 20, "folders": {}}
        ceilings = process_tree.Ceilings(os.getpid(), None, limits)
        monkeypatch.setattr(process_tree, "_TIGHT", 0.0)
        assert ceilings.exceeded() is None and score.read_text() == before
        monkeypatch.setattr(process_tree, "_TIGHT", 1.1)
        assert ceilings.exceeded() is None and score.read_text() == "1000\n"

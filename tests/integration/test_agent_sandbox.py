"""Commands of an agent in the real sandbox: what they may not do fails or is cut, and the agent goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import Interrupted, MissingCapability
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.task import Evaluation
from autoresearchd.executor.environment import inspect
from autoresearchd.executor.visible_files import agent_surroundings, link_data
from autoresearchd.policy.agent_policy import SENTINEL, AgentPolicy
from autoresearchd.sandbox.agent_shell import CommandResult, SandboxedShell, Surroundings, open_shell, require_sandbox
from autoresearchd.sandbox.launch import RunLimits
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName, available
from tests.fakes.policies import make_state, make_task
from tests.fakes.repositories import write_files
from tests.timing import wait_until
from tests.unit.policy.model_bench import Bench

TOP = Path(__file__).parents[2]
TIERS = [tier for tier in available() if tier.isolates]
EACH = pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name.value)
CODE = "DEPTH = 4\n"
SECRET = "the-secret-of-the-user"
LIMITS = RunLimits(processes=64, threads=256, size=16 << 20, files=2000)
SETTINGS = ModelSettings(agent={"turns": 30, "seconds": 240.0, "output_bytes": 4000})
NEVER = threading.Event()

pytestmark = pytest.mark.skipif(not TIERS, reason="no sandbox works here")


def materialise(state: ResearchState, folder: Path) -> None:
    data = {"data/train.txt": "training text\n", "data/val.txt": SECRET}
    write_files(folder, {**state.code, "prepare.py": "# protected\n", **data})


def surroundings(_: Path) -> Surroundings:
    python = inspect(Path(sys.executable))
    readable, withheld = (python.executable, *python.folders), (Path("data/val.txt"),)
    return Surroundings(readable=readable, programs=(python.bin,), withheld=withheld)


def the_state() -> ResearchState:
    task = make_task()
    execution = replace(task.execution, memory_mb=400)
    evaluation = Evaluation("true", private=("data/val.txt",))
    return make_state(CODE, task=replace(task, execution=execution, evaluation=evaluation))


def opened(tier: Tier, scratch: Path) -> AbstractContextManager[SandboxedShell]:
    return open_shell(the_state(), tier, materialise, surroundings, scratch=scratch, limits=LIMITS)


def run(tier: Tier, scratch: Path, command: str, timeout: float = 30.0) -> CommandResult:
    with opened(tier, scratch) as shell:
        return shell.run(command, timeout=timeout, cancel=NEVER)


def work(
    tier: Tier, scratch: Path, commands: Sequence[str], seconds: float = 60.0
) -> tuple[Proposal, Mapping[str, str]]:
    """The proposal of a model that gives these commands, and what it was told of each."""
    answers = [f"Now this.\n````bash\n{command}\n````" for command in commands]
    make = partial(AgentPolicy, open_shell=lambda state: opened(tier, scratch), command_seconds=seconds)
    bench = Bench(*answers, make=make, settings=SETTINGS)
    proposal = bench.policy.propose(the_state(), threading.Event())
    told = [question.messages[-1]["content"] for question in bench.client.questions[1:]]
    return proposal, dict(zip(commands, told, strict=False))


def running(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


@pytest.fixture
def victims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What an agent would like to have."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere, tmp_path / "scratch"):
        folder.mkdir()
    (home / ".netrc").write_text(SECRET)
    (elsewhere / "state.db").write_text(SECRET)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {
            "home": f"cat {home}/.netrc $HOME/.netrc",
            "elsewhere": f"cat {elsewhere}/state.db",
            "keys": "env; cat /proc/self/environ /proc/1/environ /proc/$PPID/environ | tr '\\0' '\\n'",
            "private": "cat data/val.txt",
            "network": f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo con''nected",
            "write": f"echo planted > {elsewhere}/planted; ls {elsewhere}/planted && echo writ''ten",
            "system": "echo planted > /usr/planted && rm /usr/planted && echo writ''ten",
        }


# -- the way of an honest agent --------------------------------------------------------------------------------------


@EACH
def test_it_looks_edits_checks_and_submits(tier: Tier, tmp_path: Path) -> None:
    commands = [
        "cat train.py data/train.txt",
        "sed -i 's/DEPTH = 4/DEPTH = 6/' train.py",
        "python -m py_compile train.py && python -c 'import train; print(train.DEPTH * 7)'",
        f"echo {SENTINEL}",
    ]
    proposal, told = work(tier, tmp_path, commands)
    assert proposal.files == {"train.py": "DEPTH = 6\n"}
    assert "DEPTH = 4\ntraining text" in told[commands[0]]
    assert "42" in told[commands[2]]
    assert not list(tmp_path.iterdir()), "the copy was left behind"


# -- the way of another one ------------------------------------------------------------------------------------------


def test_the_attacks_work_where_nothing_is_isolated(victims: dict[str, str], tmp_path: Path) -> None:
    """Else the next test would pass for want of anything to see."""
    expected = {"home": SECRET, "elsewhere": SECRET, "network": "connected", "write": "written"}
    for name, words in expected.items():
        assert words in run(PLAIN, tmp_path / "scratch", victims[name]).head


@EACH
def test_it_reaches_nothing_that_is_not_its_own(tier: Tier, victims: dict[str, str], tmp_path: Path) -> None:
    commands = [*victims.values(), "echo 'DEPTH = 5' > train.py", f"echo {SENTINEL}"]
    proposal, told = work(tier, tmp_path / "scratch", commands)
    assert proposal.files == {"train.py": "DEPTH = 5\n"}
    assert {name for name, command in victims.items() if SECRET in told[command]} == set()
    assert "connected" not in told[victims["network"]]
    assert "written" not in told[victims["write"]] + told[victims["system"]]
    assert not (tmp_path / "elsewhere" / "planted").exists()
    assert "No such file" in told[victims["private"]]


@EACH
def test_it_sees_of_the_machine_what_a_job_of_the_task_sees(tier: Tier, tmp_path: Path) -> None:
    setup, source, scratch = (tmp_path / name for name in ("setup", "source", "scratch"))
    scratch.mkdir()
    write_files(setup, {"data/train.txt": "training\n", "data/val.txt": SECRET, "real/val.txt": SECRET})
    (setup / "linked").symlink_to("real")
    write_files(source, {"notes.txt": SECRET})
    state = the_state()
    evaluation = Evaluation("true", private=("data/val.txt", "linked/val.txt"))
    task = replace(state.task, data=("data", "linked"), evaluation=evaluation)

    def prepared(state: ResearchState, folder: Path) -> None:
        write_files(folder, {"train.py": CODE, "real/val.txt": SECRET})
        (folder / "linked").symlink_to("real")
        link_data(folder, task, setup=setup, source=source)

    def around(tools: Path) -> Surroundings:
        return agent_surroundings(task, tools, setup=setup, source=source, pristine=tmp_path / "pristine")

    with open_shell(replace(state, task=task), tier, prepared, around, scratch=scratch) as shell:
        command = f"python -c 'import numpy; print(numpy.arange(3).sum())'; cat data/* real/* {setup}/*/* {source}/*"
        result = shell.run(command, timeout=60, cancel=NEVER)
    assert result.head.startswith("3\ntraining\n")
    assert SECRET not in result.head
    assert (setup / "data" / "val.txt").read_text() == SECRET


@EACH
def test_it_cannot_wear_the_machine_out_and_goes_on(tier: Tier, tmp_path: Path) -> None:
    mark = f"6{os.getpid()}.25"
    commands = {
        "left": f"(setsid sleep {mark} >/dev/null 2>&1 &) ; sleep {mark} & echo started",
        # Not one that doubles: as root nothing but the supervisor bounds it, and the machine is not ours alone.
        "bomb": "for i in $(seq 1000); do sleep 60 & done; wait",
        "flood": "echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last",
        "endless": f"echo begun; trap '' TERM; while :; do sleep {mark}; done",
        "memory": "exec tail /dev/zero",
        "disk": "head -c 100000000 /dev/zero > big; ls -l big | awk '{print $5}'; rm -f big",
        "edit": "rm -f big; echo 'DEPTH = 5' > train.py",
        "submit": f"echo {SENTINEL}",
    }
    proposal, told = work(tier, tmp_path, list(commands.values()), 4.0)
    assert proposal.files == {"train.py": "DEPTH = 5\n"}
    assert "started" in told[commands["left"]]
    assert not running(mark)
    said = {name: told.get(command, "") for name, command in commands.items()}
    assert "more than 64 processes" in said["bomb"]
    assert all(words in said["flood"] for words in ("bytes left out", "first\n", "\nlast\n"))
    assert len(said["flood"]) < 4200
    assert "Ended: it took longer than 4 s." in said["endless"] and "begun" in said["endless"]
    assert "100000000" not in said["disk"]
    assert "more than 400 MB together" in said["memory"]


# -- stopping --------------------------------------------------------------------------------------------------------


@EACH
def test_a_stop_request_ends_the_command(tier: Tier, tmp_path: Path) -> None:
    mark, cancel = f"7{os.getpid()}.5", threading.Event()
    with opened(tier, tmp_path) as shell, ThreadPoolExecutor() as pool:
        command = pool.submit(shell.run, f"sleep {mark}", timeout=60, cancel=cancel)
        wait_until(lambda: running(mark))
        cancel.set()
        with pytest.raises(Interrupted):
            command.result()
    assert not running(mark)
    assert not list(tmp_path.iterdir())


@EACH
def test_nothing_runs_on_when_the_daemon_dies_and_the_next_removes_its_copy(tier: Tier, tmp_path: Path) -> None:
    mark = f"8{os.getpid()}.75"
    driver = f"""
import threading
from pathlib import Path
from autoresearchd.sandbox.tiers import choose
from tests.integration.test_agent_sandbox import opened
with opened(choose({tier.name.value!r}), Path({str(tmp_path)!r})) as shell:
    shell.run("sleep {mark}", timeout=500, cancel=threading.Event())
"""
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    with subprocess.Popen([sys.executable, "-c", driver], cwd=TOP, env=environment) as daemon:
        wait_until(lambda: running(mark))
        with opened(tier, tmp_path):
            assert len(list(tmp_path.iterdir())) == 2, "a copy in use was removed"
        daemon.send_signal(signal.SIGKILL)
    wait_until(lambda: list(tmp_path.glob("*/run/result.json")))  # which its supervisor writes last
    assert len(list(tmp_path.iterdir())) == 1 and not running(mark)
    with opened(tier, tmp_path):
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())


def test_without_a_sandbox_an_agent_is_refused_unless_it_was_asked_for() -> None:
    with pytest.raises(MissingCapability, match="--sandbox none"):
        require_sandbox(Tier(TierName.NONE, reason="namespaces are forbidden"))
    require_sandbox(PLAIN)

"""Isolation of jobs by the local executor: each attack works without it, and not with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autoresearchd.domain.task import Check, Evaluation, Task
from autoresearchd.executor.devices import Devices
from autoresearchd.executor.interpreter import inspect
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.visible_files import visible_libraries
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName
from tests.contract.executor_contract import HANG, make_request, make_task
from tests.integration.local_jobs import BEST, carriers, marked, needs_sandbox, run, text_of, training_log, write_job
from tests.timing import wait_until


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


Attack = Callable[[Path], str]


def read_home(root: Path) -> str:
    (root / "home" / ".netrc").write_text("GOT IT\n")
    return "cat ~/.netrc"


def read_private(root: Path) -> str:
    return f"cat {root}/setup/data/val.txt"


def read_private_in_data(root: Path) -> str:
    return "cat data/val.txt"


def read_private_by_pristine(root: Path) -> str:
    return f"cat {root}/pristine/data/val.txt"


def read_committed_private(root: Path) -> str:
    (root / "workspace" / "val.txt").write_text("GOT IT\n")
    return "cat val.txt"


def write_workspace(root: Path) -> str:
    return "touch ./evaluate.py && echo GOT IT"


def list_repository(root: Path) -> str:
    (root / "source" / ".git").mkdir()
    (root / "source" / ".git" / "config").write_text("GOT IT\n")
    return f"cat {root}/source/.git/config"


def read_hidden_package(root: Path) -> str:
    return "python -c 'import pytest; print(pytest.__version__, \"GOT IT\")'"


ATTACKS = [
    read_home,
    read_private,
    read_private_in_data,
    read_private_by_pristine,
    read_committed_private,
    write_workspace,
    list_repository,
    read_hidden_package,
]


def guarded(command: str) -> Task:
    evaluation = Evaluation("true", private=("data/val.txt", "val.txt"), hide=("{purelib}/pytest", "{purelib}/_pytest"))
    return make_task(f"{command}; true", evaluation=evaluation, data=("data",))


@needs_sandbox
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_works_without_isolation_and_not_with_it(attack: Attack, home: Path, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    (request.setup / "data").mkdir()
    (request.setup / "data" / "val.txt").write_text("GOT IT\n")
    (request.setup / "data" / "train.txt").write_text("train\n")
    (request.setup / "val.txt").write_text("GOT IT\n")
    command = attack(tmp_path)
    run(PLAIN, tmp_path, guarded(command))
    assert "GOT IT" in training_log(tmp_path)
    run(BEST, tmp_path, guarded(f"cat data/train.txt; {command}"))
    assert "GOT IT" not in training_log(tmp_path)
    assert training_log(tmp_path).startswith("train\n")


@needs_sandbox
def test_keys_of_the_daemon_are_out_of_reach(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", mark)
    daemon = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "OPENAI_API_KEY": mark})
    try:
        command = f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c KEY={mark}; true"
        run(PLAIN, tmp_path, make_task(command))
        assert training_log(tmp_path) != "0\n"
        run(BEST, tmp_path, make_task(command))
        assert training_log(tmp_path) == "0\n"
        for tier in (PLAIN, BEST):
            run(tier, tmp_path, make_task("env"))
            assert mark not in training_log(tmp_path)
    finally:
        daemon.kill()
        daemon.wait()


def test_keys_that_the_task_gives_to_its_job_stay_out_of_files_and_process_lists(mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, marked(mark, HANG))
    handle = LocalExecutor(tier=BEST, devices=Devices()).start(request)
    wait_until(lambda: "begun" in text_of(request.run_dir / "training.log"))
    assert not [p for p in request.run_dir.rglob("*") if p.is_file() and mark.encode() in p.read_bytes()]
    assert not [pid for pid in carriers(mark) if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    handle.kill()
    handle.wait(30)


@needs_sandbox
def test_a_job_cannot_signal_other_processes(tmp_path: Path, mark: str) -> None:
    for tier, alive in ((PLAIN, False), (BEST, True)):
        daemon = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "MARK": mark})
        run(tier, tmp_path, make_task(f"kill -9 {daemon.pid}; true"))
        assert (daemon.poll() is None) is alive
        daemon.kill()
        daemon.wait()


@needs_sandbox
def test_a_job_has_no_network_unless_the_task_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        command = write_job(tmp_path, f"import socket\nsocket.create_connection({address!r}, 5)\n")
        assert run(PLAIN, tmp_path, make_task(command)).stages[0].outcome == "ok"
        assert run(BEST, tmp_path, make_task(command)).stages[0].outcome == "failed"
        assert run(BEST, tmp_path, make_task(command, execution={"network": True})).stages[0].outcome == "ok"


@needs_sandbox
def test_a_job_cannot_reach_a_socket_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        source = f"import socket\nsocket.socket(socket.AF_UNIX).connect({str(path)!r})\n"
        command = write_job(tmp_path, source)
        assert run(PLAIN, tmp_path, make_task(command)).stages[0].outcome == "ok"
        assert run(BEST, tmp_path, make_task(command)).stages[0].outcome == "failed"


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel's settings are root's")
def test_a_job_of_root_cannot_write_the_kernels_settings(tmp_path: Path) -> None:
    setting = "/proc/sys/kernel/core_pattern"
    command = f"test -r {setting} && : >> {setting} && echo GOT IT; true"
    run(PLAIN, tmp_path, make_task(command))
    assert "GOT IT" in training_log(tmp_path)
    run(BEST, tmp_path, make_task(command))
    assert "GOT IT" not in training_log(tmp_path)


@needs_sandbox
def test_only_the_output_folder_keeps_what_a_job_writes(tmp_path: Path, home: Path) -> None:
    name = f"planted-{tmp_path.name}"
    places = f"/ /usr /etc {tmp_path} {tmp_path}/setup {tmp_path}/source {tmp_path}/runs/run ."
    run(BEST, tmp_path, make_task(f"for d in {places}; do echo x > $d/{name}; done; ls -d /*/{name} /{name} ./{name}"))
    assert not [line for line in training_log(tmp_path).splitlines() if line.endswith(f"/{name}")]
    assert not list(tmp_path.rglob(name))
    command = "for d in /tmp ~ /dev/shm $AUTORESEARCHD_OUTPUT_DIR; do echo x > $d/kept && echo WROTE $d; done"
    assert run(BEST, tmp_path, make_task(command)).stages[0].outcome == "ok"
    assert not (home / "kept").exists()
    assert (tmp_path / "runs" / "run" / "output" / "kept").exists()


@needs_sandbox
def test_what_evaluation_uses_is_kept_from_the_model_and_from_checks(tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    (request.setup / "val.txt").write_text("targets\n")
    spy = f"cat {request.setup}/val.txt {request.pristine}/val.txt $AUTORESEARCHD_OUTPUT_DIR/model; true"
    task = make_task(
        "echo weights > $AUTORESEARCHD_OUTPUT_DIR/model",
        checks=[Check(spy)],
        evaluation=Evaluation(
            "cat val.txt; until [ -e $AUTORESEARCHD_EXCHANGE_DIR/done ]; do sleep 0.02; done;"
            " echo x > $AUTORESEARCHD_OUTPUT_DIR/model",
            model_command=f"({spy}); touch $AUTORESEARCHD_EXCHANGE_DIR/done; exec sleep 600",
            private=("val.txt",),
        ),
    )
    result = run(BEST, tmp_path, task)
    assert [s.outcome for s in result.stages] == ["ok", "ok", "failed"]  # the scorer may not write the output folder
    logs = {
        name: (tmp_path / "runs" / "run" / f"{name}.log").read_text() for name in ("check-0", "model", "evaluation")
    }
    assert logs["evaluation"].startswith("targets\n")
    assert (request.run_dir / "output" / "model").read_text() == "weights\n"
    for name in ("check-0", "model"):
        assert "weights" in logs[name]
        assert "targets" not in logs[name]


@needs_sandbox
def test_a_hidden_package_is_hidden_in_the_interpreter_below_an_environment_too(tmp_path: Path) -> None:
    python = inspect(Path(sys.executable))
    libraries, packages = visible_libraries(python)
    assert len(packages) > 1
    places = [p for p in (*(lib / "unittest" for lib in libraries), *(pkg / "pip" for pkg in packages)) if p.exists()]
    command = "for d in " + " ".join(map(str, places)) + "; do ls $d/*; done; true"
    for tier, seen in ((PLAIN, True), (BEST, False)):
        run(
            tier,
            tmp_path,
            make_task(command, evaluation=Evaluation("true", hide=("{stdlib}/unittest", "{purelib}/pip"))),
        )
        assert ("__init__.py" in training_log(tmp_path)) is seen


def test_the_tier_and_its_limits_are_said() -> None:
    assert LocalExecutor(tier=PLAIN, devices=Devices()).warnings()
    assert len(LocalExecutor(tier=PLAIN, devices=Devices()).warnings(guarded("true"))) == 2
    assert LocalExecutor(tier=Tier(TierName.BUBBLEWRAP, Path("/usr/bin/bwrap")), devices=Devices()).warnings() == []

"""The local executor against real processes: hostile jobs, crashes of the daemon, floods of output."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.task import Check, Evaluation, Task
from autoresearchd.executor.device import Devices
from autoresearchd.executor.interpreter import inspect
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.sight import visible_libraries
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName, available, probe
from autoresearchd.testing.executor_contract import HANG, make_request, make_task
from autoresearchd.testing.executors import wait_until

BEST = probe()
needs_sandbox = pytest.mark.skipif(not BEST.isolates, reason=BEST.reason)
TIERS = [pytest.param(tier, id=tier.name.value) for tier in available()]

# A grandchild that left its parent, its session and its process group, and ignores TERM.
ESCAPE = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        print("escaped", flush=True)
        time.sleep(600)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep({rest})
"""


@pytest.fixture
def mark() -> Iterator[str]:
    """A value that all processes of a test carry in their environment; none may be left at its end."""
    value = uuid.uuid4().hex
    yield value
    left = carriers(value)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def carriers(mark: str) -> list[int]:
    """Living processes that carry a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in (b"Z", b"X"):
                    found.append(int(folder.name))
        except OSError:
            continue
    return found


def marked(mark: str, command: str, **more: object) -> Task:
    return make_task(command, execution={"env": {"MARK": mark}}, **more)  # type: ignore[arg-type]


def run(tier: Tier, root: Path, task: Task) -> RunResult:
    result = LocalExecutor(tier=tier, devices=Devices()).start(make_request(root, task)).wait(60)
    assert result is not None
    return result


def training_log(root: Path) -> str:
    return (root / "runs" / "run" / "training.log").read_text()


def write_job(root: Path, source: str, name: str = "job.py") -> str:
    """Put a script into the workspace; the command that runs it."""
    request = make_request(root, make_task())
    (request.workspace / name).write_text(source)
    return f"exec python {name}"


# -- nothing is left behind ------------------------------------------------------------------------------------------


def test_a_grandchild_that_escapes_outlives_its_process_group(mark: str, tmp_path: Path) -> None:
    """The attack, without a supervisor: what the tests below keep from happening."""
    script = tmp_path / "job.py"
    script.write_text(ESCAPE.format(rest=600))
    job = subprocess.Popen(
        [sys.executable, str(script)], env={"MARK": mark}, start_new_session=True, stdout=subprocess.PIPE
    )
    assert job.stdout is not None
    assert job.stdout.readline() == b"escaped\n"
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    job.stdout.close()
    left = carriers(mark)
    assert len(left) == 1
    os.kill(left[0], signal.SIGKILL)
    assert wait_until(lambda: not carriers(mark))


@pytest.mark.parametrize("tier", TIERS)
def test_a_deadline_ends_a_grandchild_that_escapes(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=600))
    result = run(tier, tmp_path, marked(mark, command, wall=0.8))
    assert result.stages[-1].outcome == "timeout"
    assert "escaped" in training_log(tmp_path)
    assert carriers(mark) == []


@pytest.mark.parametrize("tier", TIERS)
def test_a_job_that_ends_leaves_no_process_to_disturb_the_next(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=0.2))
    result = run(tier, tmp_path, marked(mark, command))
    assert result.stages[-1].outcome == "ok"
    assert carriers(mark) == []


@pytest.mark.parametrize("tier", TIERS)
def test_a_stop_ends_a_grandchild_that_escapes(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=600))
    request = make_request(tmp_path, marked(mark, command))
    handle = LocalExecutor(tier=tier, devices=Devices()).start(request)
    assert wait_until(lambda: "escaped" in _text(request.run_dir / "training.log"))
    handle.kill()
    result = handle.wait(30)
    assert result is not None
    assert result.stages[-1].outcome == "killed"
    assert carriers(mark) == []


@pytest.mark.parametrize("tier", TIERS)
def test_a_killed_daemon_leaves_no_job_on_the_gpu(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=600))
    driver = f"""
import sys, time
from pathlib import Path
from autoresearchd.executor.device import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import Tier, TierName
from autoresearchd.testing.executor_contract import make_request, make_task
program = {str(tier.program) if tier.program else None!r}
tier = Tier(TierName({tier.name.value!r}), Path(program) if program else None)
task = make_task({command!r}, execution={{"env": {{"MARK": {mark!r}}}}})
handle = LocalExecutor(tier=tier, devices=Devices()).start(make_request(Path({str(tmp_path)!r}), task))
time.sleep(600)
"""
    daemon = subprocess.Popen([sys.executable, "-c", driver])
    assert wait_until(lambda: "escaped" in _text(tmp_path / "runs" / "run" / "training.log"), 30)
    daemon.kill()
    daemon.wait()
    assert wait_until(lambda: not carriers(mark))
    executor = LocalExecutor(tier=tier, devices=Devices())
    assert executor.recover(tmp_path / "runs" / "run") is None


@pytest.mark.parametrize("tier", TIERS)
def test_a_killed_supervisor_is_a_lost_run_and_leaves_nothing(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=600))
    request = make_request(tmp_path, marked(mark, command))
    handle = LocalExecutor(tier=tier, devices=Devices()).start(request)
    assert wait_until(lambda: "escaped" in _text(request.run_dir / "training.log"))
    os.kill(handle.supervisor_pid, signal.SIGKILL)
    result = handle.wait(30)
    assert result is not None
    assert [(s.name, s.outcome) for s in result.stages] == [("training", "lost")]
    assert wait_until(lambda: not carriers(mark))


@pytest.mark.parametrize("tier", TIERS)
def test_recovery_ends_what_a_dead_daemon_left(tier: Tier, mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, marked(mark, HANG))
    handle = LocalExecutor(tier=tier, devices=Devices()).start(request)
    assert wait_until(lambda: "begun" in _text(request.run_dir / "training.log"))
    assert LocalExecutor(tier=tier, devices=Devices()).recover(request.run_dir) is None
    assert carriers(mark) == []
    assert handle.wait(30) is not None


def test_recovery_spares_a_stranger_that_got_the_pid_of_a_supervisor(mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    result = LocalExecutor(tier=PLAIN, devices=Devices()).start(request).wait(30)
    stranger = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "MARK": mark})
    record = request.run_dir / "supervisor.json"
    old_pid = record.read_text().split(",")[0]
    record.write_text(record.read_text().replace(old_pid, f'{{"pid": {stranger.pid}'))
    assert LocalExecutor(tier=PLAIN, devices=Devices()).recover(request.run_dir) == result
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_forgotten_handle_ends_its_run(mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, marked(mark, HANG))
    handle = LocalExecutor(tier=PLAIN, devices=Devices()).start(request)
    assert wait_until(lambda: "begun" in _text(request.run_dir / "training.log"))
    pid = handle.supervisor_pid
    del handle
    os.waitpid(pid, 0)
    assert carriers(mark) == []


# -- facts are reported as they are ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("kill -SEGV $$", -11), ("kill -KILL $$", -9), ("nosuch", 127)],
)
def test_exit_codes_and_signals_arrive_as_they_were(tier: Tier, command: str, code: int, tmp_path: Path) -> None:
    stage = run(tier, tmp_path, make_task(command)).stages[-1]
    assert (stage.outcome, stage.exit_code) == ("failed" if code else "ok", code)


@pytest.mark.parametrize("tier", TIERS)
def test_a_flood_of_output_fills_no_disk_and_keeps_the_end(tier: Tier, tmp_path: Path) -> None:
    command = (
        "yes 'step 1 loss 2.5 and a line of some length that a progress bar might print' | head -c 200000000; echo END"
    )
    started = time.monotonic()
    assert run(tier, tmp_path, make_task(command)).stages[-1].outcome == "ok"
    assert time.monotonic() - started < 20
    sizes = [p.stat().st_size for p in (tmp_path / "runs" / "run").glob("training.log*")]
    assert len(sizes) == 2
    assert sum(sizes) < 18e6
    assert training_log(tmp_path).endswith("END\n")


def test_bytes_that_are_no_text_reach_the_log_unchanged(tmp_path: Path) -> None:
    run(PLAIN, tmp_path, make_task(r"printf '\377\376 loss\r\000end'"))
    assert (tmp_path / "runs" / "run" / "training.log").read_bytes() == b"\xff\xfe loss\r\x00end"


@pytest.mark.parametrize("tier", TIERS)
def test_a_job_that_eats_memory_is_ended_as_oom(tier: Tier, tmp_path: Path) -> None:
    command = write_job(tmp_path, "import time\nx = b'x' * 400_000_000\ntime.sleep(600)\n")
    result = run(tier, tmp_path, make_task(command, execution={"memory_mb": 150}))
    assert result.stages[-1].outcome == "oom"


def test_peak_memory_is_that_of_the_job(tmp_path: Path) -> None:
    command = write_job(tmp_path, "x = b'x' * 150_000_000\n")
    assert 140 < run(PLAIN, tmp_path, make_task(command)).stages[-1].peak_rss_mb < 260


def test_a_full_disk_is_no_fault_of_the_experiment(tmp_path: Path) -> None:
    driver = f"""
from pathlib import Path
from autoresearchd.executor.device import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import PLAIN
from autoresearchd.testing.executor_contract import make_request, make_task
for command in ("head -c 9000000 /dev/zero", "head -c 9000000 /dev/zero > $AUTORESEARCHD_OUTPUT_DIR/model"):
    request = make_request(Path({str(tmp_path / "small")!r}), make_task(command))
    print(LocalExecutor(tier=PLAIN, devices=Devices()).start(request).wait(60).stages[-1].outcome)
"""
    (tmp_path / "small").mkdir()
    script = tmp_path / "driver.py"
    script.write_text(driver)
    mount = f"mount -t tmpfs -o size=4m tmpfs {tmp_path}/small && exec {sys.executable} {script}"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.split() == ["disk_full", "disk_full"], done.stderr


# -- isolation: each attack works without it, and not with it ---------------------------------------------------------


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
    assert wait_until(lambda: "begun" in _text(request.run_dir / "training.log"))
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


@pytest.mark.parametrize("tier", TIERS)
def test_a_model_process_that_dies_does_not_leave_the_scorer_waiting(tier: Tier, tmp_path: Path, mark: str) -> None:
    evaluation = Evaluation("sleep 600", model_command="echo $AUTORESEARCHD_EXCHANGE_DIR; exit 1", timeout=1.0)
    result = run(tier, tmp_path, marked(mark, "true", evaluation=evaluation))
    assert result.stages[-1].outcome in ("failed", "timeout")
    exchange = (tmp_path / "runs" / "run" / "model.log").read_text().strip()
    assert exchange
    assert not Path(exchange).exists()


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


# -- interpreters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
def test_an_environment_that_setup_makes_is_the_tasks_own(tier: Tier, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(request.setup / ".venv")], check=True)
    result = run(tier, tmp_path, make_task("python -c 'import sys; print(sys.prefix)'"))
    assert result.stages[-1].outcome == "ok"
    assert training_log(tmp_path).strip() == str(request.setup / ".venv")


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no Python of the system")
@pytest.mark.parametrize("tier", TIERS)
def test_python_means_the_tasks_interpreter_even_where_it_has_another_name(tier: Tier, tmp_path: Path) -> None:
    real = Path("/usr/bin/python3").resolve()
    task = make_task(
        "python -c 'import sys; print(sys.base_prefix)'; python3 -c 'import sys; print(sys.base_prefix)'",
        execution={"python": str(real)},
    )
    run(tier, tmp_path, task)
    assert training_log(tmp_path) == "/usr\n/usr\n"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_tier_and_its_limits_are_said() -> None:
    assert LocalExecutor(tier=PLAIN, devices=Devices()).warnings()
    assert len(LocalExecutor(tier=PLAIN, devices=Devices()).warnings(guarded("true"))) == 2
    assert LocalExecutor(tier=Tier(TierName.BUBBLEWRAP, Path("/usr/bin/bwrap")), devices=Devices()).warnings() == []


def test_a_report_whose_log_a_power_cut_took_is_no_result(tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task("echo score: 1"))
    executor = LocalExecutor(tier=PLAIN, devices=Devices())
    result = executor.start(request).wait(30)
    log = request.run_dir / "training.log"
    assert executor.recover(request.run_dir) == result
    log.write_bytes(log.read_bytes()[:3])
    assert executor.recover(request.run_dir) is None
    log.unlink()
    assert executor.recover(request.run_dir) is None

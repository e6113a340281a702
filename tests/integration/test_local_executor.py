"""The local executor against real processes: hostile jobs, crashes of the daemon, floods of output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.task import Evaluation
from autoresearchd.evaluator.measure.measurement import measure
from autoresearchd.executor import local as executor_module
from autoresearchd.executor.environment import inspect
from autoresearchd.loop.measuring.run_files import read_logs
from autoresearchd.sandbox.launch import Supervised
from autoresearchd.sandbox.tiers import PLAIN, Tier
from tests.contract.executor_contract import HANG, make_request, make_task
from tests.integration.local_jobs import ESCAPE, TIERS, carriers, local, marked, run, text_of, training_log, write_job
from tests.timing import wait_until

# -- nothing is left behind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
def test_a_deadline_ends_a_grandchild_that_escapes(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=600))
    for wall in (0.8, 5.0, 40.0):  # until it is long enough for it to escape on this machine
        assert run(tier, tmp_path, marked(mark, command, wall=wall)).stages[-1].outcome == "timeout"
        assert carriers(mark) == []
        if "escaped" in training_log(tmp_path):
            return
    pytest.fail("it did not escape, and the test shows nothing")


@pytest.mark.parametrize("tier", TIERS)
def test_a_job_that_ends_leaves_no_process_to_disturb_the_next(tier: Tier, mark: str, tmp_path: Path) -> None:
    command = write_job(tmp_path, ESCAPE.format(rest=0.2))
    result = run(tier, tmp_path, marked(mark, command))
    assert result.stages[-1].outcome == "ok"
    assert carriers(mark) == []


def start_and_escape(tier: Tier, mark: str, root: Path) -> Supervised:
    """A run whose grandchild has escaped."""
    handle = local(tier).start(make_request(root, marked(mark, write_job(root, ESCAPE.format(rest=600)))))
    wait_until(lambda: "escaped" in text_of(handle.run_dir / "training.log"))
    return handle


DRIVER = """
import sys, time
from pathlib import Path
from tests.contract.executor_contract import make_request
from tests.integration.local_jobs import local, marked
tier, root, mark, command = sys.argv[1:]
handle = local(tier).start(make_request(Path(root), marked(mark, command)))
print(handle.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("whole", [False, True], ids=["the daemon", "its supervisor as well"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_killed_daemon_leaves_no_job_on_the_gpu(tier: Tier, whole: bool, mark: str, tmp_path: Path) -> None:
    command, run_dir = write_job(tmp_path, ESCAPE.format(rest=600)), tmp_path / "runs" / "run"
    arguments = [sys.executable, "-c", DRIVER, tier.name.value, str(tmp_path), mark, command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            supervisor = int(daemon.stdout.readline())
            wait_until(lambda: "escaped" in text_of(run_dir / "training.log"))
            if whole:
                os.kill(supervisor, signal.SIGSTOP)  # so that it cannot see the daemon's end before its own
        finally:
            daemon.kill()
        if whole:
            os.kill(supervisor, signal.SIGKILL)
    # Without a sandbox the attack works until the next daemon looks: the grandchild that escaped is left.
    wait_until(lambda: len(carriers(mark)) == (whole and not tier.isolates))
    assert local(tier).recover(run_dir) is None
    assert carriers(mark) == []


@pytest.mark.parametrize("tier", TIERS)
def test_a_killed_supervisor_is_a_lost_run_and_leaves_nothing(tier: Tier, mark: str, tmp_path: Path) -> None:
    handle = start_and_escape(tier, mark, tmp_path)
    os.kill(handle.pid, signal.SIGKILL)
    result = handle.wait()
    assert [(s.name, s.outcome) for s in result.stages] == [("training", "lost")]
    wait_until(lambda: not carriers(mark))


def test_recovery_spares_a_stranger_that_got_the_pid_of_a_supervisor(mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    result = local(PLAIN).start(request).wait()
    stranger = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "MARK": mark})
    record = request.run_dir / "supervisor.json"
    old_pid = record.read_text().split(",")[0]
    record.write_text(record.read_text().replace(old_pid, f'{{"pid": {stranger.pid}'))
    assert local(PLAIN).recover(request.run_dir) == result
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_forgotten_handle_ends_its_run(mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, marked(mark, HANG))
    handle = local(PLAIN).start(request)
    wait_until(lambda: "begun" in text_of(request.run_dir / "training.log"))
    pid = handle.pid
    del handle
    os.waitpid(pid, 0)
    assert carriers(mark) == []


# -- data below the user's home --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
def test_data_below_the_users_home_is_below_the_jobs(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data of karpathy/autoresearch is read from ~/.cache, whatever the job's home is."""
    home = tmp_path / "home"
    for name in ("named", "absolute", "private"):
        (home / ".cache" / name).mkdir(parents=True)
        (home / ".cache" / name / "shard").write_text(f"{name}\n")
    monkeypatch.setenv("HOME", str(home))
    look = "for name in named absolute private; do cat ~/.cache/$name/shard; done"
    task = make_task(f"{look} || true", data=("~/.cache/named", f"{home}/.cache/absolute"))
    task = replace(task, evaluation=Evaluation(look, private=("~/.cache/private",)))
    result = run(tier, tmp_path, task)
    assert [stage.outcome for stage in result.stages] == ["ok", "ok"]
    seen = [text_of(tmp_path / "runs/run" / f"{stage}.log").split() for stage in ("training", "evaluation")]
    assert seen[1] == ["named", "absolute", "private"] and seen[0][:2] == seen[1][:2]
    assert ("private" in seen[0]) == (not tier.isolates)


# -- facts are reported as they are ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("command", "code"), [("exit 255", 255), ("kill -SEGV $$", -11), ("kill -KILL $$", -9), ("nosuch", 127)]
)
def test_exit_codes_and_signals_arrive_as_they_were(tier: Tier, command: str, code: int, tmp_path: Path) -> None:
    stage = run(tier, tmp_path, make_task(command)).stages[-1]
    assert (stage.outcome, stage.exit_code) == ("failed", code)


@pytest.mark.parametrize("tier", TIERS)
def test_a_flood_of_output_fills_no_disk_and_its_metric_is_found(tier: Tier, tmp_path: Path) -> None:
    lines = "yes 'step 1 loss 2.5 and a line of some length that a progress bar might print'"
    task = make_task(f"{lines} | head -c 200000000; echo; echo val_bpb: 1.5")
    result = run(tier, tmp_path, task)
    assert result.stages[-1].outcome == "ok"
    assert measure(task, result, read_logs(result)).value == 1.5
    sizes = [p.stat().st_size for p in (tmp_path / "runs" / "run").glob("training.log*")]
    assert len(sizes) == 2
    assert sum(sizes) < 18e6


@pytest.mark.parametrize("tier", TIERS)
def test_a_job_that_eats_memory_is_ended_as_oom(tier: Tier, tmp_path: Path) -> None:
    command = write_job(tmp_path, "import time\nx = b'x' * 400_000_000\ntime.sleep(600)\n")
    result = run(tier, tmp_path, make_task(command, execution={"memory_mb": 150}))
    assert result.stages[-1].outcome == "oom"


@pytest.mark.parametrize("tier", TIERS)
def test_a_model_process_that_dies_does_not_leave_the_scorer_waiting(tier: Tier, tmp_path: Path, mark: str) -> None:
    evaluation = Evaluation("sleep 600", model_command="echo $AUTORESEARCHD_EXCHANGE_DIR; exit 1", timeout=1.0)
    result = run(tier, tmp_path, marked(mark, "true", evaluation=evaluation))
    assert result.stages[-1].outcome in ("failed", "timeout")
    exchange = (tmp_path / "runs" / "run" / "model.log").read_text().strip()
    assert exchange
    assert not Path(exchange).exists()


def test_no_folder_tells_a_model_which_run_it_is_where_shared_memory_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_SHARED_MEMORY", tmp_path / "none")
    evaluation = Evaluation("sleep 600", model_command="echo $AUTORESEARCHD_EXCHANGE_DIR; exit 1", timeout=1.0)
    run(PLAIN, tmp_path, make_task("true", evaluation=evaluation))
    exchange = (tmp_path / "runs" / "run" / "model.log").read_text().strip()
    assert exchange.startswith(str(tmp_path))
    assert str(tmp_path / "runs") not in exchange


# -- interpreters ----------------------------------------------------------------------------------------------------


def test_a_report_whose_log_a_power_cut_took_is_no_result(tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task("echo score: 1"))
    executor = local(PLAIN)
    result = executor.start(request).wait()
    log = request.run_dir / "training.log"
    assert executor.recover(request.run_dir) == result
    log.write_bytes(log.read_bytes()[:3])
    assert executor.recover(request.run_dir) is None
    log.unlink()
    assert executor.recover(request.run_dir) is None


def test_an_environment_whose_programs_are_copies_is_used_where_it_is(tmp_path: Path) -> None:
    """A link to a copied interpreter finds no pyvenv.cfg beside it, and so none of the environment's packages."""
    venv.create(tmp_path / "env", symlinks=False)
    python = inspect(tmp_path / "env/bin/python")
    assert python.search_folders(tmp_path / "tools") == [tmp_path / "env/bin"]
    assert inspect(python.search_folders(tmp_path / "tools")[0] / "python3").purelib == python.purelib

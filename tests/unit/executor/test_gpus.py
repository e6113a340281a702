"""Which GPUs runs get: each slice of one that is divided, and none that somebody else has begun to use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.cleaning import one_line
from autoresearchd.domain.errors import PlaceTaken
from autoresearchd.executor.gpus import Devices, find_devices, users
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import Tier, TierName
from tests.contract.executor_contract import make_request, make_task
from tests.fakes.nvml import Gpu, Nvml

WAITS = "import sys; print(flush=True); sys.stdin.read()"
ENGINE = "import os, sys; engine = os.fork(); engine and print(engine, flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def usual_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else's."""
    with begin() as process:
        yield process


@contextmanager
def begin(*more: str, program: str = WAITS) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is at work."""
    command = [sys.executable, "-c", program, *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if program == WAITS:
            assert process.stdout is not None
            process.stdout.readline()  # before, it has no command line yet
        yield process


def test_each_slot_has_a_gpu_and_a_machine_without_gpus_has_none() -> None:
    two = Devices("H100", ("0", "GPU-7"))
    assert [two.visible(i) for i in range(3)] == ["0", "GPU-7", "0"]
    assert (str(two), str(Devices()), Devices().visible(0)) == ("cuda:H100", "cpu", None)


def test_each_slice_of_a_divided_gpu_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `--slots` of a machine whose GPUs are divided starts runs that find no GPU."""
    slices: list[Gpu | None] = [Gpu("H100 MIG 3g.40gb", "MIG-1"), None, Gpu("H100 MIG 3g.40gb", "MIG-2")]
    gpus = (
        Gpu("GeForce RTX 4090", "GPU-0"),
        Gpu("H100", "GPU-1", slices),
        Gpu("H100", "GPU-2"),
        Gpu("H100", "GPU-3", []),
    )
    Nvml(*gpus).install(monkeypatch)
    assert find_devices() == Devices("GeForce RTX 4090", ("0", "MIG-1", "MIG-2", "2"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2, 2")
    assert find_devices() == Devices("H100 MIG 3g.40gb", ("MIG-2", "2"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_devices() == Devices()


def test_without_a_driver_nvidia_smi_or_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Nvml(driver=False).install(monkeypatch)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho A100\necho A100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_devices() == Devices("A100", ("0", "1"))
    assert users(("0",)) == {}


def test_who_computes_is_named_but_not_who_cannot_be_seen_or_is_ours(
    monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes]
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with begin("autoresearchd", "learn") as learner, begin("autoresearchd", "resume") as daemon:
        gpu = Gpu("H100", "GPU-0", pids=[other.pid, gone.pid, learner.pid, daemon.pid, os.getpid()])
        Nvml(gpu).install(monkeypatch)
        found = users(("0", "7", "GPU-of-another-machine"))
    assert found.keys() == {other.pid}
    assert found[other.pid] == one_line(f"{sys.executable} -c {WAITS}", 80)


def test_the_engine_of_a_server_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else research stops for the night where the policy's model is started again on the only GPU."""
    with begin("autoresearchd", "serve", program=ENGINE) as server:
        assert server.stdout is not None
        Nvml(Gpu("H100", "GPU-0", pids=[int(server.stdout.readline())])).install(monkeypatch)
        assert users(("0",)) == {}


def test_runs_of_another_session_share_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of two sessions stands still, for in the gaps between two runs nobody looks."""
    own = {**os.environ, "AUTORESEARCHD_RUN_TOKEN": "of-another-daemon"}
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own) as run:
        assert run.stdout is not None
        run.stdout.readline()
        Nvml(Gpu("H100", "GPU-0", pids=[run.pid])).install(monkeypatch)
        assert users(("0",)) == {}
        run.kill()


def test_of_two_slots_on_one_gpu_neither_takes_the_other_for_somebody_else(
    monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """And somebody else is noticed while the other one runs: two slots are hardly ever idle both."""
    gpu = Gpu("H100", "GPU-0")
    Nvml(gpu).install(monkeypatch)
    executor = LocalExecutor(tier="none", slots=2)
    assert "2 slots share 1 GPU, its time and its memory" in executor.warnings()
    bare = "echo begun; env -i sleep 600 & echo $!; wait"  # it does not tell that it is a run's
    run = executor.start(make_request(tmp_path, make_task(bare)))
    log = tmp_path / "runs/run/training.log"
    while not log.exists() or log.read_text().count("\n") < 2:
        assert run.wait(0.01) is None
    gpu.pids.append(int(log.read_text().split()[1]))
    assert executor.ready(0) and executor.ready(1)
    gpu.pids.append(other.pid)
    assert not executor.ready(1)
    run.kill()


def test_where_the_policys_model_comes_and_goes_nobody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes]
) -> None:
    """Ollama loads a model into a process of its own each time that it is asked after a while."""
    gpu = Gpu("H100", "GPU-0")
    Nvml(gpu).install(monkeypatch)
    executor = LocalExecutor(tier="none")
    executor.shared = True
    assert executor.ready(0)
    gpu.pids.append(other.pid)
    assert executor.ready(0)


def test_a_gpu_that_somebody_begins_to_use_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Else a colleague's training is measured together with the experiments of the night, and each edit looks bad."""
    busy = Gpu("H100", "GPU-1")
    Nvml(Gpu("H100", "GPU-0"), busy).install(monkeypatch)
    executor = LocalExecutor(tier="none")
    assert executor.slots == 2 and executor.ready(0) and executor.ready(1)
    busy.pids.append(other.pid)
    assert executor.ready(0) and not executor.ready(1)
    with pytest.raises(PlaceTaken, match=rf"GPU 1: .*\(process {other.pid}\)"):
        executor.start(replace(make_request(tmp_path, make_task()), slot=1))
    other.kill()
    other.wait()
    assert executor.ready(1)


@pytest.mark.parametrize("name", [TierName.BUBBLEWRAP_NOPROC, TierName.NAMESPACES, TierName.LANDLOCK])
def test_what_a_tier_cannot_give_to_jobs_on_a_gpu_is_a_warning(name: TierName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the baseline fails with nothing but CUDA's error 304, and nobody knows why."""
    Nvml(Gpu("H100", "GPU-0")).install(monkeypatch)
    assert "GPU" in LocalExecutor(tier=Tier(name)).warnings()[-1]
    assert not any("GPU" in text for text in LocalExecutor(tier=Tier(name), devices=Devices()).warnings())


def test_where_there_are_several_gpus_it_is_said_that_no_sandbox_keeps_a_job_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Nvml(Gpu("H100", "GPU-0"), Gpu("H100", "GPU-1")).install(monkeypatch)
    assert any("a job can use all 2 GPUs" in text for text in LocalExecutor(tier=Tier(TierName.BUBBLEWRAP)).warnings())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert not any("all" in text for text in LocalExecutor(tier=Tier(TierName.BUBBLEWRAP)).warnings())


def test_what_computed_before_is_a_condition_of_the_session_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes]
) -> None:
    """A server of the policy's model, say, beside which the baseline is measured, too."""
    Nvml(Gpu("H100", "GPU-0", pids=[other.pid])).install(monkeypatch)
    executor = LocalExecutor(tier="none")
    [warning] = [text for text in executor.warnings() if "in use" in text]
    assert f"(process {other.pid})" in warning
    assert executor.ready(0)

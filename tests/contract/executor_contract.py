"""The contract of `autoresearchd.domain.ports.Executor`, as pytest suites that an adapter's tests inherit.

Subclass `ExecutorContract` (any executor) or `JobContract` (one that really runs commands) in a test module and
give the fixture ``executor``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import BaselineError, Interrupted
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import Executor, RunRequest
from autoresearchd.domain.task import (
    Budget,
    Check,
    Direction,
    Evaluation,
    Execution,
    Metric,
    MetricSource,
    Scoring,
    Task,
)
from autoresearchd.executor.environment import MARKER
from tests.fakes import policies

SUCCEED, FAIL, HANG = "echo val_bpb: 1.5", "echo broken >&2; exit 3", "echo begun; exec sleep 600"
PATIENCE_S = 200.0


def make_task(
    command: str = SUCCEED,
    *,
    training: float = 20.0,
    grace: float = 10.0,
    wall: float = 60.0,
    execution: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Task:
    """A task that runs ``command``; ``execution``: further arguments of `Execution`, ``fields``: those of `Task`."""
    run = Execution(command, Budget(training, grace, wall), **(execution or {}))
    scoring = Scoring(Metric("val_bpb", Direction.MINIMIZE), MetricSource.STDOUT)
    return policies.make_task(execution=run, scoring=scoring, protected=(), **fields)


def make_request(root: Path, task: Task, *, seed: int = 7, key: str = "run") -> RunRequest:
    """A request whose folders lie under ``root``: workspace, pristine, setup, source; runs/<key> is the executor's."""
    folders = {name: root / name for name in ("workspace", "pristine", "setup", "source")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return RunRequest(key=key, task=task, commit="0" * 40, seed=seed, run_dir=root / "runs" / key, **folders)


def ended(executor: Executor, request: RunRequest) -> RunResult:
    """Run it to its end, on a machine that may be busy."""
    result = executor.start(request).wait(PATIENCE_S)
    assert result is not None, f"it did not end within {PATIENCE_S} s"
    return result


class ExecutorContract:
    """What every executor promises, a fake one too. It must understand the commands SUCCEED, FAIL and HANG."""

    def test_a_run_that_succeeds_says_so_and_keeps_its_log(self, executor: Executor, tmp_path: Path) -> None:
        """Else a good result is lost."""
        handle = executor.start(make_request(tmp_path, make_task(SUCCEED)))
        result = handle.wait(PATIENCE_S)
        assert [(s.name, s.outcome, s.exit_code) for s in result.stages] == [("training", "ok", 0)]
        assert handle.run_dir == tmp_path / "runs" / "run"
        log = Path(result.stages[0].log_path)
        assert log == handle.run_dir / "training.log"
        assert log.read_text() == "val_bpb: 1.5\n"
        assert result.duration_s >= 0
        assert result.tier

    def test_a_run_that_fails_gives_its_exit_code_and_its_stderr(self, executor: Executor, tmp_path: Path) -> None:
        """Else a crash is taken for a result."""
        result = ended(executor, make_request(tmp_path, make_task(FAIL)))
        assert (result.stages[-1].outcome, result.stages[-1].exit_code) == ("failed", 3)
        assert "broken" in Path(result.stages[-1].log_path).read_text()

    def test_a_run_is_waited_for_and_killed(self, executor: Executor, tmp_path: Path) -> None:
        """Else an early abort or a stop would have to sit out the run."""
        handle = executor.start(make_request(tmp_path, make_task(HANG)))
        assert handle.wait(0) is None
        assert handle.wait(0.05) is None
        handle.kill()
        handle.kill()
        result = handle.wait(PATIENCE_S)
        assert result.stages[-1].outcome == "killed"

    def test_after_a_crash_a_run_that_had_ended_is_found(self, executor: Executor, tmp_path: Path) -> None:
        """Else a measured run is measured again, or a killed one counts; also when the daemon dies as it recovers."""
        done = executor.start(make_request(tmp_path, make_task(FAIL), key="done"))
        result = done.wait(PATIENCE_S)
        stopped = executor.start(make_request(tmp_path, make_task(HANG), key="stopped"))
        stopped.kill()
        assert stopped.wait(PATIENCE_S) is not None
        assert [executor.recover(done.run_dir) for _ in range(3)] == [result] * 3
        assert executor.recover(stopped.run_dir) is None
        assert executor.recover(tmp_path / "never") is None

    def test_it_says_what_makes_results_comparable_and_always_the_same(self, executor: Executor) -> None:
        """Else a change of hardware goes unseen, or each look opens a new segment."""
        facts = executor.describe()
        assert {"tier", "device", "host", "cpu", "python"} <= set(facts)
        assert executor.describe() == facts
        assert executor.slots >= 1


class JobContract(ExecutorContract):
    """What an executor that really runs commands promises on top."""

    def place(self, executor: Executor, task: Task, pristine: Path, setup: Path) -> Path:
        """Where the executor sets a task up that it is to set up at ``setup``."""
        return setup

    def test_the_job_is_told_seed_budget_and_output_folder(self, executor: Executor, tmp_path: Path) -> None:
        """Else seeds are not the evaluator's, and checkpoints get lost."""
        command = (
            "echo $AUTORESEARCHD_SEED $AUTORESEARCHD_TIME_BUDGET $AUTORESEARCHD_PROFILE $EXTRA;"
            " echo model > $AUTORESEARCHD_OUTPUT_DIR/checkpoint"
        )
        request = make_request(tmp_path, make_task(command, execution={"env": {"EXTRA": "more"}}), seed=42)
        ended(executor, request)
        assert (request.run_dir / "training.log").read_text() == "42 20 cpu more\n"
        assert (request.run_dir / "output" / "checkpoint").read_text() == "model\n"

    def test_nothing_tells_a_job_which_run_it_is(self, executor: Executor, tmp_path: Path) -> None:
        """Else a confirmed program holds back beside its successor, which then seems to be better."""
        looks = "env; pwd; readlink /proc/self/fd/*; cat /proc/self/mountinfo; true"
        request = make_request(tmp_path, make_task(looks))
        ended(executor, request)
        told = (request.run_dir / "training.log").read_text()
        assert "AUTORESEARCHD_OUTPUT_DIR" in told
        assert str(request.run_dir) not in told

    def test_the_job_can_read_what_kind_of_processor_it_has(self, executor: Executor, tmp_path: Path) -> None:
        """Else kernels that choose by it, as some of torch's do, end a run that was fine."""
        if not Path("/proc/cpuinfo").exists():
            pytest.skip("this machine has no /proc/cpuinfo")
        result = ended(executor, make_request(tmp_path, make_task("grep -c processor /proc/cpuinfo")))
        assert result.stages[0].outcome == "ok"

    @pytest.mark.parametrize(
        ("times", "outcome"), [({"training": 0.2, "grace": 0.1}, "budget_overrun"), ({"wall": 0.3}, "timeout")]
    )
    def test_a_late_run_is_ended(self, executor: Executor, tmp_path: Path, times: dict[str, Any], outcome: str) -> None:
        """Else an edit wins by training longer, and a job that hangs stops the night's research."""
        result = ended(executor, make_request(tmp_path, make_task(HANG, **times)))
        assert result.stages[-1].outcome == outcome

    def test_checks_run_after_training_and_a_failure_ends_the_run(self, executor: Executor, tmp_path: Path) -> None:
        """Else a change that breaks the tests is kept."""
        checks = Check("true"), Check("echo wrong; false"), Check("true")
        task = make_task(checks=checks, evaluation=Evaluation("true"))
        result = ended(executor, make_request(tmp_path, task))
        found = [(s.name, s.outcome) for s in result.stages]
        assert found == [("training", "ok"), ("check-0", "ok"), ("check-1", "failed")]

    def test_the_evaluation_runs_on_unedited_files_with_private_data(self, executor: Executor, tmp_path: Path) -> None:
        """Else edited code scores itself."""
        task = make_task(
            "cat who > $AUTORESEARCHD_OUTPUT_DIR/model",
            evaluation=Evaluation("cat who $AUTORESEARCHD_OUTPUT_DIR/model data/val.txt", private=("data/val.txt",)),
        )
        request = make_request(tmp_path, task)
        (request.workspace / "who").write_text("edited\n")
        (request.pristine / "who").write_text("pristine\n")
        (request.setup / "data").mkdir()
        (request.setup / "data" / "val.txt").write_text("targets\n")
        result = ended(executor, request)
        assert [s.outcome for s in result.stages] == ["ok", "ok"]
        assert (request.run_dir / "evaluation.log").read_text() == "pristine\nedited\ntargets\n"

    def test_the_scorer_alone_is_told_how_long_training_took(self, executor: Executor, tmp_path: Path) -> None:
        """Else the edited program times itself where time is the metric, and says what it likes."""
        told = "echo took=$AUTORESEARCHD_TRAIN_SECONDS"
        claim = "export AUTORESEARCHD_TRAIN_SECONDS=0.001"
        task = make_task(f"{told}; {claim}; sleep 0.3", checks=(Check(told),), evaluation=Evaluation(told))
        request = make_request(tmp_path, task)
        result = ended(executor, request)
        training, check, evaluation = (
            (request.run_dir / f"{name}.log").read_text().strip() for name in ("training", "check-0", "evaluation")
        )
        assert training == check == "took="
        assert float(evaluation.removeprefix("took=")) == result.stages[0].duration_s >= 0.3

    def test_scorer_and_model_process_meet_in_the_exchange_folder(self, executor: Executor, tmp_path: Path) -> None:
        """Else the model would have to run in the process that holds the targets."""
        scorer = "cd $AUTORESEARCHD_EXCHANGE_DIR && mkfifo in out && : > go; echo question > in; cat out"
        model = (
            "until [ -e $AUTORESEARCHD_EXCHANGE_DIR/go ]; do sleep 0.02; done; read q < $AUTORESEARCHD_EXCHANGE_DIR/in;"
            " echo $q answered by $(cat who) > $AUTORESEARCHD_EXCHANGE_DIR/out; exec sleep 600"
        )
        request = make_request(tmp_path, make_task(evaluation=Evaluation(scorer, model_command=model)))
        (request.workspace / "who").write_text("the edited model\n")
        result = ended(executor, request)
        assert result.stages[-1].outcome == "ok", (request.run_dir / "evaluation.log").read_text()
        assert (request.run_dir / "evaluation.log").read_text() == "question answered by the edited model\n"

    def test_data_is_found_in_setup_then_in_the_users_folder(self, executor: Executor, tmp_path: Path) -> None:
        """Else training has nothing to read."""
        request = make_request(tmp_path, make_task("cat data/a.txt b.txt", data=("data/a.txt", "b.txt")))
        for place, name in ((request.setup, "data/a.txt"), (request.source, "data/a.txt"), (request.source, "b.txt")):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(f"{place.name} {name}\n")
        for _ in range(2):
            ended(executor, request)
            assert (request.run_dir / "training.log").read_text() == "setup data/a.txt\nsource b.txt\n"

    def test_missing_data_is_named(self, executor: Executor, tmp_path: Path) -> None:
        """Else the user searches a traceback for it."""
        with pytest.raises(BaselineError, match=r"(?s)workspace\.data: 'data/gone\.bin'.*setup_commands"):
            executor.start(make_request(tmp_path, make_task(data=("data/gone.bin",))))

    def test_setup_runs_once_and_is_done_again_after_it_failed(self, executor: Executor, tmp_path: Path) -> None:
        """Else data is prepared for every run, or half of it is used."""
        request = make_request(tmp_path, make_task())
        (request.pristine / "prepare.sh").write_text("echo x >> count; echo preparing; test -e ../ready\n")
        task = make_task(execution={"setup_commands": ("sh prepare.sh",)})
        setup, log = tmp_path / "made", tmp_path / "logs" / "setup.log"
        place = self.place(executor, task, request.pristine, setup)
        with pytest.raises(BaselineError, match="preparing"):
            executor.setup(task, request.pristine, setup, log, threading.Event())
        assert not (place / MARKER).exists()
        assert "preparing" in log.read_text()
        (place.parent / "ready").touch()
        for _ in range(2):
            executor.setup(task, request.pristine, setup, log, threading.Event())
        assert (place / "count").read_text() == "x\n"

    def test_setup_ends_when_it_is_cancelled(self, executor: Executor, tmp_path: Path) -> None:
        """Else a stop waits for a download."""
        request = make_request(tmp_path, make_task())
        cancel = threading.Event()
        cancel.set()
        task = make_task(execution={"setup_commands": ("sleep 600",)})
        with pytest.raises(Interrupted):
            executor.setup(task, request.pristine, tmp_path / "made", tmp_path / "setup.log", cancel)

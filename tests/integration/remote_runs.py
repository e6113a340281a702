"""Runs on other machines in tests, on a machine so busy that one of theirs may look dead."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import Executor, RunRequest
from autoresearchd.domain.task import Evaluation, Task
from autoresearchd.executor.remote.executor import RemoteExecutor, RemoteRun
from autoresearchd.executor.remote.hosts import setup_key
from autoresearchd.executor.remote.trees import Trees
from tests.contract.executor_contract import PATIENCE_S, JobContract, ended, make_request, make_task
from tests.integration.local_jobs import ESCAPE, carriers, marked, text_of, write_job
from tests.timing import wait_until


def begun(executor: RemoteExecutor, request: RunRequest) -> RemoteRun:
    """A run whose job prints. Started again where a busy machine looks like a host that is dead."""
    log, runs = request.run_dir / "training.log", list[RemoteRun]()

    def look() -> RemoteRun | None:
        if not runs or runs[-1].wait(0) is not None:
            with contextlib.suppress(EnvironmentFailure):
                runs.append(executor.start(request))
        return runs[-1] if runs and text_of(log) else None

    found: RemoteRun = wait_until(look)
    return found


def outcome(handle: RemoteRun) -> str:
    result = handle.wait(PATIENCE_S)
    assert result is not None
    return result.stages[-1].outcome


def ended_well(executor: RemoteExecutor, request: RunRequest) -> RunResult:
    """The result of a run, made again until no busy machine looks like a dead host."""

    def attempt() -> RunResult | None:
        with contextlib.suppress(EnvironmentFailure):
            result = ended(executor, request)
            return None if result.stages[-1].outcome == "lost" else result
        return None

    found: RunResult = wait_until(attempt)
    return found


class RemoteContract(JobContract):
    """What an executor for other machines promises on top. It has one host, which serves nobody else."""

    def place(self, executor: Executor, task: Task, pristine: Path, setup: Path) -> Path:
        return top_of(executor) / "setup" / setup_key(task, Trees().read(pristine))

    def test_a_log_comes_while_the_job_runs_and_a_kill_ends_all_of_it(
        self, executor: RemoteExecutor, mark: str, tmp_path: Path
    ) -> None:
        """Else nothing can be ended early, and an ended run goes on in the GPU that the next one gets."""
        runs = top_of(executor) / "runs"
        before = set(runs.glob("*"))
        request = make_request(tmp_path, marked(mark, write_job(tmp_path, ESCAPE.format(rest=600))))
        handle = begun(executor, request)
        assert text_of(handle.run_dir / "training.log") == "escaped\n"
        assert carriers(mark)
        handle.kill()
        assert outcome(handle) == "killed"
        assert carriers(mark) == []
        assert set(runs.glob("*")) <= before, "what is fetched is removed there"

    def test_what_leads_out_of_the_output_does_not_come_here(self, executor: RemoteExecutor, tmp_path: Path) -> None:
        """Else a hostile program has the daemon read what it may not, by a link in what is fetched."""
        command = (
            "cd $AUTORESEARCHD_OUTPUT_DIR; ln -s /etc/passwd a; ln -s ../../.. b; mkfifo c; echo x > d; ln -s d e;"
            " mkdir f; head -c 9000000 /dev/zero > f/large; chmod +x d"
        )
        request = make_request(tmp_path, make_task(command))
        result = ended(executor, request)
        assert (result.stages[-1].outcome, result.device) == ("ok", "cpu")
        output = request.run_dir / "output"
        assert sorted(path.name for path in output.iterdir()) == ["d", "e", "f"]
        assert (output / "e").read_text() == "x\n"
        assert (output / "f" / "large").read_bytes() == bytes(9_000_000)
        assert os.access(output / "d", os.X_OK)

    def test_what_is_private_in_data_or_behind_its_links_is_the_evaluations_alone(
        self, executor: RemoteExecutor, tmp_path: Path
    ) -> None:
        """Else links arrive as copies of the answers that no sandbox hides, or such a task runs on no host."""
        task = make_task(
            "cat data/* data/*/* linked/* answers/*; true",
            data=("data", "data/train", "linked"),
            evaluation=Evaluation("cat data/train data/val answers/a", private=("data/val", "answers")),
        )
        request = make_request(tmp_path, task)
        for top in (request.source, request.pristine, request.workspace):  # the answers are committed, the rest is not
            (top / "answers").mkdir()
            (top / "answers/a").write_text("text of answers/a\n")
        (request.source / "data").mkdir()
        for name in ("data/train", "data/val"):
            (request.source / name).write_text(f"text of {name}\n")
        links = {"data/a": "../answers/a", "data/more": "../answers", "data/b": "val", "linked": "data"}
        for name, to in links.items():
            (request.source / name).symlink_to(to)
        for _ in range(2):
            result = ended(executor, request)
            assert [stage.outcome for stage in result.stages] == ["ok", "ok"], result
            log = (request.run_dir / "training.log").read_text()
            assert log.count("text of data/train\n") == 2 and log.count("text of") == 2, log
            answers = "text of data/train\ntext of data/val\ntext of answers/a\n"
            assert (request.run_dir / "evaluation.log").read_text() == answers
        for sent in (top_of(executor) / "data").iterdir():
            assert Trees().read(sent).hash == sent.name

    def test_of_a_run_that_failed_the_log_comes_and_no_output(self, executor: RemoteExecutor, tmp_path: Path) -> None:
        """Else a crash costs the transfer of a checkpoint that nobody looks at, and a stop waits for it."""
        command = "echo x > $AUTORESEARCHD_OUTPUT_DIR/model; echo broken >&2; exit 3"
        request = make_request(tmp_path, make_task(command))
        assert ended(executor, request).stages[-1].outcome == "failed"
        assert (request.run_dir / "training.log").read_text() == "broken\n"
        assert not (request.run_dir / "output").exists()


def top_of(executor: Executor) -> Path:
    """The folder on its host that all is in."""
    assert isinstance(executor, RemoteExecutor)
    return Path(executor.given[0].remote_dir) / ".autoresearchd"

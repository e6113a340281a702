"""Launch a program and measure it: the one way from files in a folder to a measurement, for whoever needs one."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from autoresearchd.domain.experiment import Decision, Measurement, Run, RunResult
from autoresearchd.domain.ports import Executor, ResearchState, RunHandle, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.abort.abort_policy import Look
from autoresearchd.evaluator.measure.measurement import measure
from autoresearchd.loop.early_abort import WatchedRun
from autoresearchd.loop.measuring.run_files import ProtectedFiles, Seals, clean_logs, read_logs, read_result_file
from autoresearchd.sandbox.job_files import remove_tree


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """A program that runs in a slot."""

    request: RunRequest
    handle: RunHandle
    seals: Seals

    def kill(self) -> RunResult:
        self.handle.kill()
        result = self.handle.wait(None)
        assert result is not None
        return result

    def measure(self, result: RunResult) -> Measurement:
        """What it gave; the same however often it is asked."""
        return measure_run(self.request.task, result, self.request.run_dir, self.seals)


def launch(executor: Executor, protected: ProtectedFiles, request: RunRequest) -> RunningProgram:
    """Start a program in the slot that the request names; its protected files are sealed first."""
    seals = protected.seal(request.workspace)
    return RunningProgram(request, executor.start(request), seals)


def measure_run(
    task: Task, result: RunResult, run_dir: Path, seals: Seals | None = None, redactor: Redactor | None = None
) -> Measurement:
    """What a run that has ended gave, unless it was tampered with. seals: None where they went with their daemon."""
    if redactor is not None:
        clean_logs(run_dir, redactor)
    measurement = measure(task, result, read_logs(result), result_file=read_result_file(task, run_dir))
    return measurement if seals is None else seals.check(measurement)


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy is asked, and its answer to come. began: when it was, on the monotonic clock."""

    state: ResearchState
    began: float
    answer: Future[Proposal]


@dataclass
class Slot:
    """All that an experiment under way has in memory. A daemon begins with empty ones.

    asked: the question that its policy is at. number: of the place where its program runs; None: it has none at
    present. running: its program; beside: the same in all other places, where the baseline is to be measured as
    busy as they will be. watched: what early abort follows; ended_by: why it ended the run. waits: what comes next
    is a decision, and earlier experiments are not decided yet. given_up: what is decided then of one that the
    daemon cannot take further. stands: a failure is not given back to be fixed. began: when the experiment did, on
    the monotonic clock; policy_s, jobs_s: seconds that were not the daemon's own since then. waiting: since when it
    waits for others: for a place, or for earlier decisions. last_seen: of one found after a crash, when the daemon that
    died was last known to live.
    """

    began: float
    number: int | None = None
    asked: Question | None = None
    running: RunningProgram | None = None
    beside: list[RunningProgram] = field(default_factory=list)
    watched: WatchedRun | None = None
    ended_by: Look | None = None
    waits: bool = False
    given_up: Decision | None = None
    stands: bool = False
    policy_s: float = 0.0
    jobs_s: float = 0.0
    waiting: float | None = None
    last_seen: datetime | None = None

    def ended(self, run: Run, result: RunResult | None, now: datetime) -> datetime:
        """When a run ended that is closed now: the time from a crash to the next daemon was no work of it."""
        if self.running is not None or self.last_seen is None:
            return now
        last = self.last_seen if result is None else run.started_at + timedelta(seconds=result.duration_s)
        return min(now, max(run.started_at, last))

    def wait(self, waits: bool, now: float) -> None:
        """Whether it waits for others, on the monotonic clock."""
        if waits:
            self.waiting = now if self.waiting is None else self.waiting
        elif self.waiting is not None:
            self.jobs_s, self.waiting = self.jobs_s + now - self.waiting, None

    def clear(self) -> None:
        """Nothing runs for it any more."""
        for program in self.beside:
            program.kill()
            remove_tree(str(program.request.run_dir))
        self.beside = []
        self.running = self.watched = self.ended_by = None

    def kill(self) -> None:
        """End the run under way, if any; the experiment stays open."""
        if self.running is not None:
            self.running.kill()
        self.clear()

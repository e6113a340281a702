"""The judge that runs experiments: a proposal for a held-out state is measured, and rewarded as the loop would.

Each program runs once, beside one run of what was the best by then, on the same seed: the machine may be faster or
slower today than it was. Commits, branches and worktrees of the session are not touched, so that its daemon may be at
work meanwhile (where the executor has room for both). No run is ended early.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, UsageError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase
from autoresearchd.domain.ports import Cancel, Executor, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.feedback import feedback
from autoresearchd.evaluator.keep.decide import decide, incumbent_value
from autoresearchd.evaluator.keep.keep_rule import KeepRule
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.reward import resources_saved, reward
from autoresearchd.evaluator.rules.run_time import held
from autoresearchd.learner.gate.held_out_states import UNUSABLE, Ground, HeldOut, reason_of
from autoresearchd.learner.gate.judge_answers import Attempt, Examined, HeldOutState, Outcome, examine, outcome, settled
from autoresearchd.loop.deciding import resources
from autoresearchd.loop.measuring.run_files import ProtectedFiles
from autoresearchd.loop.messages import commit_of
from autoresearchd.loop.run import RunningProgram, launch
from autoresearchd.policy.workspace_copy import put
from autoresearchd.workspace.files import disk_errors, remove_tree

JUDGE = "judge"
_ONE_RUN = KeepRule(most=0, gate_at=0.0)
"""No further run can be asked for; a bound that one run holds is taken to be held."""
_MAX_DETAIL = 200
_LOOK_S = 0.2
"""Seconds between two looks at all runs and at whether somebody wants an end."""


class _Key(NamedTuple):
    """What makes two runs the same. program: hash of the edited program, empty for the commit as it is."""

    session: str
    commit: str
    program: str
    seed: int


@dataclass(frozen=True, slots=True)
class _Job:
    """A run to make. task: with the time that it has; files: edited files that are put over the commit's."""

    ground: Ground
    task: Task
    key: _Key
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a run gave."""

    measurement: Measurement
    result: RunResult


@dataclass(frozen=True, slots=True)
class _Running:
    """A run under way, in a folder of its own."""

    job: _Job
    place: Path
    program: RunningProgram


class RealJudge:
    """Judges by experiments, as many at once as the executor has slots.

    The same program at the same state is run once, however often it is proposed, also over several calls.

    cancel: ends the judging, and all of its runs, soon after it is set. run_foreign: whether commands of other
    repositories may be run, too.
    """

    def __init__(
        self, held_out: HeldOut, executor: Executor, *, cancel: Cancel | None = None, run_foreign: bool = False
    ) -> None:
        self._held_out, self._run_foreign = held_out, run_foreign
        self._runs = _Runs(executor, cancel or threading.Event())
        self._ended: dict[_Key, _Ended] = {}

    def judge(self, state: HeldOutState, completion: str) -> Outcome:
        """What one answer is worth."""
        return self.judge_all([(state, completion)])[0]

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """As the contract has it.

        Raises Interrupted: ``cancel`` was set; EnvironmentFailure: the disk is full, or folders of a run cannot be
        made; BaselineError: a session's set-up commands fail, or its data is gone; UsageError: a session is foreign.
        """
        for session in {state.session for state, _ in attempts}:
            self._permitted(session)
        # What said nothing about its program (its host was lost) may say something the next time.
        self._ended = {k: e for k, e in self._ended.items() if RULES[e.measurement.label].status is not None}
        rules = self._held_out.rules
        seen = [(state, examine(state, completion, rules)) for state, completion in attempts]
        jobs = [job for state, found in seen if found.label is Label.NONE for job in self._jobs(state, found)]
        wanted = {job.key: job for job in jobs if job.key not in self._ended}
        self._ended |= self._runs.all(list(wanted.values()))
        return [settled(state, found) or self._judged(state, found) for state, found in seen]

    def _permitted(self, session: str) -> None:
        """Raise UsageError where the experiments of a session must not run here."""
        if self._held_out.ground(session).foreign and not self._run_foreign:
            raise UsageError(
                "it is of another repository, and none of its commands is run (--set run_foreign=true runs them)",
                hint="take --set judge=checks",
            )

    def rehearse(self, states: Sequence[HeldOutState]) -> dict[str, str]:
        """Which sessions cannot be judged here, each with the reason in words.

        The task of each session is set up, and what was the best at the first of its states is run once. Raises
        Interrupted: ``cancel`` was set; EnvironmentFailure: the disk is full, or folders of a run cannot be made.
        """
        firsts: dict[str, HeldOutState] = {}
        for state in states:
            firsts.setdefault(state.session, state)
        found: dict[str, str] = {}
        for session, state in firsts.items():
            try:
                self._permitted(session)
                beside = self._beside(state)
                ended = self._runs.all([beside])[beside.key]
            except UNUSABLE as error:
                found[session] = reason_of(error)
                continue
            label = ended.measurement.label
            if label is not Label.NONE and RULES[label].status is not None:
                told = self._held_out.ground(session).redactor.text(ended.measurement.detail)
                found[session] = f"the best of it does not run here ({label.value}): {shorten(told, _MAX_DETAIL)}"
            self._ended[beside.key] = ended
        return found

    def _beside(self, state: HeldOutState) -> _Job:
        """The run of what was the best before a state."""
        ground = self._held_out.ground(state.session)
        seed = derive_seed(ground.session.seed, state.number, JUDGE)
        incumbent = ground.incumbent(state.number)
        key = _Key(state.session, commit_of(incumbent), "", seed)
        return _Job(ground, ground.baseline(incumbent.segment).run_task, key)

    def _jobs(self, state: HeldOutState, seen: Examined) -> tuple[_Job, _Job]:
        """The runs that an edit needs: of the best before it, and its own."""
        beside = self._beside(state)
        own = _Key(state.session, state.parent, seen.files_hash, beside.key.seed)
        return beside, replace(beside, key=own, files=seen.files)

    def _judged(self, state: HeldOutState, seen: Examined) -> Outcome:
        """The outcome of an edit whose runs have ended."""
        beside, own = (self._ended[job.key] for job in self._jobs(state, seen))
        ground = self._held_out.ground(state.session)
        if own.measurement.label is Label.NONE:  # held to its budget as in the loop
            incumbent = ground.incumbent(state.number)
            pace = ground.pace(incumbent.segment, beside.result)
            noise = ground.noise_data(incumbent.segment).noise(incumbent.number)
            best, sigma = beside.measurement.value, noise.sigma if noise is not None else None
            bounded = held(ground.task, own.result, own.measurement, pace, best=best, sigma=sigma)
            own = _Ended(bounded, own.result)
        label, detail = own.measurement.label, ground.redactor.text(own.measurement.detail)
        if RULES[label].status is None:
            return outcome(state, seen, None, label=label, error=detail)
        if beside.measurement.label is not Label.NONE:
            why = f"what it is compared with does not run here: {ground.redactor.text(beside.measurement.detail)}"
            return outcome(state, seen, None, label=beside.measurement.label, error=why)
        tested, earned = self._rewarded(ground, state, seen, own, beside)
        assert tested.decision is not None
        told, error = ground.redactor.text(feedback(ground.task, tested)), detail if label is not Label.NONE else ""
        return outcome(state, seen, earned, label=tested.decision.label, error=error, feedback=told)

    def _rewarded(
        self, ground: Ground, state: HeldOutState, seen: Examined, own: _Ended, beside: _Ended
    ) -> tuple[Experiment, float | None]:
        """The experiment that these two runs would be, decided, and the reward that the loop would give."""
        incumbent = ground.incumbent(state.number)
        number = max(ground.experiments) + 1
        seed = derive_seed(ground.session.seed, state.number, JUDGE)
        tested = Experiment(
            ground.session.id,
            number,
            incumbent.segment,
            Phase.MEASURED,
            state.parent,
            datetime.now(UTC),
            proposal=Proposal(dict(seen.files), "", JUDGE),
            runs=(_run(number, 0, seed, own), _run(number, 1, seed, beside, of=incumbent.number)),
        )
        noise_data = ground.noise_data(incumbent.segment)
        decision = decide(ground.task, tested, incumbent, noise_data, rule=_ONE_RUN, baseline=tested.runs[1:])
        assert isinstance(decision, Decision)
        known = noise_data.values(incumbent.number)
        now = replace(incumbent, runs=(_run(incumbent.number, 0, seed, beside),), attempt=0)
        earned = reward(
            decision.label,
            decision.delta,
            decision.sigma,
            incumbent_value(ground.task, noise_data, incumbent) if known else beside.measurement.value,
            sure=decision.sure,
            saved=resources_saved(resources(tested), resources(now)),
            distance=seen.novelty,
        )
        return replace(tested, decision=decision), None if earned is None else earned.total


class _Runs:
    """Runs programs in copies of their own, which are removed afterwards. Used from one thread."""

    def __init__(self, executor: Executor, cancel: Cancel) -> None:
        self._executor, self._cancel = executor, cancel
        self._ready: set[Path] = set()

    def all(self, jobs: Sequence[_Job]) -> dict[_Key, _Ended]:
        """Run them, as many at once as there are slots; whatever ends this early ends all of them."""
        for ground in {id(job.ground): job.ground for job in jobs}.values():
            self._prepare(ground)
        waiting, busy = deque(jobs), dict[int, _Running]()
        ended: dict[_Key, _Ended] = {}
        try:
            while waiting or busy:
                for slot in range(max(1, self._executor.slots)):
                    if waiting and slot not in busy:
                        busy[slot] = self._start(waiting.popleft(), slot)
                slot, result = self._next(busy)
                running = busy.pop(slot)
                ended[running.job.key] = self._concluded(running, result)
        finally:
            for running in busy.values():
                running.program.kill()
                remove_tree(running.place)
        return ended

    def _prepare(self, ground: Ground) -> None:
        """Set a session's task up, and remove what a judge that was killed has left."""
        if ground.scratch in self._ready:
            return
        for left in sorted(ground.scratch.glob("*/run")):
            self._executor.recover(left)
        remove_tree(ground.scratch)
        with disk_errors(f"making {ground.scratch}"):
            ground.scratch.mkdir(parents=True)
        self._executor.setup(ground.task, ground.pristine, ground.setup, ground.scratch / "setup.log", self._cancel)
        self._ready.add(ground.scratch)

    def _start(self, job: _Job, slot: int) -> _Running:
        ground, place = job.ground, job.ground.scratch / str(slot)
        remove_tree(place)
        workspace, run_dir = place / "workspace", place / "run"
        ground.workspace.materialise(job.key.commit, workspace)
        with disk_errors(f"preparing a run in {place}"):
            put(workspace, job.files, ground.task)
            run_dir.mkdir(parents=True)
        base = ground.session.base_commit
        protected = ProtectedFiles(ground.task, ground.pristine, lambda: ground.workspace.pristine(base))
        request = RunRequest(
            key=f"{JUDGE}/{ground.session.tag}/{slot}",
            task=job.task,
            commit=job.key.commit,
            seed=job.key.seed,
            workspace=workspace,
            pristine=ground.pristine,
            setup=ground.setup,
            run_dir=run_dir,
            source=ground.folder,
            slot=slot,
        )
        return _Running(job, place, launch(self._executor, protected, request))

    def _next(self, busy: Mapping[int, _Running]) -> tuple[int, RunResult]:
        """The slot of a run that has ended, and its result."""
        while True:
            for slot, running in busy.items():
                result = running.program.handle.wait(_LOOK_S / len(busy))
                if result is not None:
                    return slot, result
            if self._cancel.is_set():
                raise Interrupted("the learner was stopped while proposals were judged")

    def _concluded(self, running: _Running, result: RunResult) -> _Ended:
        """What a run gave, as the loop reads it; its folder is removed."""
        found = replace(running.program.measure(result), curve=())
        remove_tree(running.place)
        if found.label is Label.DISK_FULL:
            raise EnvironmentFailure(
                f"a run that was to be judged found no room on the disk: {found.detail}", hint="free some space"
            )
        return _Ended(found, result)


def _run(number: int, index: int, seed: int, ended: _Ended, *, of: int | None = None) -> Run:
    """A run as the store would give it. of: the experiment whose program ran, where it is another one."""
    found, result, now = ended.measurement, ended.result, datetime.now(UTC)
    return Run(
        0,
        number,
        index,
        seed,
        now,
        now,
        found.label,
        found.value,
        found.metrics,
        result.duration_s,
        tier=result.tier,
        device=result.device,
        detail=found.detail,
        of=of,
    )

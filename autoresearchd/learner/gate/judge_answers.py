"""What an answer for a held-out state is worth: read as the loop reads it, then only checked, or run as an experiment.

Each program runs once, beside one run of what was the best by then, on the same seed: the machine may be faster or
slower today than it was. Commits, branches and worktrees of the session are not touched, so that its daemon may be at
work meanwhile (where the executor has room for both). No run is ended early.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, PolicyError, UsageError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.ports import Cancel, Executor, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.feedback import PENALTIES, feedback, novelty, resources_saved, reward
from autoresearchd.evaluator.keep.decide import decide, sign_of
from autoresearchd.evaluator.keep.tip_belief import beside as believed_beside
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.evaluator.rules.run_time import held
from autoresearchd.learner.gate.held_out_states import UNUSABLE, Ground, HeldOut, HeldOutState, reason_of
from autoresearchd.loop.deciding import resources
from autoresearchd.loop.measuring.run_files import ProtectedFiles
from autoresearchd.loop.messages import commit_of, unified_diff
from autoresearchd.loop.run import RunningProgram, launch
from autoresearchd.policy.prompt import brief as prompts
from autoresearchd.policy.workspace_copy import put
from autoresearchd.workspace.files import disk_errors, remove_tree

JUDGE = "judge"
_MAX_ERROR, _MAX_DETAIL = 300, 200
_LOOK_S = 0.2  # seconds between two looks at all runs and at whether somebody wants an end

Attempt = tuple[HeldOutState, str]
"""A state, and the completion that a policy gave for it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fresh proposal for a held-out state came to.

    valid: a legal edit that changes the program, whether or not it was tried before. label, error: why it is not worth
    a run, or how its run ended. reward: None where the outcome says nothing about the proposal. not_run: only a run
    would tell its worth. novelty: distance to the nearest of the last edits, 0 to 1. files_hash: of the program after
    the edit. feedback: on its run, in the words that the model would be told.
    """

    key: str
    session: str
    valid: bool
    label: Label = Label.NONE
    error: str = ""
    reward: float | None = None
    not_run: bool = False
    novelty: float = 0.0
    files_hash: str = ""
    feedback: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def examine(state: HeldOutState, completion: str, held_out: HeldOut) -> Outcome:
    """Read an answer as the loop does: the edit in it, whether it is legal, and whether it was tried before.

    One that is worth a run has no label and no reward yet. What is *nearly* a repetition is no matter for a judge. One
    that passes, where the prompt offers it, has no reward and is no valid edit: nobody is promoted for passing more.
    """
    ground = held_out.ground(state.session)
    if prompts.offers_pass(state.messages) and prompts.passes(completion):
        return Outcome(state.key, state.session, False, Label.NO_OP, "it leaves the turn to the search")
    try:
        edit = prompts.read_stored(completion, state.code, ground.task, state.messages)
        ground.legal(state, edit.files)
    except PolicyError as error:
        words = shorten(str(error), _MAX_ERROR)
        return Outcome(state.key, state.session, False, error.label, words, PENALTIES.get(error.label))
    after = {**state.code, **edit.files}
    program = code_hash(after)
    seen = Outcome(
        state.key,
        state.session,
        bool(edit.files),
        novelty=novelty(unified_diff(state.code, after), state.earlier),
        files_hash=program,
        files=dict(edit.files),
    )
    if ground.was_tried(state, program):
        words = "the same program was tried before"
        return replace(seen, label=Label.DUPLICATE, error=words, reward=PENALTIES[Label.DUPLICATE])
    return seen


class CheckingJudge:
    """Judges without running anything: an edit that is worth a run earns its novelty bonus only."""

    def __init__(self, held_out: HeldOut) -> None:
        self._held_out = held_out

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """What each of some answers is worth, in their order; an answer is judged as if it were the only one."""
        outcomes = []
        for state, completion in attempts:
            seen = examine(state, completion, self._held_out)
            if seen.label is Label.NONE and (earned := reward(Label.NONE, 0.0, None, None, distance=seen.novelty)):
                seen = replace(seen, reward=earned.parts["novelty"], not_run=True)
            outcomes.append(seen)
        return outcomes


@dataclass(frozen=True, slots=True)
class _Job:
    """A run to make; two are the same where the first four are.

    program: hash of the edited program, empty for the commit as it is. files: edited ones that go over the commit's.
    """

    session: str
    commit: str
    program: str
    seed: int
    ground: Ground = field(compare=False)
    task: Task = field(compare=False)
    files: Mapping[str, str] = field(default_factory=dict, compare=False)


class _Ended(NamedTuple):
    """What a run gave."""

    measurement: Measurement
    result: RunResult


class RealJudge(CheckingJudge):
    """Judges by experiments, as many at once as the executor has slots; used from one thread.

    The same program at the same state is run once. unlimited: a context in which jobs are started.
    """

    def __init__(
        self,
        held_out: HeldOut,
        executor: Executor,
        *,
        cancel: Cancel | None = None,
        run_foreign: bool = False,
        unlimited: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(held_out)
        self._executor, self._run_foreign, self._unlimited = executor, run_foreign, unlimited
        self._cancel = cancel or threading.Event()
        self._ready: set[str] = set()
        self._ended: dict[_Job, _Ended] = {}

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """As any judge does. UsageError: a session is foreign; BaselineError: its set-up fails, or its data is gone."""
        for session in {state.session for state, _ in attempts}:
            self._check_permitted(session)
        # What said nothing about its program (its host was lost) may say something the next time.
        self._ended = {k: e for k, e in self._ended.items() if RULES[e.measurement.label] is not None}
        outcomes = [(state, examine(state, completion, self._held_out)) for state, completion in attempts]
        jobs = [job for state, seen in outcomes if seen.label is Label.NONE for job in self._jobs(state, seen)]
        self._ended |= self._run_all([job for job in dict.fromkeys(jobs) if job not in self._ended])
        return [self._judged(state, seen) if seen.label is Label.NONE else seen for state, seen in outcomes]

    def _check_permitted(self, session: str) -> None:
        """Raise UsageError where the experiments of a session must not run here."""
        if self._held_out.ground(session).foreign and not self._run_foreign:
            raise UsageError(
                "it is of another repository, and none of its commands is run (--set run_foreign=true runs them)",
                hint="take --set judge=checks",
            )

    def rehearse(self, states: Sequence[HeldOutState]) -> dict[str, str]:
        """Which sessions cannot be judged here, each with the reason in words.

        The task of each session is set up, and what was the best at the first of its states is run once.
        """
        firsts: dict[str, HeldOutState] = {}
        for state in states:
            firsts.setdefault(state.session, state)
        lost: dict[str, str] = {}
        for session, state in firsts.items():
            try:
                self._check_permitted(session)
                beside = self._beside(state)
                ended = self._run_all([beside])[beside]
            except UNUSABLE as error:
                lost[session] = reason_of(error)
                continue
            label = ended.measurement.label
            if label is not Label.NONE and RULES[label] is not None:
                words = self._held_out.ground(session).redactor.text(ended.measurement.detail)
                lost[session] = f"the best of it does not run here ({label.value}): {shorten(words, _MAX_DETAIL)}"
            self._ended[beside] = ended
        return lost

    # -- from runs to a reward
    def _beside(self, state: HeldOutState) -> _Job:
        """The run of what was the best before a state."""
        ground = self._held_out.ground(state.session)
        seed = derive_seed(ground.session.seed, state.number, JUDGE)
        incumbent = ground.incumbent(state.number)
        task = ground.baseline(incumbent.segment).run_task
        return _Job(state.session, commit_of(incumbent), "", seed, ground, task)

    def _jobs(self, state: HeldOutState, seen: Outcome) -> tuple[_Job, _Job]:
        """The runs that an edit needs: of the best before it, and its own."""
        beside = self._beside(state)
        return beside, replace(beside, commit=state.parent, program=seen.files_hash, files=seen.files)

    def _judged(self, state: HeldOutState, seen: Outcome) -> Outcome:
        """The outcome of an edit whose runs have ended: decided and rewarded as the experiment that they would be."""
        jobs = self._jobs(state, seen)
        beside, own = (self._ended[job] for job in jobs)
        ground, seed = self._held_out.ground(state.session), jobs[0].seed
        task, incumbent = ground.task, ground.incumbent(state.number)
        belief, reference = ground.belief(incumbent.segment), beside.measurement.value
        if own.measurement.label is Label.NONE:  # held to its budget as in the loop
            pace = ground.pace(incumbent.segment, beside.result)
            sigma = belief.sigma if belief is not None else None
            bounded = held(task, own.result, own.measurement, pace, best=reference, sigma=sigma)
            own = _Ended(bounded, own.result)
        label, detail = own.measurement.label, ground.redactor.text(own.measurement.detail)
        if RULES[label] is None:
            return replace(seen, label=label, error=shorten(detail, _MAX_ERROR))
        if beside.measurement.label is not Label.NONE or reference is None:
            why = f"what it is compared with does not run here: {ground.redactor.text(beside.measurement.detail)}"
            return replace(seen, label=beside.measurement.label, error=shorten(why, _MAX_ERROR))
        number = max(ground.experiments) + 1
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
        # What it was kept with, perhaps on another machine, counts for nothing: its run beside is all that is known.
        if belief is not None:
            belief = believed_beside(belief, sign_of(task.metric) * reference)
        there = Decision(Status.KEEP, Label.NONE, reference, metrics=beside.measurement.metrics)
        now = replace(incumbent, runs=(_run(incumbent.number, 0, seed, beside),), attempt=0, decision=there)
        decision = decide(task, tested, now, belief, baseline=tested.runs[1:])
        earned = reward(
            decision.label,
            decision.delta,
            decision.sigma,
            reference,
            saved=resources_saved(resources(tested), resources(now)),
            distance=seen.novelty,
        )
        return replace(
            seen,
            label=decision.label,
            error=shorten(detail, _MAX_ERROR) if label is not Label.NONE else "",
            reward=None if earned is None else earned.total,
            feedback=ground.redactor.text(feedback(task, replace(tested, decision=decision))),
        )

    # -- runs, each in a copy of its own, which is removed afterwards
    def _run_all(self, jobs: Sequence[_Job]) -> dict[_Job, _Ended]:
        """Run them, as many at once as there are slots; whatever ends this early ends all of them."""
        for job in jobs:
            if job.session not in self._ready:
                self._prepare(job.ground)
                self._ready.add(job.session)
        waiting, busy = deque(jobs), dict[int, tuple[_Job, RunningProgram]]()
        ended: dict[_Job, _Ended] = {}
        try:
            while waiting or busy:
                for slot in range(max(1, self._executor.slots)):
                    if waiting and slot not in busy:
                        job = waiting.popleft()
                        busy[slot] = job, self._start(job, slot)
                slot, result = self._next({slot: program for slot, (_, program) in busy.items()})
                job, program = busy.pop(slot)
                measured = replace(program.measure(result), curve=())
                remove_tree(job.ground.scratch / str(slot))
                if measured.label is Label.DISK_FULL:
                    what = f"a run that was to be judged found no room on the disk: {measured.detail}"
                    raise EnvironmentFailure(what, hint="free some space")
                ended[job] = _Ended(measured, result)
        finally:
            for slot, (job, program) in busy.items():
                program.kill()
                remove_tree(job.ground.scratch / str(slot))
        return ended

    def _prepare(self, ground: Ground) -> None:
        """Set a session's task up, and remove what a judge that was killed has left."""
        for left in sorted(ground.scratch.glob("*/run")):
            self._executor.recover(left)
        remove_tree(ground.scratch)
        with disk_errors(f"making {ground.scratch}"):
            ground.scratch.mkdir(parents=True)
        with self._unlimited():
            self._executor.setup(ground.task, ground.pristine, ground.setup, ground.scratch / "setup.log", self._cancel)

    def _start(self, job: _Job, slot: int) -> RunningProgram:
        ground, place = job.ground, job.ground.scratch / str(slot)
        remove_tree(place)
        workspace, run_dir = place / "workspace", place / "run"
        ground.workspace.materialise(job.commit, workspace)
        with disk_errors(f"preparing a run in {place}"):
            put(workspace, job.files, ground.task)
            run_dir.mkdir(parents=True)
        base = ground.session.base_commit
        protected = ProtectedFiles(ground.task, ground.pristine, lambda: ground.workspace.pristine(base))
        request = RunRequest(
            key=f"{JUDGE}/{ground.session.tag}/{slot}",
            task=job.task,
            commit=job.commit,
            seed=job.seed,
            workspace=workspace,
            pristine=ground.pristine,
            setup=ground.setup,
            run_dir=run_dir,
            source=ground.folder,
            slot=slot,
        )
        with self._unlimited():
            return launch(self._executor, protected, request)

    def _next(self, busy: Mapping[int, RunningProgram]) -> tuple[int, RunResult]:
        """The slot of a run that has ended, and its result."""
        while True:
            for slot, program in busy.items():
                result = program.handle.wait(_LOOK_S / len(busy))
                if result is not None:
                    return slot, result
            if self._cancel.is_set():
                raise Interrupted("the learner was stopped while proposals were judged")


def _run(number: int, index: int, seed: int, ended: _Ended, *, of: int | None = None) -> Run:
    """A run as the store would give it. of: the experiment whose program ran, where it is another one."""
    measured, result, now = ended.measurement, ended.result, datetime.now(UTC)
    facts = measured.label, measured.value, measured.metrics, result.duration_s
    return Run(
        0, number, index, seed, now, now, *facts, tier=result.tier, device=result.device, detail=measured.detail, of=of
    )

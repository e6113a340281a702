"""One experiment: ``advance`` takes it one idempotent step further, from ``proposing`` to ``decided`` and settled.

Each step is one transaction in the store, written before any side effect that could not be repeated. The serial loop
and recovery both call it; whatever phase an experiment is found in after a crash, ``advance`` goes on from there.
"""

from __future__ import annotations

from dataclasses import replace

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.proposal import Cost, Proposal
from autoresearchd.errors import BaselineError, EnvironmentFailure, Interrupted, PolicyError
from autoresearchd.evaluator.decide import decide, decide_baseline, decide_failed_proposal
from autoresearchd.evaluator.legality import check_edit, code_hash
from autoresearchd.evaluator.measure import measure
from autoresearchd.loop import words
from autoresearchd.loop.artifacts import discard_outputs, read_logs, read_result_file
from autoresearchd.loop.laboratory import Laboratory
from autoresearchd.loop.standing import Standing
from autoresearchd.ports import RunHandle, RunRequest

BASELINE = "baseline"
SLOT = 0


class Cycle:
    """The way of one experiment (the picture in the design). Owned by one thread."""

    def __init__(self, lab: Laboratory, standing: Standing) -> None:
        self._lab = lab
        self._standing = standing
        self._handle: RunHandle | None = None
        self._began = lab.clock.monotonic()
        self._spent_elsewhere = 0.0
        self._hash: tuple[int, str] | None = None

    # ------------------------------------------------------------------ the way of one experiment
    def open(self) -> Experiment:
        """A new experiment on the incumbent: its number is allocated and written down first."""
        self._began, self._spent_elsewhere = self._lab.clock.monotonic(), 0.0
        standing = self._standing
        experiment = self._lab.store.open_experiment(
            self._lab.session_id, parent=standing.parent, segment=standing.segment, at=self._lab.clock.now()
        )
        self._lab.emit(EventKind.OPENED, words.opened(experiment), experiment=experiment.number, parent=standing.parent)
        return experiment

    def advance(self, experiment: Experiment, patience: float = 1.0) -> Experiment:
        """One step; the experiment as it is afterwards. A running job is waited for at most ``patience`` seconds."""
        match experiment.phase:
            case Phase.PROPOSING:
                return self._propose(experiment)
            case Phase.PROPOSED:
                return self._commit(experiment)
            case Phase.COMMITTED:
                return self._launch(experiment)
            case Phase.RUNNING:
                return self._watch(experiment, patience)
            case Phase.MEASURED:
                return self._decide(experiment)
            case Phase.DECIDED:
                return self._settle(experiment)

    def _propose(self, e: Experiment) -> Experiment:
        if self._standing.needs_baseline:
            return self._record(e, Proposal({}, "The program as it is.", BASELINE, description=BASELINE))
        state = self._standing.state(e)
        started = self._lab.clock.monotonic()
        try:
            proposal = self._lab.policy.propose(state, self._lab.stop.now)
            self._spent_elsewhere += self._lab.clock.monotonic() - started
            check_edit(self._lab.task, state.code, {**state.code, **proposal.files})
        except PolicyError as error:
            seconds = self._lab.clock.monotonic() - started
            self._spent_elsewhere = max(self._spent_elsewhere, seconds)
            failed = Proposal({}, "", self._lab.policy.name, role=state.role, cost=Cost(seconds=seconds))
            e = self._lab.store.record_proposal(
                self._lab.session_id, e.number, failed, diff="", code_hash=f"{e.segment}:none:{e.number}"
            )
            return self._finish(e, decide_failed_proposal(error.label, str(error)))
        return self._record(e, proposal)

    def _commit(self, e: Experiment) -> Experiment:
        proposal = words.proposal_of(e)
        twin = self._twin(e)
        if twin is not None:
            reason = f"The same program as experiment {twin}; no run was spent on it."
            return self._finish(e, Decision(Status.DISCARD, Label.DUPLICATE, reason=reason))
        commit = e.parent
        if proposal.policy != BASELINE:
            commit = self._write_commit(e, words.commit_message(e, self._lab.task))
        e = self._lab.store.record_commit(self._lab.session_id, e.number, commit)
        self._lab.emit(EventKind.COMMITTED, f"committed {commit[:7]}", experiment=e.number, commit=commit)
        return e

    def _launch(self, e: Experiment) -> Experiment:
        lab = self._lab
        index = len(e.runs)
        workspace = lab.workspace.checkout(SLOT, words.commit_of(e))
        seed = lab.random_seed(e.number, "run", len(e.counted_runs))
        run = lab.store.open_run(lab.session_id, e.number, seed, lab.clock.now())
        self._handle = lab.executor.start(
            RunRequest(
                key=f"{lab.tag}/{e.number}/{index}",
                task=lab.task,
                commit=words.commit_of(e),
                seed=seed,
                workspace=workspace,
                pristine=lab.site.pristine,
                setup=lab.site.setup,
                run_dir=lab.site.run_dir(e.number, index),
                source=lab.site.source,
                slot=SLOT,
            )
        )
        planned, budget = self._planned_runs(e), lab.task.execution.budget
        lab.emit(
            EventKind.RUN_STARTED,
            f"training, run {len(e.counted_runs) + 1} of {planned}, seed {seed}",
            experiment=e.number,
            run=index,
            runs=planned,
            seed=seed,
            budget_s=budget.training,
            wall_s=budget.wall,
        )
        return replace(e, phase=Phase.RUNNING, runs=(*e.runs, run))

    def _watch(self, e: Experiment, patience: float) -> Experiment:
        run = e.runs[-1]
        if self._handle is None:  # found after a crash: recovery has killed or adopted what was left of it
            return self._close(e, run, Measurement(Label.INTERRUPTED, detail="the daemon died during this run"), None)
        if self._lab.stop.now.is_set():
            self._handle.kill()
        result = self._handle.wait(patience)
        if result is None:
            return e
        e = self.conclude(e, run, result)
        self._handle = None  # not before: should the store have failed, the result is read again
        return e

    def _decide(self, e: Experiment) -> Experiment:
        if words.proposal_of(e).policy == BASELINE:
            log = self._lab.site.run_dir(e.number, len(e.runs) - 1) / "training.log"
            try:
                decision = decide_baseline(self._lab.task, e, log=str(log))
            except BaselineError as error:
                if self._standing.totals.experiments:  # of a later segment: `resume` measures it again
                    self._finish(e, Decision(Status.CRASH, Label.ERROR, reason=error.what))
                raise
        else:
            standing = self._standing
            decision = decide(
                self._lab.task, e, standing.incumbent, sigma=standing.sigma, values=standing.values_with(e)
            )
        return self._finish(e, decision)

    def _settle(self, e: Experiment) -> Experiment:
        """The branch as the decision wants it. The decision is on disk already; all of this may be repeated.

        The worktree of a discard is not touched: the next ``checkout`` makes it hold exactly the commit asked for.
        """
        lab, decision = self._lab, words.decision_of(e)
        if decision.status is Status.KEEP:
            lab.workspace.advance(e.parent, words.commit_of(e))
        elif e.commit is not None and lab.task.history == "revert":
            lab.workspace.record_discard(
                number=e.number, commit=e.commit, incumbent=e.parent, when=e.finished_at or e.started_at
            )
        discard_outputs(lab.site.runs / str(e.number), keep=decision.status is Status.KEEP)
        overhead = 1000.0 * max(0.0, lab.clock.monotonic() - self._began - self._spent_elsewhere)
        lab.store.record_overhead(lab.session_id, e.number, overhead)
        return replace(e, overhead_ms=overhead)

    # ------------------------------------------------------------------ ending it early
    def kill(self) -> None:
        """End the run under way, if any; the experiment stays open."""
        if self._handle is not None:
            self._handle.kill()
            self._handle.wait(None)
            self._handle = None

    def give_up(self, e: Experiment, decision: Decision) -> Experiment:
        """Decide an experiment that the daemon cannot take further, so that the next one can begin."""
        self.kill()
        if e.phase is Phase.RUNNING:
            e = self._close(e, e.runs[-1], Measurement(Label.INTERRUPTED, detail=decision.reason), None)
        return self._finish(e, decision)

    # ------------------------------------------------------------------ parts of steps
    def conclude(self, e: Experiment, run: Run, result: RunResult) -> Experiment:
        """Read what a finished run gave and write it down."""
        # Job time is what the supervisor measured around the job's processes; starting and reaping it all is overhead.
        self._spent_elsewhere += sum(stage.duration_s for stage in result.stages)
        logs = read_logs(result)
        result_file = read_result_file(self._lab.task, self._lab.site.run_dir(e.number, run.index))
        return self._close(e, run, measure(self._lab.task, result, logs, result_file=result_file), result)

    def _close(self, e: Experiment, run: Run, measurement: Measurement, result: RunResult | None) -> Experiment:
        lab = self._lab
        counts = RULES[measurement.label].status is not None
        enough = len(e.counted_runs) + 1 >= self._planned_runs(e)
        last = counts and (enough or measurement.label is not Label.NONE)
        e = lab.store.close_run(run.id, measurement, result, lab.clock.now(), last=last)
        lab.emit(
            EventKind.RUN_FINISHED,
            words.run_finished(lab.task, measurement),
            experiment=e.number,
            label=measurement.label.value,
            value=measurement.value,
            metrics=dict(measurement.metrics),
            duration_s=result.duration_s if result else None,
        )
        if measurement.label is Label.INTERRUPTED and lab.stop.now.is_set():
            raise Interrupted(f"experiment {e.number} was interrupted; `autoresearchd resume` runs it again")
        if measurement.label in (Label.DISK_FULL, Label.HOST_LOST):
            raise EnvironmentFailure(
                f"{measurement.label.value}: {measurement.detail}", mend=words.mend(measurement.label)
            )
        return e

    def _record(self, e: Experiment, proposal: Proposal) -> Experiment:
        before = self._standing.code(e.parent)
        diff = words.unified_diff(before, {**before, **proposal.files})
        e = self._lab.store.record_proposal(
            self._lab.session_id, e.number, proposal, diff=diff, code_hash=self._code_hash(e, proposal)
        )
        self._standing.notes_shown(e)
        self._lab.emit(
            EventKind.PROPOSED,
            proposal.description or proposal.hypothesis,
            experiment=e.number,
            description=proposal.description,
            hypothesis=proposal.hypothesis,
            seconds=self._spent_elsewhere,
        )
        return e

    def _twin(self, e: Experiment) -> int | None:
        """An earlier experiment of this segment with the same program; the baseline has none."""
        proposal = words.proposal_of(e)
        if proposal.policy == BASELINE:
            return None
        twin = self._lab.store.find_duplicate(self._lab.session_id, self._code_hash(e, proposal))
        return twin if twin is not None and twin != e.number else None

    def _code_hash(self, e: Experiment, proposal: Proposal) -> str:
        """Hash of the editable files after the edit, with the segment.

        The same program may be measured again in another.
        """
        if self._hash is None or self._hash[0] != e.number:
            text = {**self._standing.code(e.parent), **proposal.files}
            self._hash = (e.number, f"{e.segment}:{code_hash(text)}")
        return self._hash[1]

    def _write_commit(self, e: Experiment, message: str) -> str:
        return self._lab.workspace.commit(
            number=e.number, parent=e.parent, files=words.proposal_of(e).files, message=message, when=e.started_at
        )

    def _finish(self, e: Experiment, decision: Decision) -> Experiment:
        """Write the decision down.

        A keep gets its final commit first: the tested tree, with the result in its message.
        """
        lab = self._lab
        incumbent = None
        if decision.status is Status.KEEP:
            incumbent = words.commit_of(e)
            if words.proposal_of(e).policy != BASELINE:
                incumbent = self._write_commit(e, words.commit_message(e, lab.task, decision))
        asi = words.asi_of(e, decision, lab.task)
        e = lab.store.record_decision(lab.session_id, e.number, decision, asi, lab.clock.now(), incumbent=incumbent)
        self._standing.decided(e)
        lab.emit(
            EventKind.DECIDED,
            words.decided(e, decision, lab.task),
            experiment=e.number,
            status=decision.status.value,
            label=decision.label.value,
            value=decision.value,
            delta=decision.delta,
            reason=decision.reason,
            description=e.proposal.description if e.proposal else "",
            max_experiments=lab.max_experiments,
            **self._standing.figures(),
        )
        return e

    def _planned_runs(self, e: Experiment) -> int:
        return self._lab.baseline_runs if words.proposal_of(e).policy == BASELINE else 1

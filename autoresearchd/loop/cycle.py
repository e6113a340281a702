"""One experiment: ``advance`` takes it one idempotent step further, from ``proposing`` to ``decided`` and settled.

Each step is one transaction in the store, written before any side effect that could not be repeated. The serial loop
and recovery both call it; whatever phase an experiment is found in after a crash, ``advance`` goes on from there.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.errors import BaselineError, EnvironmentFailure, Interrupted, PolicyError
from autoresearchd.evaluator.abort_look import Look
from autoresearchd.evaluator.decide import NextRun, decide, decide_baseline, decide_failed_proposal, decide_fallen
from autoresearchd.evaluator.keep import KeepRule
from autoresearchd.evaluator.measure import measure
from autoresearchd.evaluator.simplicity import is_simpler
from autoresearchd.loop import words
from autoresearchd.loop.aborts import EarlyAbort, aborted
from autoresearchd.loop.allowance import Allowance
from autoresearchd.loop.artifacts import clean_logs, discard_outputs, read_logs, read_result_file
from autoresearchd.loop.context import Context
from autoresearchd.loop.hints import mend_job
from autoresearchd.loop.housekeeping import LOW_DISK_BYTES
from autoresearchd.loop.proposing import Proposals
from autoresearchd.loop.quiet import Quiet
from autoresearchd.loop.rewards import Rewards
from autoresearchd.loop.seals import Watch
from autoresearchd.loop.seeding import Seeding
from autoresearchd.loop.standing import BASELINE, Standing, is_baseline
from autoresearchd.loop.starving import Starving
from autoresearchd.ports import RunHandle, RunRequest
from autoresearchd.sandbox.trees import remove_tree

SLOT = 0
PULLED_AWAY = 3
"""How often a run is begun again because its worktree was deleted."""
FILLED = 3
"""How often a program may fill a disk that has room without it."""


class Cycle:
    """The way of one experiment (the picture in the design). Owned by one thread."""

    def __init__(self, context: Context, standing: Standing) -> None:
        self._context = context
        self._standing = standing
        self._handle: RunHandle | None = None
        self._opened: int | None = None
        self._began = context.clock.monotonic()
        self._spent_elsewhere = 0.0
        self._simpler: tuple[tuple[object, ...], bool] | None = None
        self._judged: tuple[tuple[object, ...], Decision | NextRun] | None = None
        self._proposals = Proposals(context, standing)
        self._rewards = Rewards(context)
        self._aborts = EarlyAbort(context, standing)
        self._ended_by: Look | None = None
        self._starving = Starving(context)
        self._allowance = Allowance(context, standing)
        self._quiet = Quiet(standing)
        self._seeding = Seeding(context, standing)
        self._watched = Watch(context.task, context.site.pristine, context.restore)
        self._worktree: Path | None = None

    # ------------------------------------------------------------------ the way of one experiment
    def open(self) -> Experiment:
        """A new experiment on the incumbent: its number is allocated and written down first."""
        self._began, self._spent_elsewhere = self._context.clock.monotonic(), 0.0
        self._proposals.seconds = 0.0
        standing, parent = self._standing, self._standing.next_parent()
        experiment = self._context.store.open_experiment(
            self._context.session_id, parent=parent, segment=standing.segment, at=self._context.clock.now()
        )
        self._context.emit(EventKind.OPENED, words.opened(experiment), experiment=experiment.number, parent=parent)
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
            return self._proposals.record(e, Proposal({}, "The program as it is.", BASELINE, description=BASELINE))
        try:
            proposal = self._proposals.ask(e)
        except PolicyError as error:
            e = self._proposals.refuse(e, error)
            return self._finish(e, decide_failed_proposal(error.label, str(error)))
        return self._proposals.record(e, proposal)

    def _commit(self, e: Experiment) -> Experiment:
        refusal = self._proposals.refusal(e)
        if refusal is not None:
            return self._finish(e, refusal)
        twin = self._proposals.twin(e)
        if twin is not None:
            reason = f"The same program as experiment {twin}; no run was spent on it."
            return self._finish(e, Decision(Status.DISCARD, Label.DUPLICATE, reason=reason))
        commit = self._proposals.commit(e)
        e = self._context.store.record_commit(self._context.session_id, e.number, commit)
        self._context.emit(EventKind.COMMITTED, f"committed {commit[:7]}", experiment=e.number, commit=commit)
        return e

    def _launch(self, e: Experiment) -> Experiment:
        context = self._context
        asked = self._judge(e) if self._is_again(e) else NextRun(None, None, "")
        if isinstance(asked, Decision):
            return self._finish(e, asked)
        index = len(e.runs)
        commit = words.commit_of(e) if asked.of is None else self._standing.commit_of(asked.of)
        workspace = context.workspace.checkout(SLOT, commit)
        # What lies there is of a journal that was set back (a power cut, a backup), and not of this run.
        remove_tree(str(context.site.run_dir(e.number, index)))
        self._worktree = workspace
        fresh = len({run.seed for run in e.counted_runs})
        seed = context.random_seed(e.number, "run", fresh) if asked.seed is None else asked.seed
        run = context.store.open_run(context.session_id, e.number, seed, context.clock.now(), of=asked.of)
        self._opened = run.id
        self._watched.begin(workspace)
        task = self._allowance.task()
        self._handle = context.executor.start(
            RunRequest(
                key=f"{context.tag}/{e.number}/{index}",
                task=task,
                commit=commit,
                seed=seed,
                workspace=workspace,
                pristine=context.site.pristine,
                setup=context.site.setup,
                run_dir=context.site.run_dir(e.number, index),
                source=context.site.source,
                slot=SLOT,
            )
        )
        self._aborts.begin(e, run, context.site.run_dir(e.number, index))
        planned, budget = self._planned_runs(e), task.execution.budget
        context.emit(
            EventKind.RUN_STARTED,
            words.run_started(e, self._standing.named(asked.of), planned, seed),
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
            why = "it could not be started" if run.id == self._opened else "the daemon died during this run"
            return self._close(e, run, Measurement(Label.INTERRUPTED, detail=why), None)
        if self._context.stop.now.is_set():
            self._handle.kill()
        result = self._handle.wait(self._aborts.patience(patience))
        if result is None:
            self._ended_by = None if self._context.stop.now.is_set() else self._aborts.look()
            if self._ended_by is None:
                return e
            self._handle.kill()
            result = self._handle.wait(None)
            assert result is not None
        e = self.conclude(e, run, result)
        self._handle = self._ended_by = None  # not before: should the store have failed, the result is read again
        return e

    def _decide(self, e: Experiment) -> Experiment:
        if is_baseline(e):
            log = self._context.site.run_dir(e.number, len(e.runs) - 1) / "training.log"
            try:
                decision = decide_baseline(self._context.task, e, log=str(log))
            except BaselineError as error:
                why = e.runs[-1].detail if e.runs else ""
                error.mend = mend_job(why, self._context.site.source, self._context.site.pristine) or error.mend
                if self._standing.totals.experiments:  # of a later segment: `resume` measures it again
                    self._finish(e, Decision(Status.CRASH, Label.ERROR, reason=error.what))
                raise
        else:
            # No run can follow any more: should the rule of a newer version ask for one, none is left to it.
            found = self._judge(e)
            found = found if isinstance(found, Decision) else self._judge(e, KeepRule(most=0))
            assert isinstance(found, Decision)
            mended = self._proposals.mend(e, found)
            if isinstance(mended, Experiment):
                return mended
            decision = mended
        return self._finish(e, decision)

    def _judge(self, e: Experiment, rule: KeepRule | None = None) -> Decision | NextRun:
        """The decision, or the run that it still needs; the same after a restart, and not worked out twice."""
        key = (
            e.number,
            words.proposal_of(e).attempt,
            *((run.seed, run.of, run.label, run.value) for run in e.counted_runs),
        )
        if rule is None and self._judged is not None and self._judged[0] == key:
            return self._judged[1]
        standing, before = self._standing, self._standing.code(self._standing.compared(e))
        after = {**self._standing.code(e.parent), **words.proposal_of(e).files}
        rival = standing.rival(e)
        against = (*key[:2], rival.number)
        if self._simpler is None or self._simpler[0] != against:
            self._simpler = (against, is_simpler(after, before))
        found = decide(
            self._context.task,
            e,
            rival,
            standing.ledger,
            rule=rule,
            simpler=self._simpler[1],
            identical=after == before,
            values=standing.values_with(e),
            baseline=standing.baseline_runs,
            doubted=standing.doubts(e),
            seeded=not self._seeding.ignored(),
        )
        self._judged = (key, found)
        return found

    def _is_again(self, e: Experiment) -> bool:
        """Whether an experiment has been measured, and is to be measured once more before it is decided."""
        return bool(e.counted_runs) and not is_baseline(e)

    def _settle(self, e: Experiment) -> Experiment:
        """The branch as the decision wants it. The decision is on disk already; all of this may be repeated.

        The worktree of a discard is not touched: the next ``checkout`` makes it hold exactly the commit asked for.
        """
        context, decision, fallen = self._context, words.decision_of(e), self._standing.fallen(e)
        # The branch may still be at what lost its place; where reverts are written on it, it goes on from there.
        left = words.commit_of(fallen[0]) if fallen and context.task.history != "revert" else None
        if decision.status is Status.KEEP:
            commit = words.commit_of(e)
            before = e.parent if is_baseline(e) else context.workspace.parent(commit)
            context.workspace.advance(before if left is None else left, commit)
        elif e.commit is not None and context.task.history == "revert":
            context.workspace.record_discard(
                number=e.number,
                commit=e.commit,
                incumbent=e.parent,
                when=e.finished_at or e.started_at,
                back_to=self._standing.left if fallen else None,
            )
        elif left is not None:
            context.workspace.advance(left, self._standing.left)
        kept = e.good_runs[0].index if decision.status is Status.KEEP and e.good_runs else None
        discard_outputs(context.site.runs / str(e.number), keep=kept)
        self._standing.write_learnings(e)
        elsewhere = self._spent_elsewhere + self._proposals.seconds
        overhead = 1000.0 * max(0.0, context.clock.monotonic() - self._began - elsewhere)
        context.store.record_overhead(context.session_id, e.number, overhead)
        return replace(e, overhead_ms=overhead)

    def rest(self) -> None:
        """No experiment is open, and none will be for a while."""
        self._aborts.catch_up()

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
        clean_logs(self._context.site.run_dir(e.number, run.index), self._context.redactor)
        logs = read_logs(result)
        result_file = read_result_file(self._context.task, self._context.site.run_dir(e.number, run.index))
        measurement = measure(self._allowance.task(), result, logs, result_file=result_file)
        if self._ended_by is not None and measurement.label is Label.INTERRUPTED:  # else it ended by itself just then
            measurement = aborted(measurement, self._ended_by)
        self._aborts.end()
        measurement = self._standing.pacing.held(run, result, self._watched.end(measurement))
        measurement = self._starving.spared(e, result, measurement)
        self._aborts.measured(run, measurement)
        if self._pulled_away(e, measurement):
            measurement = Measurement(Label.HOST_LOST, detail="its worktree was deleted while it ran")
        if measurement.label is Label.DISK_FULL:
            measurement = self._make_room(e, run, measurement)
        return self._close(e, run, measurement, self._watched.named(result))

    def _make_room(self, e: Experiment, run: Run, measurement: Measurement) -> Measurement:
        """Remove what is of no more use; a program that fills by itself whatever room there is, is to blame for it."""
        run_dir = self._context.site.run_dir(e.number, run.index)
        remove_tree(str(run_dir / "output"))
        times = 1 + sum(r.label is Label.DISK_FULL for r in e.runs)
        if times < FILLED or shutil.disk_usage(run_dir).free < LOW_DISK_BYTES:
            return measurement
        detail = f"it filled the disk {times} times, which has room without it: {measurement.detail}"
        return Measurement(Label.ERROR, detail=detail)

    def _pulled_away(self, e: Experiment, measurement: Measurement) -> bool:
        """Whether a run failed for want of its own program, which is not its fault; not believed for ever."""
        gone = self._worktree is not None and not self._worktree.is_dir()
        before = sum(run.label is Label.HOST_LOST for run in e.runs)
        return gone and measurement.label is not Label.NONE and before < PULLED_AWAY

    def _close(self, e: Experiment, run: Run, measurement: Measurement, result: RunResult | None) -> Experiment:
        context = self._context
        if result is None:
            clean_logs(context.site.run_dir(e.number, run.index), context.redactor)
        counts = RULES[measurement.label].status is not None
        last = counts and not self._asks_for_more(e, run, measurement)
        e = context.store.close_run(run.id, measurement, result, context.clock.now(), last=last)
        fell = self._standing.follow(e) if e.fallen else ""
        context.emit(
            EventKind.RUN_FINISHED,
            words.run_finished(context.task, measurement),
            experiment=e.number,
            label=measurement.label.value,
            value=measurement.value,
            metrics=dict(measurement.metrics),
            duration_s=result.duration_s if result else None,
        )
        if fell:
            context.emit(EventKind.WARNING, fell, experiment=e.number)
        if measurement.label is Label.INTERRUPTED and context.stop.now.is_set():
            raise Interrupted(
                f"experiment {e.number} was interrupted; `autoresearchd resume {context.tag}` runs it again"
            )
        if measurement.label in (Label.DISK_FULL, Label.HOST_LOST):
            raise EnvironmentFailure(
                f"{measurement.label.value}: {measurement.detail}", mend=words.mend(measurement.label)
            )
        return e

    def _asks_for_more(self, e: Experiment, run: Run, measurement: Measurement) -> bool:
        """Whether another run follows one that counts."""
        if is_baseline(e):
            return measurement.label is Label.NONE and len(e.counted_runs) + 1 < self._context.baseline_runs
        m, at = measurement, self._context.clock.now()
        ended = replace(run, finished_at=at, label=m.label, value=m.value, metrics=m.metrics, detail=m.detail)
        return isinstance(self._judge(replace(e, runs=(*e.runs[:-1], ended))), NextRun)

    def _finish(self, e: Experiment, decision: Decision) -> Experiment:
        """Write the decision down.

        A keep gets its final commit first: the tested tree, with the result in its message.
        """
        context = self._context
        incumbent = None
        fallen = self._standing.fallen(e)
        if fallen:
            decision = replace(decision, reason=words.with_fallen(decision.reason, [k.number for k in fallen]))
        decision = self._rewards.give(e, decision, self._standing, self._proposals.diff(e))
        if decision.status is Status.KEEP:
            incumbent = self._proposals.commit_kept(e, decision)
        asi = words.asi_of(e, decision, context.task)
        lost = {k.number: self._rewards.of_fallen(decide_fallen(context.task, k, e)) for k in fallen}
        e = context.store.record_decision(
            context.session_id, e.number, decision, asi, context.clock.now(), incumbent=incumbent, fallen=lost
        )
        self._standing.decided(e)
        self._aborts.decided(e)
        context.emit(
            EventKind.DECIDED,
            words.decided(e, decision, context.task),
            experiment=e.number,
            status=decision.status.value,
            label=decision.label.value,
            value=decision.value,
            delta=decision.delta,
            reason=decision.reason,
            description=e.proposal.description if e.proposal else "",
            max_experiments=context.max_experiments,
            fallen=list(lost),
            **self._standing.figures(),
        )
        told = (self._allowance.words(), self._seeding.words()) if is_baseline(e) else (self._quiet.words(e),)
        for said in filter(None, told):
            context.emit(EventKind.WARNING, said, experiment=e.number)
        return e

    def _planned_runs(self, e: Experiment) -> int:
        return self._context.baseline_runs if is_baseline(e) else len(e.counted_runs) + 1

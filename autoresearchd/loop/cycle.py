"""One experiment: ``advance`` takes it one idempotent step further, from ``proposing`` to ``decided`` and settled.

Each step is one transaction in the store, written before any side effect that could not be repeated. Whatever phase an
experiment is found in after a crash, ``advance`` goes on from there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from autoresearchd.domain.errors import BaselineError, EnvironmentFailure, Interrupted, PolicyError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.ports import EventKind, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.evaluator.keep.decide import decide_failed_proposal
from autoresearchd.loop import messages
from autoresearchd.loop.confirming import Confirming
from autoresearchd.loop.deciding import Rewards, check_run, decide_experiment, move_tip, needs_run
from autoresearchd.loop.early_abort import EarlyAbort
from autoresearchd.loop.measuring.advice import Advice
from autoresearchd.loop.measuring.run_files import ProtectedFiles, clean_logs, discard_outputs
from autoresearchd.loop.proposing.build_state import Research, Turns
from autoresearchd.loop.proposing.proposals import Proposals
from autoresearchd.loop.run import Slot, launch, measure_run
from autoresearchd.loop.session_view import SessionView
from autoresearchd.sandbox.job_files import remove_tree


class Cycle:
    """Keeps nothing between calls: what it needs is in the experiment, the session's view and the slot."""

    def __init__(self, view: SessionView) -> None:
        self._view, self._context, self._turns = view, view.context, Turns(view)
        self._research = Research(view, self._turns)
        self._proposals = Proposals(view, self._research, self._turns)
        self._rewards, self._aborts, self._advice = Rewards(view, self._turns), EarlyAbort(view), Advice(view)
        self._protected = ProtectedFiles(self._context.task, self._context.site.pristine, self._context.restore)
        self.confirming = Confirming(view, self._protected)

    def open(self, slot: Slot) -> Experiment:
        """A new experiment: its number is allocated and written down first."""
        context = self._context
        waits = context.store.waiting_suggestions(context.session_id)  # a proposal from outside is made on the tip
        parent = self._view.parent if waits else self._turns.next_parent()
        slot.began, slot.policy_s, slot.jobs_s = context.clock.monotonic(), 0.0, 0.0
        now, segment = context.clock.now(), self._view.segment
        e = context.store.open_experiment(context.session_id, parent=parent, segment=segment, at=now)
        context.emit(EventKind.OPENED, f"on {parent[:7]}", experiment=e.number)
        return e

    def advance(self, e: Experiment, slot: Slot, patience: float = 1.0, *, first: bool = True) -> Experiment:
        """One step; the experiment as it is afterwards. A running job is waited for at most ``patience`` seconds.

        first: all earlier experiments are decided; else this one is not yet, and waits.
        """
        if first and slot.given_up is not None and e.decision is None:
            return self.give_up(e, slot, slot.given_up)
        if not first and slot.given_up is not None:
            slot.kill()
        slot.waits = not first and (slot.waits or slot.given_up is not None or e.phase is Phase.MEASURED)
        if slot.waits:
            return e
        match e.phase:
            case Phase.PROPOSING:
                return self._propose(e, slot, first)
            case Phase.PROPOSED:
                return self._commit(e, slot, first)
            case Phase.COMMITTED:
                return self._launch(e, slot, first)
            case Phase.RUNNING:
                return self._watch(e, slot, patience)
            case Phase.MEASURED:
                return self._decide(e, slot)
            case Phase.DECIDED:
                return self._settle(e, slot)

    def _propose(self, e: Experiment, slot: Slot, first: bool) -> Experiment:
        if self._view.needs_baseline:
            plain = Proposal({}, "The program as it is.", messages.BASELINE, description=messages.BASELINE)
            return self._proposals.record(e, plain)
        if slot.asked is None and (taken := self._proposals.take(e)):
            return taken
        try:
            rebased = None if slot.asked else self._proposals.rebase(e)
            proposal = rebased or self._proposals.ask(e, slot)
        except PolicyError as error:
            e = self._proposals.record_failure(e, slot, error)
            return self._finish(e, decide_failed_proposal(error.label, str(error))) if first else e
        return e if proposal is None else self._proposals.record(e, proposal)

    def _commit(self, e: Experiment, slot: Slot, first: bool) -> Experiment:
        rejection = self._proposals.rejection(e)
        if rejection is not None:
            slot.waits = not first
            return self._finish(*rejection) if first else e
        commit = self._proposals.commit(e)
        e = self._context.store.record_commit(self._context.session_id, e.number, commit)
        self._context.emit(EventKind.COMMITTED, f"committed {commit[:7]}", experiment=e.number)
        return e

    def _launch(self, e: Experiment, slot: Slot, first: bool) -> Experiment:
        context, view = self._context, self._view
        if not needs_run(view, e):
            slot.waits = not first
            return self._finish(e, decide_experiment(view, e)) if first else e
        seed, commit, place = view.seed(e), messages.commit_of(e), slot.number or 0
        context.executor.require(place)
        request = context.request(e.number, len(e.runs), task=view.run_task, commit=commit, seed=seed, slot=place)
        # What lies there is of a journal that was set back (a power cut, a backup), and not of this run.
        remove_tree(str(request.run_dir))
        run = context.store.open_run(context.session_id, e.number, request.seed, context.clock.now())
        slot.running = launch(context.executor, self._protected, request)
        if messages.is_baseline(e):
            self._keep_company(request, slot)
        slot.watched = self._aborts.watch(e, run, request.run_dir)
        words = messages.run_started(e, run, context.baseline_runs)
        context.emit(EventKind.RUN_STARTED, words, experiment=e.number)
        return replace(e, phase=Phase.RUNNING, runs=(*e.runs, run))

    def _keep_company(self, request: RunRequest, slot: Slot) -> None:
        """Have the baseline run in all places, so that it is measured as busy as they will be; one of them counts.

        A host that cannot take part, as it is lost or full, does not hold the measurement up.
        """
        context = self._context
        for place in range(context.slots):
            if place == request.slot or not context.executor.ready(place):
                continue
            with suppress(EnvironmentFailure):
                workspace = context.workspace.checkout(place, request.commit)
                run_dir = request.run_dir.with_name(f"{request.run_dir.name}-beside-{place}")
                remove_tree(str(run_dir))
                other = replace(request, key=f"{request.key}-{place}", workspace=workspace, run_dir=run_dir, slot=place)
                slot.beside.append(launch(context.executor, self._protected, other))

    def _watch(self, e: Experiment, slot: Slot, patience: float) -> Experiment:
        run, running, stop = e.runs[-1], slot.running, self._context.stop.now
        if running is None:  # found after a crash: recovery has killed or adopted what was left of it
            why = "it was not started, or the daemon died during it"
            return self._close(e, slot, run, Measurement(Label.INTERRUPTED, detail=why), None)
        if stop.is_set():
            running.handle.kill()
        result = running.handle.wait(self._aborts.patience(slot.watched, patience))
        if result is None:
            ahead = e.number - 1 - self._view.last
            slot.ended_by = None if stop.is_set() else self._aborts.look(slot.watched, ahead)
            if slot.ended_by is None:
                return e
            result = running.kill()
        return self.conclude(e, slot, run, result)

    def _decide(self, e: Experiment, slot: Slot) -> Experiment:
        try:
            decision = decide_experiment(self._view, e)
        except BaselineError as error:
            if self._view.totals.experiments:  # of a later segment: `resume` measures it again
                self._finish(e, Decision(Status.CRASH, Label.ERROR, reason=error.what))
            raise
        repaired = decision if messages.is_baseline(e) or slot.stands else self._proposals.repair(e, slot, decision)
        return repaired if isinstance(repaired, Experiment) else self._finish(e, repaired)

    def _settle(self, e: Experiment, slot: Slot) -> Experiment:
        """The branch as the decision, which is on disk, wants it; may be repeated. Worktrees: see ``checkout``."""
        context = self._context
        move_tip(self._view, e)
        kept = e.good_runs[0].index if messages.is_keep(e) and e.good_runs else None
        discard_outputs(context.site.runs / str(e.number), keep=kept)
        self._research.write_learnings(e)
        overhead = 1000.0 * max(0.0, context.clock.monotonic() - slot.began - slot.policy_s - slot.jobs_s)
        context.store.record_overhead(context.session_id, e.number, overhead)
        return replace(e, overhead_ms=overhead)

    def write_learnings(self) -> None:
        """After a verdict: what was only believed is proven now, or refuted."""
        self._research.write_learnings(self._view.tip)

    def rest(self) -> None:
        """No experiment is open, and none will be for a while."""
        self._aborts.catch_up()

    def give_up(self, e: Experiment, slot: Slot, decision: Decision) -> Experiment:
        """Decide an experiment that the daemon cannot take further, so that the next one can begin."""
        slot.kill()
        slot.given_up = None
        if e.phase is Phase.RUNNING:
            e = self._close(e, slot, e.runs[-1], Measurement(Label.INTERRUPTED, detail=decision.reason), None)
        return self._finish(e, decision)

    def conclude(self, e: Experiment, slot: Slot, run: Run, result: RunResult) -> Experiment:
        """Read what a finished run gave and write it down."""
        # Job time is what the supervisor measured around the job's processes; starting and reaping it all is overhead.
        slot.jobs_s += sum(stage.duration_s for stage in result.stages)
        context, run_dir = self._context, self._context.site.run_dir(e.number, run.index)
        seals = slot.running.seals if slot.running else None
        measured = measure_run(self._view.run_task, result, run_dir, seals, context.redactor)
        self._aborts.end(slot.watched)
        measured = check_run(self._view, slot, e, run, result, measured)
        return self._close(e, slot, run, measured, self._protected.with_version(result))

    def _close(self, e: Experiment, slot: Slot, run: Run, m: Measurement, result: RunResult | None) -> Experiment:
        context, now = self._context, slot.ended(run, result, self._context.clock.now())
        if result is None:
            clean_logs(context.site.run_dir(e.number, run.index), context.redactor)
        ended = replace(run, finished_at=now, label=m.label, value=m.value, metrics=m.metrics, detail=m.detail)
        counts = RULES[m.label] is not None
        last = counts and not needs_run(self._view, replace(e, runs=(*e.runs[:-1], ended)))
        e = context.store.close_run(run.id, m, result, now, last=last)
        slot.clear()  # not before: should the store have failed, the result is read again
        context.emit(EventKind.RUN_FINISHED, messages.run_finished(m, context.task), experiment=e.number)
        if m.label is Label.INTERRUPTED and context.stop.now.is_set():
            raise Interrupted(messages.interrupted(context.tag, f"experiment {e.number}"))
        # A host that is lost is no reason to wait where there are others: the executor knows it.
        if m.label is Label.DISK_FULL or (m.label is Label.HOST_LOST and context.slots == 1):
            raise EnvironmentFailure(f"{m.label.value}: {m.detail}", hint=messages.HINTS[m.label])
        return e

    def _finish(self, e: Experiment, decision: Decision) -> Experiment:
        """Write the decision down. A keep gets its final commit first: the tested tree, the result in its message."""
        context, view = self._context, self._view
        decision = self._rewards.with_reward(e, decision)
        tip = self._proposals.commit_kept(e, decision) if decision.status is Status.KEEP else None
        asi = messages.asi_of(e, decision, context.task)
        e = context.store.record_decision(
            context.session_id, e.number, decision, asi, context.clock.now(),
            incumbent=tip, confirmed=tip is not None and messages.is_baseline(e),
        )  # fmt: skip
        view.decided(e)
        view.write_belief()
        self._research.decided(e)
        self._aborts.decided(e)
        words = messages.describe_decision(e, messages.decision_of(e), context.task)
        context.emit(EventKind.DECIDED, words, experiment=e.number, status=decision.status.value)
        for said in self._advice.after(e):
            context.emit(EventKind.WARNING, said, experiment=e.number)
        return e

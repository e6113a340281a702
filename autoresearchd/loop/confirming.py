"""One confirmation: the tip beside the confirmed program on fresh seeds, until a test decides about the chain of keeps.

``advance`` takes it one idempotent step further, as ``cycle`` does an experiment: whatever it is found in after a crash
it goes on from there. The branch moves only here (and for the baseline), by compare-and-swap, after the verdict is on
disk; what fell back is undone by moving the tip.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from autoresearchd.domain.confirmation import ABLATED, Confirmation, Verdict, ablates
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, RepositoryError
from autoresearchd.domain.experiment import FAILURES, Measurement, Run, RunResult
from autoresearchd.domain.labels import Label, Outcome
from autoresearchd.domain.ports import EventKind
from autoresearchd.evaluator.keep.confirm import ABLATED_RULE, RULE, Ask, next_step
from autoresearchd.evaluator.rules import run_time
from autoresearchd.evaluator.rules.program_text import is_simpler
from autoresearchd.loop import messages
from autoresearchd.loop.context import Context
from autoresearchd.loop.deciding import excused, require_branch
from autoresearchd.loop.measuring.run_files import ProtectedFiles, clean_logs, discard_outputs
from autoresearchd.loop.run import Slot, launch, measure_run
from autoresearchd.loop.session_view import SessionView
from autoresearchd.sandbox.job_files import remove_tree

_SEED = "confirm"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user wants confirmed: an experiment (None: the tip), by so many pairs of runs, of so many seconds each.

    Of an ablation (``why``) program is the commit that runs in the tip's place. following: called once it is done; what
    is wanted next.
    """

    experiment: int | None = None
    pairs: int | None = None
    budget: float | None = None
    why: str = messages.ASKED
    program: str | None = None
    following: Callable[[], Asked | None] = field(default=lambda: None, compare=False)

    def is_answered_by(self, c: Confirmation) -> bool:
        """Whether a confirmation, which may have been open before, is what is wanted."""
        wanted = (self.experiment, self.pairs, self.budget)
        same = c.why == self.why if self.program or ablates(c.why) else c.why != messages.DOUBT
        return same and wanted == (c.experiment, c.pairs, c.budget)


class Confirming:
    """Keeps nothing between calls but the view: what it needs is in the confirmation and the slot."""

    def __init__(self, view: SessionView, protected: ProtectedFiles) -> None:
        self._view, self._context, self._protected = view, view.context, protected

    def open(self, why: str, asked: Asked | None = None) -> Confirmation:
        """Begin one, of the tip where nothing else is asked for."""
        view, context, asked = self._view, self._context, asked or Asked()
        tip = view.tip.number if asked.experiment is None else asked.experiment
        other = view.confirmed.number if tip != view.confirmed.number else view.require_baseline().number
        if why == messages.DOUBT:
            other = view.before_tip.number
        if asked.program is not None:
            why, other = asked.why, view.confirmed.number
        c = context.store.open_confirmation(
            context.session_id,
            experiment=tip,
            against=other,
            why=why,
            at=context.clock.now(),
            pairs=1 if why == messages.FAILURES and tip == view.confirmed.number else asked.pairs,
            budget=asked.budget,
        )
        if why != messages.DOUBT:
            context.emit(EventKind.CONFIRMING, messages.confirmation_begun(c), experiment=tip)
        return c

    def advance(
        self, c: Confirmation, slot: Slot, patience: float = 1.0, over: str = "", program: str | None = None
    ) -> Confirmation:
        """One step; the confirmation as it is afterwards, finished once it has a verdict and git follows it.

        over: why no run may go on or begin any more; what is measured by then may still decide. program: see
        ``Asked``; an ablation without it is given up.
        """
        if c.why == messages.DOUBT:
            verdict = self._view.doubt()
            return self.decide(c, verdict) if verdict else self.give_up(c, "What made it doubtful does so no longer.")
        if c.runs and c.runs[-1].open:
            c = self._watch(c, slot, 0.0 if over else patience)
            if not over or not c.runs[-1].open:
                return c
            slot.kill()
            c = self._close(c, c.runs[-1], Measurement(Label.INTERRUPTED, detail=over), None)
        context, view, ablation = self._context, self._view, ablates(c.why)
        if ablation and program is None:
            return self.give_up(c, "It was cut off.")
        tip, other = (messages.commit_of(view.experiment(n)) for n in (c.experiment, c.against))
        tip = program or tip
        usual = ABLATED_RULE if ablation == ABLATED else RULE
        rule = usual if c.pairs is None else replace(RULE, limit=c.pairs, least=c.pairs, doubted=c.pairs)
        level = c.experiment == view.tip.number and c.budget is None and not ablation
        # What an improvement was taken out of has less to be reviewed, whatever its size.
        simpler = bool(ablation) or is_simpler(view.programs.code(tip), view.programs.code(other))
        step = next_step(context.task, c.runs, view.belief, simpler=simpler, level=level, rule=rule)
        if not isinstance(step, Ask):
            return self.decide(c, step)
        return self.give_up(c, over) if over else self._launch(c, slot, step, tip if step.of_tip else other)

    def _launch(self, c: Confirmation, slot: Slot, asked: Ask, commit: str) -> Confirmation:
        context, view = self._context, self._view
        fresh = len({run.seed for run in c.runs if run.counts})
        seed = context.random_seed(c.experiment, f"{_SEED} {c.number}", fresh) if asked.seed is None else asked.seed
        index = 1 + max((run.index for run in view.experiment(c.experiment).runs), default=-1)
        task, place = view.run_task.lasting(c.budget), slot.number or 0
        context.executor.require(place)
        request = context.request(c.experiment, index, task=task, commit=commit, seed=seed, slot=place)
        remove_tree(str(request.run_dir))  # of a journal that was set back, as in ``Cycle``
        of = None if asked.of_tip else c.against
        run = context.store.open_confirmation_run(context.session_id, c.number, seed, context.clock.now(), of=of)
        slot.running = launch(context.executor, self._protected, request)
        context.emit(EventKind.RUN_STARTED, messages.confirmation_run_started(c, run), experiment=c.experiment)
        return replace(c, runs=(*c.runs, run))

    def _watch(self, c: Confirmation, slot: Slot, patience: float) -> Confirmation:
        run, running, stop = c.runs[-1], slot.running, self._context.stop.now
        if running is None:  # found after a crash: recovery has killed or adopted what was left of it
            why = "it was not started, or the daemon died during it"
            return self._close(c, run, Measurement(Label.INTERRUPTED, detail=why), None, slot)
        if stop.is_set():
            running.handle.kill()
        result = running.handle.wait(patience)
        return c if result is None else self.conclude(c, slot, run, result)

    def conclude(self, c: Confirmation, slot: Slot, run: Run, result: RunResult) -> Confirmation:
        """Read what a finished run gave and write it down."""
        context, view = self._context, self._view
        seals = slot.running.seals if slot.running else None
        run_dir = context.site.run_dir(c.experiment, run.index)
        measured = measure_run(view.run_task.lasting(c.budget), result, run_dir, seals, context.redactor)
        if run.of is None and c.budget is None:  # it is held to its time as it was when it was kept
            before = [s for r in c.runs if r.good and r.of is None for s in context.store.stages(r.id)]
            measured = run_time.held(
                context.task, result, measured, view.pace, best=view.best, sigma=view.sigma, before=before
            )
        measured = excused(view, slot, [r for r in c.runs if r.of == run.of], run, measured)
        return self._close(c, run, measured, self._protected.with_version(result), slot)

    def _close(
        self, c: Confirmation, run: Run, m: Measurement, result: RunResult | None, slot: Slot | None = None
    ) -> Confirmation:
        context, run_dir = self._context, self._context.site.run_dir(c.experiment, run.index)
        if result is None:
            clean_logs(run_dir, context.redactor)
        now = context.clock.now() if slot is None else slot.ended(run, result, context.clock.now())
        c = context.store.close_confirmation_run(run.id, m, result, now)
        if slot is not None:  # not before: should the store have failed, the result is read again
            slot.clear()
        own = self._view.experiment(c.experiment).good_runs
        discard_outputs(run_dir.parent, keep=own[0].index if own else None)
        context.emit(EventKind.RUN_FINISHED, messages.run_finished(m, context.task), experiment=c.experiment)
        if m.label is Label.INTERRUPTED and context.stop.now.is_set():
            raise Interrupted(messages.interrupted(context.tag, f"the confirmation of experiment {c.experiment}"))
        if m.label is Label.DISK_FULL or (m.label is Label.HOST_LOST and context.slots == 1):
            raise EnvironmentFailure(f"{m.label.value}: {m.detail}", hint=messages.HINTS[m.label])
        return c

    def decide(self, c: Confirmation, verdict: Verdict) -> Confirmation:
        """Write the verdict down, then carry it out."""
        context = self._context
        verdict = messages.of_ablation(c, verdict) if ablates(c.why) else verdict
        c = context.store.decide_confirmation(context.session_id, c.number, verdict, context.clock.now())
        self._view.settled(c)
        self.carry_out(c)
        return c

    def carry_out(self, c: Confirmation) -> None:
        """Have git follow a verdict that is on disk, and tell it; may be repeated."""
        self.settle(c)
        self._view.write_belief()
        open_still = c.budget is None and any(e.number == c.experiment for e in self._view.open_keeps)
        words = messages.describe_verdict(c, tested=c.moved or open_still)
        better = c.moved and c.verdict is not None and c.verdict.outcome is Outcome.CONFIRMED
        self._context.emit(EventKind.CONFIRMED, words, experiment=c.experiment, better=better)
        failures = [run for run in c.runs if run.counts and not run.good and run.of is None]
        if messages.only_looked_after(c) and len(failures) >= FAILURES:
            self._context.emit(EventKind.WARNING, messages.confirmed_fails(c), experiment=c.experiment)

    def give_up(self, c: Confirmation, reason: str) -> Confirmation:
        """End one that cannot be taken further, without a verdict on the chain."""
        if c.runs and c.runs[-1].open:
            c = self._close(c, c.runs[-1], Measurement(Label.INTERRUPTED, detail=reason), None)
        return self.decide(c, Verdict(Outcome.UNDECIDED, None, None, None, reason))

    def settle(self, c: Confirmation) -> None:
        """The branch and the tip as the journal wants them after a verdict; may be repeated."""
        context, workspace = self._context, self._context.workspace
        if not c.moved:
            return
        session = context.store.session(context.tag)
        confirmed = session.confirmed
        before = confirmed if c.fell else messages.commit_of(self._view.experiment(c.against))
        require_branch(context, {before, confirmed})
        if context.task.history == "revert":
            at, tip = workspace.confirmed(), workspace.tip()
            if workspace.diff(at, confirmed):
                workspace.advance(at, confirmed if workspace.diff(tip, confirmed) else tip)
        else:
            workspace.advance(before, confirmed)
        follow_tip(context)
        for number in range(c.against, c.experiment + 1):  # else checkpoints fill the disk in some weeks
            if number not in (session.confirmed_experiment, session.incumbent_experiment):
                discard_outputs(context.site.runs / str(number), keep=None)


def follow_tip(context: Context) -> None:
    """The tip's ref as the journal has it: it knows of falls that git does not, and of what a power cut took."""
    session, workspace = context.store.session(context.tag), context.workspace
    if context.task.history == "revert":  # there the tip is mostly a revert, which only git knows, with the same files
        with suppress(RepositoryError):  # of one that is lost
            if not workspace.diff(session.incumbent, workspace.tip()):
                return
            if session.incumbent == session.confirmed:
                workspace.fall_back(session.confirmed, number=session.confirmed_experiment, when=context.clock.now())
                return
    workspace.move_tip(session.incumbent)

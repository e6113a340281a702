"""Deciding: what a run counts as, whether another is needed, what comes of an experiment, and where the branch goes.

The same after a restart. The branch is never moved where anybody else has moved it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from autoresearchd.domain.errors import BaselineError, RepositoryError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.evaluator.feedback import novelty, resources_saved, reward
from autoresearchd.evaluator.keep.decide import decide, decide_baseline
from autoresearchd.evaluator.rules import run_time
from autoresearchd.evaluator.rules.program_text import is_larger, is_simpler
from autoresearchd.loop.context import Context
from autoresearchd.loop.early_abort import end_early
from autoresearchd.loop.measuring.advice import hint_job
from autoresearchd.loop.messages import commit_of, is_baseline, is_keep, proposal_of
from autoresearchd.loop.proposing.build_state import Turns
from autoresearchd.loop.run import Slot
from autoresearchd.loop.session_view import RECENT, SessionView
from autoresearchd.loop.upkeep.housekeeping import LOW_DISK_BYTES
from autoresearchd.sandbox.job_files import remove_tree

DOUBTED_AFTER = 3
"""Experiments that failed in a row before the tip is run again, to see whether it still does."""
MEMORY_METRICS = ("peak_vram_mb", "peak_memory_mb", "peak_rss_mb")
STARVED = 2
"""Runs of the baseline that are made again at most because the machine had too little time for them."""
PULLED_AWAY = 3
"""How often a run is begun again because its worktree was deleted."""
FILLED = 3
"""How often a program may fill a disk that has room without it."""


def needs_run(view: SessionView, e: Experiment) -> bool:
    """Whether an experiment has to run (again) before it is decided: once, the baseline several times."""
    if not e.counted_runs:
        return True
    failed = any(run.label is not Label.NONE for run in e.counted_runs)
    return is_baseline(e) and not failed and len(e.counted_runs) < view.context.baseline_runs


def decide_experiment(view: SessionView, e: Experiment) -> Decision:
    """The decision on an experiment whose runs are made. BaselineError where the program as it is does not run."""
    context = view.context
    if not is_baseline(e):
        before = view.programs.code(view.base(e))
        after = {**view.programs.code(e.parent), **proposal_of(e).files}
        decision = decide(
            context.task,
            e,
            view.tip,
            view.belief,
            confirmed=view.confirmed,
            simpler=is_simpler(after, before),
            larger=is_larger(after, before),
            identical=after == before,
            values=view.values_with(e),
            baseline=view.baseline_runs,
            seeded=not (view.baseline and view.baseline.ignores_seed),
        )
        return decision if decision.status is Status.KEEP else _beside_keeps(view, e, decision)
    log = context.site.run_dir(e.number, len(e.runs) - 1) / "training.log"
    try:
        return decide_baseline(context.task, e, log=str(log))
    except BaselineError as error:
        detail = e.runs[-1].detail if e.runs else ""
        error.hint = hint_job(detail, context.site.source, context.site.pristine) or error.hint
        raise


def _beside_keeps(view: SessionView, e: Experiment, decision: Decision) -> Decision:
    """The decision where others were kept while it ran: no better than the new tip, it may have beaten its own parent.

    If it did, the edit is tried on the tip (``Proposals.rebase``). Its gain is told against its parent.
    """
    since = view.kept_since(e)
    if not since:
        return decision
    brought = sum((k.decision.delta or 0.0) for k in since if k.decision)
    if view.context.task.proposing.parents == "incumbent":  # else it was made on some program of the tree
        decision = replace(decision, shift=brought)
    if decision.label is not Label.NO_GAIN or view.context.slots == 1:  # rounds of one slot rebase nothing
        return decision
    gain = (decision.delta or 0.0) + brought
    meanwhile = ", ".join(str(k.number) for k in since)
    words = f"The tip moved on while it ran (to experiment {meanwhile}), and it is no better than that"
    reason = (
        f"{words}; than what it was made from it is expected to be {abs(gain):.6g} {'better' if gain > 0 else 'worse'}."
    )
    return replace(decision, label=Label.STALE_PARENT, delta=gain, reason=f"{reason} {decision.reason}")


def all_fail(view: SessionView) -> bool:
    """Whether the tip may fail by now, as all experiments did that ran since it was kept or tested, some in a row."""
    failed = 0
    for e in reversed(view.recent):
        own = e.last_own
        ended = None if own is None else RULES[own.label]
        if ended is None:  # no job was spent on it, or it was taken from it
            continue
        if e.number <= max(view.tip.number, view.tested) or ended not in (Status.CRASH, Status.CHECKS_FAILED):
            break
        failed += 1
    return failed >= DOUBTED_AFTER


def move_tip(view: SessionView, e: Experiment) -> None:
    """Carry a decision out in git; it may be repeated. The branch moves with the baseline's and by confirmations."""
    workspace, reverts = view.context.workspace, view.context.task.history == "revert"
    if is_baseline(e) and is_keep(e):
        workspace.advance(workspace.confirmed() if reverts else e.parent, commit_of(e))
    if is_keep(e):
        workspace.move_tip(commit_of(e))
    elif e.commit is not None and reverts:
        workspace.record_discard(
            number=e.number, commit=e.commit, incumbent=e.parent, when=e.finished_at or e.started_at
        )


def require_branch(context: Context, expected: Collection[str]) -> None:
    """Raise RepositoryError, with the command that puts it right, when the branch is gone or at none of these commits.

    With ``history: revert`` it is at the last revert before a confirmation, which only git knows: that has the files of
    one of them.
    """
    session = context.store.session(context.tag)
    try:
        at = context.workspace.confirmed()
    except RepositoryError as error:
        hint = f"git branch {session.branch} {session.confirmed[:10]}, then `autoresearchd resume {session.tag}`"
        raise RepositoryError(error.what, hint=hint) from error
    if at in expected:
        return
    if context.task.history == "revert" and any(not context.workspace.diff(commit, at) for commit in expected):
        return
    raise RepositoryError(
        f"branch {session.branch} points at {at[:10]}, but this session left it at {session.confirmed[:10]} "
        f"(experiment {session.confirmed_experiment})",
        hint=f"git branch --force {session.branch} {session.confirmed[:10]}, then "
        f"`autoresearchd resume {session.tag}`; to build on your own commit, start a new session from it",
    )


def check_run(
    view: SessionView, slot: Slot, e: Experiment, run: Run, result: RunResult, measured: Measurement
) -> Measurement:
    """What was measured, or what takes its place."""
    if slot.ended_by is not None and measured.label is Label.INTERRUPTED:  # else it ended by itself just then
        measured = end_early(measured, slot.ended_by)
    task, best, sigma = view.context.task, view.best, view.sigma
    measured = run_time.held(task, result, measured, view.pace, best=best, sigma=sigma)
    if is_baseline(e) and measured.label is Label.NONE:
        measured = _again_if_starved(view, e, result, measured)
    return excused(view, slot, e.runs, run, measured)


def excused(view: SessionView, slot: Slot, runs: Sequence[Run], run: Run, measured: Measurement) -> Measurement:
    """What a run gave, unless its surroundings are to blame. runs: the run with those that were made before it."""
    gone = slot.running is not None and not slot.running.request.workspace.is_dir()
    if gone and measured.label is not Label.NONE and _count(runs, Label.HOST_LOST) < PULLED_AWAY:
        return Measurement(Label.HOST_LOST, detail="its worktree was deleted while it ran")
    return _make_room(view, runs, run, measured) if measured.label is Label.DISK_FULL else measured


def _again_if_starved(view: SessionView, e: Experiment, result: RunResult, measured: Measurement) -> Measurement:
    """A run of the baseline that got too little processor time, beside the runs before it, is made again.

    Only there: an edit that waits on purpose would draw its luck anew. What it measured plays no part, and the one
    that takes its place has the same seed.
    """
    starved = (r for r in e.current_runs if r.label is Label.INTERRUPTED and r.detail.startswith(run_time.BUSY_MACHINE))
    if len([*starved]) >= STARVED:
        return measured
    stages = [stage for run in e.good_runs for stage in view.context.store.stages(run.id)]
    told = run_time.starved(result, stages)
    return Measurement(Label.INTERRUPTED, detail=told) if told else measured


def _make_room(view: SessionView, runs: Sequence[Run], run: Run, measured: Measurement) -> Measurement:
    """Remove what is of no more use; a program that fills by itself whatever room there is, is to blame for it."""
    run_dir = view.context.site.run_dir(run.experiment, run.index)
    remove_tree(str(run_dir / "output"))
    times = 1 + _count(runs, Label.DISK_FULL)
    if times < FILLED or shutil.disk_usage(run_dir).free < LOW_DISK_BYTES:
        return measured
    detail = f"it filled the disk {times} times, which has room without it: {measured.detail}"
    return Measurement(Label.ERROR, detail=detail)


def _count(runs: Sequence[Run], label: Label) -> int:
    return sum(run.label is label for run in runs)


class Rewards:
    """Gives rewards; remembers the last diffs, so that none is read from the store twice."""

    def __init__(self, view: SessionView, turns: Turns) -> None:
        self._view, self._turns, self._context = view, turns, view.context
        self._diff = lru_cache(2 * RECENT)(partial(view.context.store.diff, view.context.session_id))

    def with_reward(self, e: Experiment, decision: Decision) -> Decision:
        """The decision with its reward, for experiments that somebody proposed."""
        view = self._view
        if is_baseline(e) or e.proposal is None or view.needs_baseline:
            return decision
        diff = self._context.store.diff(self._context.session_id, e.number)
        earlier = [self._diff(past.number) for past in view.recent if past.number != e.number] if diff else []
        earned = reward(
            decision.label,
            self._gain(e, decision),
            view.sigma,
            view.best,
            saved=resources_saved(resources(e), resources(view.tip)),
            distance=novelty(diff, [text for text in earlier if text]) if diff else 0.0,
        )
        if earned is None:
            return decision
        return replace(decision, reward=earned.total, reward_parts=earned.parts, reward_formula=earned.formula)

    def _gain(self, e: Experiment, decision: Decision) -> float | None:
        """The expected improvement; of a member of a round, that over what all of its members were shown."""
        shown, gain, now = self._turns.turn_of(e).state, decision.delta, self._view.best
        if gain is None or now is None or shown is None or shown.incumbent_value is None:
            return gain
        here = shown.incumbent == self._view.parent
        return gain if here else gain + self._context.task.metric.improvement(now, shown.incumbent_value)


def resources(e: Experiment) -> dict[str, float]:
    """Seconds and memory of an experiment's own runs, on average."""
    runs = e.good_runs
    if not runs:
        return {}
    known = [name for name in MEMORY_METRICS if all(name in r.metrics for r in runs)]
    memory = {name: sum(r.metrics[name] for r in runs) / len(runs) for name in known}
    return {"seconds": sum(r.duration_s for r in runs) / len(runs), **memory}

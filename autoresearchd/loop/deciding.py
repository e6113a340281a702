"""Deciding: what a run counts as, whether another is needed, what comes of an experiment, and where the branch goes.

The same after a restart. The branch is never moved where anybody else has moved it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice

from autoresearchd.domain.errors import BaselineError, RepositoryError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult, StageResult
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.evaluator.feedback import Reward, novelty, resources_saved, reward
from autoresearchd.evaluator.keep.decide import NextRun, decide, decide_baseline
from autoresearchd.evaluator.keep.keep_rule import KeepRule
from autoresearchd.evaluator.rules import run_time
from autoresearchd.evaluator.rules.program_text import is_simpler
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
"""Experiments that failed in a row before the tip is run again beside the next one that does."""
MEMORY_METRICS = ("peak_vram_mb", "peak_memory_mb", "peak_rss_mb")
STARVED = 2
"""Runs of the baseline that are made again at most because the machine had too little time for them."""
PULLED_AWAY = 3
"""How often a run is begun again because its worktree was deleted."""
FILLED = 3
"""How often a program may fill a disk that has room without it."""
_OWN = NextRun(None, None, "")
"""A run of the experiment's own program on a fresh seed."""


def next_run(view: SessionView, e: Experiment) -> NextRun | None:
    """The run that an experiment still needs; None when it can be decided."""
    if not e.counted_runs:
        return _OWN
    if is_baseline(e):
        failed = any(run.label is not Label.NONE for run in e.counted_runs)
        return None if failed or len(e.counted_runs) >= view.context.baseline_runs else _OWN
    answer = _judge(view, e)
    return answer if isinstance(answer, NextRun) else None


def decide_experiment(view: SessionView, e: Experiment) -> Decision:
    """The decision on an experiment whose runs are made. BaselineError where the program as it is does not run."""
    context = view.context
    if not is_baseline(e):
        answer = _judge(view, e)
        if isinstance(answer, NextRun):  # no run can follow any more, though the rule of a newer version asks for one
            answer = _judge(view, e, KeepRule(most=0))
        assert isinstance(answer, Decision)
        return answer
    log = context.site.run_dir(e.number, len(e.runs) - 1) / "training.log"
    try:
        return decide_baseline(context.task, e, log=str(log))
    except BaselineError as error:
        detail = e.runs[-1].detail if e.runs else ""
        error.hint = hint_job(detail, context.site.source, context.site.pristine) or error.hint
        raise


def _judge(view: SessionView, e: Experiment, rule: KeepRule | None = None) -> Decision | NextRun:
    before = view.programs.code(commit_of(view.rival(e)) if e.fallen else view.base(e))
    after = {**view.programs.code(e.parent), **proposal_of(e).files}
    return decide(
        view.context.task,
        e,
        view.rival(e),
        view.noise_data,
        rule=rule,
        simpler=is_simpler(after, before),
        identical=after == before,
        values=view.values_with(e),
        baseline=view.baseline_runs,
        doubted=_is_doubted(view, e),
        seeded=not (view.baseline and view.baseline.ignores_seed),
    )


def _is_doubted(view: SessionView, e: Experiment) -> bool:
    """Whether what an experiment is compared with may fail by now, as all did that were measured since it last ran."""
    rival, failed = view.rival(e).number, 0
    if view.baseline is None or rival == view.baseline.number:
        return False
    for before in islice(reversed(view.recent), RECENT - 1):  # one less after a restart, when e is among the last
        own = before.last_own
        ended = None if own is None else RULES[own.label]
        if ended is None:  # no job was spent on it, or it was taken from it
            continue
        beside = any(run.of == rival and run.counts for run in before.runs)
        if before.number <= rival or beside or ended not in (Status.CRASH, Status.CHECKS_FAILED):
            break
        failed += 1
    return failed >= DOUBTED_AFTER


def move_branch(view: SessionView, e: Experiment) -> None:
    """Carry a decision out on the branch, by compare-and-swap; it may be repeated."""
    workspace, fallen, reverts = view.context.workspace, view.fallen(e), view.context.task.history == "revert"
    # The branch may still be at what lost its place; where reverts are written on it, it goes on from there.
    left = commit_of(fallen[0]) if fallen and not reverts else None
    if is_keep(e):
        before = e.parent if is_baseline(e) else workspace.parent(commit_of(e))
        workspace.advance(before if left is None else left, commit_of(e))
    elif e.commit is not None and reverts:
        workspace.record_discard(
            number=e.number,
            commit=e.commit,
            incumbent=e.parent,
            when=e.finished_at or e.started_at,
            back_to=view.tip_commit if fallen else None,
        )
    elif left is not None:
        workspace.advance(left, view.tip_commit)


def require_branch(context: Context, expected: Collection[str]) -> None:
    """Raise RepositoryError, with the command that puts it right, when the branch is gone or at none of these commits.

    With ``history: revert`` it is at the last revert, which only git knows: that has the files of one of them.
    """
    session = context.store.session(context.tag)
    try:
        tip = context.workspace.tip()
    except RepositoryError as error:
        hint = f"git branch {session.branch} {session.incumbent[:10]}, then `autoresearchd resume`"
        raise RepositoryError(error.what, hint=hint) from error
    if tip in expected:
        return
    if context.task.history == "revert" and any(not context.workspace.diff(commit, tip) for commit in expected):
        return
    raise RepositoryError(
        f"branch {session.branch} points at {tip[:10]}, but this session left it at {session.incumbent[:10]} "
        f"(experiment {session.incumbent_experiment})",
        hint=f"git branch --force {session.branch} {session.incumbent[:10]}, then `autoresearchd resume`; "
        "to build on your own commit, start a new session from it",
    )


def check_run(
    view: SessionView, slot: Slot, e: Experiment, run: Run, result: RunResult, measured: Measurement
) -> Measurement:
    """What was measured, or what takes its place."""
    if slot.ended_by is not None and measured.label is Label.INTERRUPTED:  # else it ended by itself just then
        measured = end_early(measured, slot.ended_by)
    if run.of is None:
        task, best, sigma = view.context.task, view.best, view.sigma
        before = _stages(view, e) if view.pace is not None and view.pace.most is not None else ()
        measured = run_time.held(task, result, measured, view.pace, best=best, sigma=sigma, before=before)
    if is_baseline(e) and measured.label is Label.NONE:
        measured = _again_if_starved(view, e, result, measured)
    gone = slot.running is not None and not slot.running.request.workspace.is_dir()
    if gone and measured.label is not Label.NONE and _count(e, Label.HOST_LOST) < PULLED_AWAY:
        return Measurement(Label.HOST_LOST, detail="its worktree was deleted while it ran")
    return _make_room(view, e, run, measured) if measured.label is Label.DISK_FULL else measured


def _again_if_starved(view: SessionView, e: Experiment, result: RunResult, measured: Measurement) -> Measurement:
    """A run of the baseline that got too little processor time, beside the runs before it, is made again.

    Only there: an edit that waits on purpose would draw its luck anew. What it measured plays no part, and the one
    that takes its place has the same seed.
    """
    if sum(r.label is Label.INTERRUPTED for r in e.current_runs) >= STARVED:
        return measured
    told = run_time.starved(result, _stages(view, e))
    return Measurement(Label.INTERRUPTED, detail=told) if told else measured


def _stages(view: SessionView, e: Experiment) -> list[StageResult]:
    """The stages of the runs that an experiment has already."""
    return [stage for run in e.good_runs for stage in view.context.store.stages(run.id)]


def _make_room(view: SessionView, e: Experiment, run: Run, measured: Measurement) -> Measurement:
    """Remove what is of no more use; a program that fills by itself whatever room there is, is to blame for it."""
    run_dir = view.context.site.run_dir(e.number, run.index)
    remove_tree(str(run_dir / "output"))
    times = 1 + _count(e, Label.DISK_FULL)
    if times < FILLED or shutil.disk_usage(run_dir).free < LOW_DISK_BYTES:
        return measured
    detail = f"it filled the disk {times} times, which has room without it: {measured.detail}"
    return Measurement(Label.ERROR, detail=detail)


def _count(e: Experiment, label: Label) -> int:
    return sum(run.label is label for run in e.runs)


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
        gain, sure = self._gain(e, decision)
        earned = reward(
            decision.label,
            gain,
            view.sigma,
            view.best,
            sure=sure,
            saved=resources_saved(resources(e), resources(view.tip)),
            distance=novelty(diff, [text for text in earlier if text]) if diff else 0.0,
        )
        return _with(decision, earned)

    def _gain(self, e: Experiment, decision: Decision) -> tuple[float | None, float | None]:
        """The improvement, and how sure it is; of a member of a round, that over what all of its members were shown."""
        shown, value = self._turns.turn_of(e).state, decision.value
        if shown is None or shown.incumbent == self._view.parent or value is None or shown.incumbent_value is None:
            return decision.delta, decision.sure
        return self._context.task.metric.improvement(value, shown.incumbent_value), None


def with_penalty(decision: Decision) -> Decision:
    """A decision on a keep that lost its place, with its penalty in place of the reward that it had."""
    return _with(decision, reward(decision.label, None, None, None))


def _with(decision: Decision, earned: Reward | None) -> Decision:
    if earned is None:
        return decision
    return replace(decision, reward=earned.total, reward_parts=earned.parts, reward_formula=earned.formula)


def resources(e: Experiment) -> dict[str, float]:
    """Seconds and memory of an experiment's own runs, on average."""
    runs = e.good_runs
    if not runs:
        return {}
    known = [name for name in MEMORY_METRICS if all(name in r.metrics for r in runs)]
    memory = {name: sum(r.metrics[name] for r in runs) / len(runs) for name in known}
    return {"seconds": sum(r.duration_s for r in runs) / len(runs), **memory}

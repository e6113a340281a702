"""What a run gave as it counts: held to the baseline's pace, and not blamed for a machine that failed it."""

from __future__ import annotations

import shutil

from autoresearchd.domain.experiment import Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.rules import run_time
from autoresearchd.loop.early_abort import aborted
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.session_view import SessionView
from autoresearchd.loop.slot import Slot
from autoresearchd.loop.upkeep.housekeeping import LOW_DISK_BYTES
from autoresearchd.sandbox.job_files import remove_tree

STARVED = 2
"""Runs of the baseline that are made again at most because the machine had too little time for them."""
PULLED_AWAY = 3
"""How often a run is begun again because its worktree was deleted."""
FILLED = 3
"""How often a program may fill a disk that has room without it."""


def check_run(
    view: SessionView, slot: Slot, e: Experiment, run: Run, result: RunResult, measured: Measurement
) -> Measurement:
    """What was measured, or what takes its place."""
    if slot.ended_by is not None and measured.label is Label.INTERRUPTED:  # else it ended by itself just then
        measured = aborted(measured, slot.ended_by)
    if run.of is None:
        task, best, sigma = view.context.task, view.best, view.sigma
        measured = run_time.held(task, result, measured, view.pace, best=best, sigma=sigma)
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
    stages = [stage for run in e.good_runs for stage in view.context.store.stages(run.id)]
    told = run_time.starved(result, stages)
    return Measurement(Label.INTERRUPTED, detail=told) if told else measured


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

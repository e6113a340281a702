"""Early abort in the loop: looks at the running job's curve, and learns from each experiment that was decided.

Only the first run of a proposed experiment may be ended early: never the baseline, never the incumbent run again, never
a run that was asked for to make sure. A failing look ends nothing: it is reported, and the run goes on.
"""

from __future__ import annotations

import codecs
import math
import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import AbortMemory, CurvePoint, Experiment, Measurement, Run
from autoresearchd.domain.labels import FORBIDDEN, Label, Phase
from autoresearchd.domain.ports import EventKind
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.task import Direction
from autoresearchd.evaluator.abort.abort_policy import AbortPolicy, Look, Reason
from autoresearchd.evaluator.abort.band import Z90
from autoresearchd.evaluator.keep.noise import cumulative
from autoresearchd.evaluator.measure.log_text import CurveParser
from autoresearchd.loop.measuring.run_files import open_plain
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.session_view import SessionView

LAST_LOOK = 0.95
"""From this share of the budget on nothing is left to be saved."""
LOOKS_PER_RUN = 10
"""At least so many, however short the budget is beside ``curve.check_every``."""
SAVE_EVERY = 50
"""Experiments between two times that the whole state is stored; those after it are learned again at a restart."""
NOISE = 2.0
"""Improvements of so many σ and less are noise to the test (delta), as where its constants were chosen."""
TRAINING_LOG, SUPERVISOR_LOG = "training.log", "supervisor.log"
MOST_PENDING = 20
MOST_FAULTS = 3
MOST_BYTES = 8 * 2**20
"""Read at one look; a log that grows faster is caught up with at the next ones."""
_PIECE = 2**18


class LogFollower:
    """Reads what a log has got since the last time, also when it was rotated to ``<name>.1`` in between."""

    def __init__(self, path: Path, pattern: str, budget: float) -> None:
        self._path = path
        self._parser = CurveParser(pattern, budget)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file: BinaryIO | None = None

    def read(self) -> None:
        """Take in what is new. OSError when the log cannot be read."""
        left = MOST_BYTES
        with suppress(FileNotFoundError):
            while left > 0:
                self._file = self._file or open_plain(self._path)
                piece = self._file.read(min(_PIECE, left))
                left -= len(piece)
                if piece:
                    self._parser.feed(self._decoder.decode(piece))
                elif os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                    return
                else:  # it was rotated
                    self.close()

    @property
    def started(self) -> bool:
        return bool(self._parser.points or self._parser.non_finite)

    def close(self) -> None:
        """Let go of the log; another ``read`` opens what is there then from its beginning."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def curve(self, elapsed: float) -> tuple[list[float], list[float]]:
        """Progress and losses so far. elapsed: share of the budget that has gone by, for logs that do not say."""
        points = list(self._parser.points)
        if self._parser.diverged:
            points = sorted([*points, *self._parser.non_finite], key=lambda p: p.step)
        return curve_of(points, elapsed)


def curve_of(points: Sequence[CurvePoint], end: float = 1.0) -> tuple[list[float], list[float]]:
    """Progress and losses of a curve, training losses first; steps without progress are spread up to ``end``."""
    training = [p for p in points if not p.validation]
    chosen = training if len(training) > 1 else list(points)
    if not chosen:
        return [], []
    if all(p.progress is not None and math.isfinite(p.progress) for p in chosen):
        return [p.progress for p in chosen if p.progress is not None], [p.loss for p in chosen]
    last = max(p.step for p in chosen)
    return [p.step / last * end if last > 0 else end for p in chosen], [p.loss for p in chosen]


@dataclass
class WatchedRun:
    """A run that may be ended early. first_point: when its log showed one; next: when to look again."""

    run: Run
    run_dir: Path
    follower: LogFollower
    next: float
    first_point: float | None = None


class EarlyAbort:
    """What a session learned of its curves. Owned by the loop's thread; idle with ``curve.abort: false``."""

    def __init__(self, view: SessionView) -> None:
        self._view, self._context = view, view.context
        self._policy: AbortPolicy | None = None
        self._pending: list[Experiment] = []
        self._since_saved = self._faults = 0
        task = self._context.task
        self._budget, self._on = task.execution.budget.training, task.curve.abort
        self._direction = task.metric.direction
        self._every = max(0.05, min(task.curve.check_every, self._budget / LOOKS_PER_RUN))

    # ------------------------------------------------------------------ a run under way
    def patience(self, watched: WatchedRun | None, most: float) -> float:
        """How long the loop may wait for the job before the next look, in seconds."""
        if watched is None or not most:
            return most
        return max(0.01, min(most, watched.next - self._context.clock.monotonic()))

    def watch(self, e: Experiment, run: Run, run_dir: Path) -> WatchedRun | None:
        """A run has started; None where it may not be ended early."""
        if not self._on or is_baseline(e) or run.of is not None or e.counted_runs or self._view.needs_baseline:
            return None
        follower = LogFollower(run_dir / TRAINING_LOG, self._context.task.curve.pattern, self._budget)
        return WatchedRun(run, run_dir, follower, self._context.clock.monotonic() + self._every)

    def look(self, watched: WatchedRun | None, ahead: int = 0) -> Look | None:
        """Look, if it is time; what was seen where the run is to end now. ahead: experiments to be decided before."""
        now = self._context.clock.monotonic()
        if watched is None or now < watched.next:
            return None
        watched.next = now + self._every
        try:
            look = self._look(watched, now, ahead)
            if look is None:
                return None
            figures = {name: value for name, value in asdict(look).items() if value is not None}
            more = {"probability": self._misses_the_bar(look), "sentence": look.explain()}
            self._context.store.record_look(watched.run.id, {**figures, **more})
        except Exception as error:  # noqa: BLE001 the run goes on; recorded with its traceback
            self._fail(error, watched)
            return None
        self._faults = 0
        return look if look.abort else None

    def _look(self, watched: WatchedRun, now: float, ahead: int) -> Look | None:
        policy, follower = self._learned(), watched.follower
        if any(log.name not in (TRAINING_LOG, SUPERVISOR_LOG) for log in watched.run_dir.glob("*.log")):
            return None  # training is over: it is being checked or measured
        follower.read()
        if watched.first_point is None and follower.started:
            watched.first_point = now  # what went before (imports, compilation) is no part of finished curves either
        began = now if watched.first_point is None else watched.first_point
        pace = self._view.pace  # as long as finished ones took, or may take where they end before their budget
        length = (pace.most or self._budget + pace.startup) if pace else self._budget
        steps, losses = follower.curve(min(1.0, (now - began) / length))
        if not steps or not max(steps) < LAST_LOOK:
            return None
        policy.delta = NOISE * (self._view.sigma or 0.0)
        return policy.look(steps, losses, 1.0, self._view.best, ahead)

    def end(self, watched: WatchedRun | None) -> None:
        if watched is not None:
            watched.follower.close()
            watched.next = math.inf

    # ------------------------------------------------------------------ what is learned
    def decided(self, e: Experiment) -> None:
        """An experiment's decision is on disk: to be learned from while the next job runs, which costs no time."""
        if self._on and not self._view.needs_baseline:
            self._pending.append(e)
            if len(self._pending) >= MOST_PENDING:
                self.catch_up()

    def catch_up(self) -> None:
        if not self._on or not self._pending:
            return
        try:
            self._learned()
        except Exception as error:  # noqa: BLE001 the decisions stand; recorded with its traceback
            self._fail(error)

    def _learned(self) -> AbortPolicy:
        newest = self._pending[-1].number if self._pending else None
        if self._policy is None:
            self._policy = self._read()
            self._pending.clear()  # they have just been read with all others
        while self._pending:
            self._observe(self._policy, self._pending[0])
            self._pending.pop(0)  # only now: a store that was locked is asked again at the next look
            self._since_saved += 1
        if newest is not None:
            self._save(self._policy, newest)
        return self._policy

    def _read(self) -> AbortPolicy:
        context, view = self._context, self._view
        latest, memory = context.store.latest(context.session_id), context.store.abort_memory(context.session_id)
        newest = latest.number if latest else -1
        policy = AbortPolicy(
            maximize=self._direction is Direction.MAXIMIZE,
            maximize_curve=self._curve_rises(),
            seed=derive_seed(context.seed, view.segment, "early abort"),
        )
        after = -1
        if memory is not None and memory.segment == view.segment and memory.number <= newest and memory.state:
            try:
                after = memory.number if policy.restore(memory.state) else -1
            except (KeyError, ValueError, TypeError) as error:
                context.emit(EventKind.WARNING, f"early abort learns anew, its state cannot be read: {error}")
                policy.reset()
        for e in context.store.experiments(context.session_id, last=newest - after) if newest > after else ():
            if e.number > after and e.segment == view.segment and e.phase is Phase.DECIDED:
                self._since_saved += 1
                self._observe(policy, e)
        return policy

    def _curve_rises(self) -> bool:
        """Whether the log shows a figure that is to grow (an accuracy): judged by the baseline's own curve."""
        if self._direction is Direction.MINIMIZE and self._context.task.curve.pattern == "auto":
            return False  # what it reads by itself are losses
        first = next(iter(self._view.baseline_runs), None)
        losses = self._curve(first)[1] if first else []
        third = len(losses) // 3
        return third > 0 and sum(losses[-third:]) > sum(losses[:third])

    def _observe(self, policy: AbortPolicy, e: Experiment) -> None:
        """An experiment's first run; all that may fail is read before anything is learned."""
        run = next((r for r in e.counted_runs if r.of is None), None)
        refused = e.decision is not None and e.decision.label in FORBIDDEN  # what breaks a bound is no record
        if run is None or refused or run.label not in (Label.NONE, Label.ABORTED_EARLY):
            return
        aborted, sigma = run.label is Label.ABORTED_EARLY, e.decision.sigma if e.decision else None
        steps, losses = self._curve(run, self._reached(run) if aborted else 1.0)
        policy.delta = NOISE * (sigma if sigma is not None else self._view.sigma or 0.0)
        value = None if aborted else run.value
        looks = self._context.store.looks(run.id) if policy.is_audit else ()
        spared = any(look.get("reason") == Reason.AUDIT for look in looks)
        # another: no duplicate is ever run
        policy.observe(steps, losses, 1.0, value, aborted=aborted, spared=spared, another=True)

    def _curve(self, run: Run, end: float = 1.0) -> tuple[list[float], list[float]]:
        return curve_of(self._context.store.curve(run.id), end)

    def _reached(self, run: Run) -> float:
        """How much of its budget an aborted run took where its log does not say: by its last look, or by the clock."""
        looks = self._context.store.looks(run.id)
        last = looks[-1].get("progress") if looks else None
        share = last if isinstance(last, (int, float)) and last > 0 else run.duration_s / self._budget
        return min(1.0, share) if share > 0 else 1.0

    def _save(self, policy: AbortPolicy, number: int) -> None:
        names = ("audited", "false_abort_rate", "false_abort_limit", "throughput_gain")
        figures = {name: getattr(policy.promise, name) for name in names}
        state = policy.to_state() if self._since_saved >= SAVE_EVERY else None
        memory = AbortMemory(self._view.segment, number, figures, state)
        self._context.store.remember_aborts(self._context.session_id, memory)
        if state is not None:
            self._since_saved = 0

    def _fail(self, error: Exception, watched: WatchedRun | None = None) -> None:
        """Report it; this run is not looked at any more."""
        self._faults += not isinstance(error, (EnvironmentFailure, OSError))
        self._on = self._on and self._faults < MOST_FAULTS
        self.end(watched)
        what = f"early abort failed and {'lets this run go on' if self._on else 'is off until the daemon starts anew'}"
        number = watched.run.experiment if watched else None
        if isinstance(error, EnvironmentFailure):  # a full disk, a database that is locked: no fault of ours
            self._context.emit(EventKind.WARNING, f"{what}: {error}", experiment=number)
            return
        message = f"{what}: {type(error).__name__}: {error}"
        self._context.emit(EventKind.FAULT, message, experiment=number, traceback=traceback.format_exc())

    def _misses_the_bar(self, look: Look) -> float | None:
        """Probability, by the forecast alone, that the run does not reach the bar."""
        if look.forecast is None or look.low is None or look.high is None or look.bar is None:
            return None
        sd = (look.high - look.low) / (2 * Z90)
        over = (look.forecast - look.bar) * (1.0 if self._direction is Direction.MINIMIZE else -1.0)
        return cumulative(over / sd) if sd > 0 else float(over > 0)


def end_early(measurement: Measurement, look: Look) -> Measurement:
    """What a run gave that was ended after a look: no value, but what was forecast; a dead one forecasts nothing."""
    detail = look.explain().removesuffix(".")
    if look.reason is Reason.DEAD:
        return replace(measurement, label=Label.NAN_LOSS, value=None, metrics={}, detail=f"{detail}, so it was ended")
    known = {"forecast": look.forecast, "forecast_low": look.low, "forecast_high": look.high}
    figures = {name: x for name, x in known.items() if x is not None and math.isfinite(x)}
    return replace(measurement, label=Label.ABORTED_EARLY, value=None, metrics=figures, detail=detail)

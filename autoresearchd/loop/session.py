"""Many experiments: until stopped, with pauses, with patience for failing surroundings, whatever one of them does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision, Experiment, Limits
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.errors import (
    AutoresearchdError,
    BaselineError,
    EnvironmentFailure,
    Interrupted,
    LimitReached,
    RepositoryError,
)
from autoresearchd.loop.cycle import Cycle
from autoresearchd.loop.laboratory import Laboratory
from autoresearchd.loop.recovery import reconcile
from autoresearchd.loop.standing import Standing

FAULTS_BEFORE_GIVING_UP = 3
"""Unexpected exceptions in one experiment before it is recorded as a crash and the next one begins."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times after failures of the surroundings: first × 2^k seconds, at most ``most``."""

    first: float = 5.0
    most: float = 600.0

    def seconds(self, failures: int) -> float:
        """How long to wait after that many failures in a row (≥ 1)."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 30))


class SessionLoop:
    """Runs a session until it is asked to stop or a limit is reached."""

    def __init__(
        self,
        lab: Laboratory,
        limits: Limits,
        *,
        active_seconds: float = 0.0,
        backoff: Backoff | None = None,
        pid: int | None = None,
    ) -> None:
        self._lab = lab
        self._limits = limits
        self._backoff = backoff or Backoff()
        self.ready: Callable[[], None] = lambda: None
        """Called once store, git and processes agree."""
        self.conditions: Callable[[], bool] = lambda: False
        """Called once nothing is open; opens a segment and gives True when results can no longer be compared."""
        self.between: Callable[[], None] = lambda: None
        """Called before each new experiment; may raise EnvironmentFailure to hold it back."""
        self._pid = pid
        self._before = active_seconds
        self._started = lab.clock.monotonic()
        self._failures = 0
        self._faults: tuple[int, int] = (-1, 0)
        self._reconciled = False
        self._conditions_checked = False
        self._stop_said = False
        self._state: tuple[SessionState, str] | None = None
        self.standing = Standing(lab)
        self._cycle = Cycle(lab, self.standing)

    @property
    def active_seconds(self) -> float:
        """How long daemons of this session have been at work, over all restarts."""
        return self._before + self._lab.clock.monotonic() - self._started

    def run(self) -> str:
        """Until stopped; why it stopped. Raises BaselineError, LimitReached, RepositoryError and Interrupted."""
        experiment: Experiment | None = None
        while not self._reconciled:
            experiment = self._guarded(self._reconcile, None)
        self.ready()
        while True:
            if experiment is None:
                reason = self._reason_to_stop()
                if reason:
                    return reason
                if self._wait_while_paused():
                    continue
            experiment = self._guarded(lambda e=experiment: self._step(e), experiment)  # type: ignore[misc]

    def _reconcile(self) -> Experiment | None:
        """The experiment that the last daemon left open. Nothing else is done before this has gone through once."""
        experiment = reconcile(self._lab, self._cycle)
        self._reconciled = True
        return experiment

    def _step(self, experiment: Experiment | None) -> Experiment | None:
        """Open an experiment, or take the open one a step further; None once it is settled."""
        if experiment is None:
            self._check_conditions()
            self.between()
            return self._cycle.open()
        self._check_first_result()
        self._say_that_it_stops(experiment)
        experiment = self._cycle.advance(experiment)
        settled = experiment.phase is Phase.DECIDED and experiment.overhead_ms is not None
        return None if settled else experiment

    def _check_conditions(self) -> None:
        """What is open is finished in the segment that it began in; only then may another one begin."""
        if not self._conditions_checked:
            if self.conditions():
                self.standing = Standing(self._lab)
                self._cycle = Cycle(self._lab, self.standing)
            self._conditions_checked = True

    # ------------------------------------------------------------------ failures
    def _guarded(self, step: Callable[[], Experiment | None], experiment: Experiment | None) -> Experiment | None:
        """Do a step; failures of the surroundings are waited out, unexpected exceptions recorded as well."""
        try:
            experiment = step()
        except (BaselineError, RepositoryError, Interrupted, LimitReached):
            raise
        except EnvironmentFailure as error:
            self._back_off(str(error))
            return self._reload(experiment)
        except Exception as error:  # noqa: BLE001 one experiment must not end the session: recorded with its traceback
            return self._record_fault(experiment, error)
        self._failures = 0
        self._set_state(SessionState.RUNNING)
        return experiment

    def _record_fault(self, experiment: Experiment | None, error: Exception) -> Experiment | None:
        number = experiment.number if experiment else -1
        count = self._faults[1] + 1 if self._faults[0] == number else 1
        self._faults = (number, count)
        expected = isinstance(error, AutoresearchdError)
        trace = str(error) if expected else traceback.format_exc()
        self._lab.emit(
            EventKind.FAULT,
            f"{type(error).__name__}: {error}",
            experiment=experiment.number if experiment else None,
            traceback=trace,
        )
        self._back_off(f"{type(error).__name__}: {error}")
        experiment = self._reload(experiment)
        if experiment is not None and count >= FAULTS_BEFORE_GIVING_UP and experiment.decision is None:
            reason = f"the daemon failed {count} times at this experiment: {type(error).__name__}: {error}"
            if self.standing.needs_baseline:
                raise BaselineError(reason, mend="daemon.log has the traceback") from error
            experiment = self._guarded(
                lambda: self._cycle.give_up(experiment, Decision(Status.CRASH, Label.ERROR, reason=reason)), experiment
            )
        return experiment

    def _reload(self, experiment: Experiment | None) -> Experiment | None:
        """The experiment as the store has it: a step may have failed after its transaction."""
        store, session_id = self._lab.store, self._lab.session_id
        try:
            latest = store.latest(session_id)
        except AutoresearchdError:
            return experiment
        if latest is None or (latest.phase is Phase.DECIDED and latest.overhead_ms is not None):
            return None
        return latest

    def _back_off(self, reason: str) -> None:
        self._failures += 1
        seconds = self._backoff.seconds(self._failures)
        self._set_state(SessionState.BACKING_OFF, reason)
        self._lab.emit(
            EventKind.BACKING_OFF, f"waiting {format_duration(seconds)}: {reason}", seconds=seconds, reason=reason
        )
        if self._lab.stop.wait(seconds) and self._lab.stop.soon:
            raise Interrupted(f"stopped while waiting for: {reason}")

    # ------------------------------------------------------------------ stopping and pausing
    def _reason_to_stop(self) -> str:
        """Why to stop before the next experiment; empty to go on."""
        limits, totals, standing = self._limits, self.standing.totals, self.standing
        if self._lab.stop.soon:
            return self._lab.stop.reason or "stopped"
        if totals.experiments == 0:
            return ""  # a session that ends before its first result has failed: see _check_first_result
        if limits.max_experiments is not None and standing.experiments >= limits.max_experiments:
            return f"{standing.experiments} experiments done, as asked"
        if limits.max_seconds is not None and self.active_seconds >= limits.max_seconds:
            return f"the time limit of {format_duration(limits.max_seconds)} is reached"
        if limits.max_usd is not None and totals.usd >= limits.max_usd:
            return f"the spend limit of {limits.max_usd:g} USD is reached"
        return ""

    def _check_first_result(self) -> None:
        """A time limit that passes before the first result ends the session at once."""
        limit = self._limits.max_seconds
        if limit is not None and self.standing.totals.experiments == 0 and self.active_seconds >= limit:
            self._lab.stop.request("time limit", now=True)
            self._cycle.kill()
            raise LimitReached(
                f"the time limit of {format_duration(limit)} was reached before the baseline was measured",
                mend="raise --max-time or lower --budget",
            )

    def _say_that_it_stops(self, experiment: Experiment) -> None:
        if self._lab.stop.soon and not self._stop_said:
            self._stop_said = True
            self._lab.emit(
                EventKind.STOPPING,
                f"stopping after experiment {experiment.number}; ask again to stop at once",
                experiment=experiment.number,
            )

    def _wait_while_paused(self) -> bool:
        """Wait a moment when paused; whether it is paused."""
        paused = self._lab.stop.paused.is_set()
        if paused:
            if self._state is None or self._state[0] is not SessionState.PAUSED:
                self._lab.emit(EventKind.PAUSED, "paused; `autoresearchd unpause` goes on")
            self._set_state(SessionState.PAUSED)
            self._lab.stop.wait(1.0)
        return paused

    def _set_state(self, state: SessionState, reason: str = "") -> None:
        if self._state == (state, reason):
            return
        if self._state is not None and self._state[0] is SessionState.PAUSED and state is SessionState.RUNNING:
            self._lab.emit(EventKind.UNPAUSED, "going on")
        try:
            self._lab.store.set_state(self._lab.session_id, state, self._lab.clock.now(), pid=self._pid, reason=reason)
            self._state = (state, reason)
        except EnvironmentFailure:
            self._state = None  # the store itself is what fails: said in the log, written when it is back

"""Many experiments: until stopped, with pauses, with patience for failing surroundings, whatever one of them does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from autoresearchd.domain import errors
from autoresearchd.domain.experiment import Decision, Experiment, Limits, limit_reached
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.ports import EventKind
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.evaluator.keep.confirm import due
from autoresearchd.evaluator.keep.decide import decide_failed_proposal
from autoresearchd.loop import messages
from autoresearchd.loop.confirming import Asked, follow_tip
from autoresearchd.loop.context import Context
from autoresearchd.loop.cycle import Cycle
from autoresearchd.loop.deciding import all_fail, require_branch
from autoresearchd.loop.recovery import reconcile
from autoresearchd.loop.run import Slot
from autoresearchd.loop.session_view import SessionView
from autoresearchd.loop.upkeep.housekeeping import say_that_it_stops
from autoresearchd.workspace.files import PASSING

FATAL = (
    errors.BaselineError, errors.RepositoryError, errors.Interrupted, errors.LimitReached, errors.MissingCapability,
    errors.StoreDamaged,
)  # fmt: skip
"""No experiment is to blame for any of them, and none could be measured before it is fixed."""
FAULTS_BEFORE_GIVING_UP = 3
"""Unexpected exceptions in one experiment before it is recorded as a crash and the next one begins."""
CAP_LOOK_S = 600.0
"""How long at most to wait for the end of a day whose money is spent, before the cap is looked at again."""
REFUSALS = 3
"""Times in a row that every model refuses for good before it is believed: a gateway that restarts may say so once."""
RESERVE, RESERVED_RUNS = 0.4, 7.25
"""Of a time limit: what is left at most for its end, and how many runs that is for: the last experiment, three pairs
(in sessions of 20 to 60 simulated runs two pairs end with a third less, five with a tenth less), and what lies between.
"""
FAILED_PROPOSALS = 3
"""Proposals in a row that the policy itself failed to make before the loop waits between them."""
_SEE = (
    "`autoresearchd show N --answers` has what was answered; another model may do better; "
    "a policy's command has to end with exit code 0 when it is run by hand in a copy of the task's folder"
)
_UNUSABLE = frozenset({Label.ERROR, Label.MALFORMED_ANSWER, Label.ILLEGAL_EDIT, Label.NO_OP})


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times after failures of the surroundings: first × 2^k seconds, at most ``most``."""

    first: float = 5.0
    most: float = 600.0

    def seconds(self, failures: int) -> float:
        return min(self.most, self.first * 2.0 ** min(failures - 1, 30))


class SessionLoop:
    """Runs a session until it is asked to stop or a limit is reached.

    ready: called once store, git and processes agree. conditions: once nothing is open; opens a segment and gives True
    when results can no longer be compared. between: before each new experiment; may raise EnvironmentFailure to hold it
    back. waits: with what is waited for while the store cannot be told, with nothing once it can. asked: all that is to
    be done is a confirmation.
    """

    def __init__(
        self,
        context: Context,
        limits: Limits,
        *,
        active_seconds: float = 0.0,
        backoff: Backoff | None = None,
        pid: int | None = None,
        asked: Asked | None = None,
    ) -> None:
        self._context, self._limits, self._backoff, self._pid = context, limits, backoff or Backoff(), pid
        self.ready: Callable[[], None] = lambda: None
        self.conditions: Callable[[], bool] = lambda: False
        self.between: Callable[[], None] = lambda: None
        self.waits: Callable[[str], None] = lambda reason: None
        self._before, self._started = active_seconds, context.clock.monotonic()
        self._failures = self._refusals = self._unproposed = 0
        self._faults: tuple[int, int] = (-1, 0)
        self._waited_for_policy, self._reconciled = True, False
        self._conditions_checked = self._outdated = False
        self._state: tuple[SessionState, str] | None = None
        self._slot = Slot(self._started)
        self._asked = asked
        self._confirming: int | None = None
        """Number of the confirmation that is open."""
        self._unconfirmed = -1
        """The tip whose confirmation failed for the daemon's own fault."""
        self._spent = ""
        """That the session has no money left for a model; a confirmation needs none."""
        self._read()

    def _read(self) -> None:
        """The session as the store has it; nothing else is remembered."""
        view = SessionView(self._context)
        self._cycle, self.view = Cycle(view), view  # both, or none where one fails
        self._stale = False
        """Whether the store has a decision that the view has not."""

    @property
    def active_seconds(self) -> float:
        """How long daemons of this session have been at work, over all restarts."""
        return self._before + self._context.clock.monotonic() - self._started

    def run(self) -> str:
        """Until stopped; why. Raises what ``FATAL`` has, and ModelsRefused; PolicyError: no proposal was usable."""
        experiment: Experiment | None = None
        while not self._reconciled:
            experiment = self._guarded(self._reconcile, None)
        self.ready()
        if self._asked is not None and experiment is not None and experiment.phase is Phase.PROPOSING:
            experiment = self._give_up_proposing(experiment, "only a confirmation was asked for")
        while True:
            if experiment is None:
                reason = self._reason_to_stop() if self._confirming is None else ""
                # A run of a confirmation that is under way is awaited, like one of an experiment.
                going = not reason and self._slot.running is None and not self._context.stop.is_set()
                if going and self._wait_while_paused():
                    continue
                why = self._reason_to_confirm(reason) if self._confirming is None else ""
                if why or self._confirming is not None:
                    self._guarded(partial(self._confirm, why), None)
                    continue
                if reason:
                    self._cycle.rest()
                    return reason
                if self._wait_for_policy():
                    continue
            experiment = self._guarded(partial(self._step, experiment), experiment)

    def _reconcile(self) -> Experiment | None:
        """The experiment that the last daemon left open. Nothing else is done before this has gone through once."""
        experiment = reconcile(self._context, self._cycle, self._slot)
        found = self._context.store.open_confirmation_of(self._context.session_id)
        self._confirming = found.number if found else None
        self._reconciled = True
        return experiment

    def _step(self, experiment: Experiment | None) -> Experiment | None:
        """Open an experiment, or take the open one a step further; None once it is settled."""
        if experiment is None:
            self._check_conditions()
            require_branch(self._context, {self.view.confirmed_commit})
            self.between()
            if self._context.stop.is_set() or self._context.stop.paused.is_set():  # asked for while a learner ran
                return None
            return self._cycle.open(self._slot)
        if self._stale:
            self._read()
        self._check_first_result()
        if self._context.stop.announce():
            say_that_it_stops(self._context, experiment)
        experiment = self._cycle.advance(experiment, self._slot)
        if not messages.is_settled(experiment):
            return experiment
        if experiment.commit is not None:
            self._unproposed = 0
        elif messages.decision_of(experiment).label is Label.ERROR and not experiment.runs:  # the policy itself failed
            self._unproposed += 1
            self._waited_for_policy = False
        return None

    def _check_conditions(self) -> None:
        """Once no experiment is open, which is finished in the segment that it began in.

        What was not confirmed falls where a segment begins (``open_segment``): its runs compare with none of today's.
        """
        if not self._conditions_checked:
            self._outdated = self.conditions() or self._outdated
            if self._outdated:
                self._read()
                self._confirming = None
            follow_tip(self._context)
            self.view.write_belief()
            self._conditions_checked, self._outdated = True, False

    # ------------------------------------------------------------------ confirming
    def _reason_to_confirm(self, ending: str) -> str:
        """Why the chain is to be confirmed now (see ``messages.WHY``); empty to go on without. ending: why to stop."""
        view, stop = self.view, self._context.stop
        if stop.now.is_set() or view.needs_baseline:
            return ""
        if self._asked is not None:
            return messages.ASKED
        if view.doubt() is not None:
            return messages.DOUBT
        asked = stop.confirm.is_set()
        stop.confirm.clear()
        if asked and view.open_keeps:
            return messages.ASKED
        known = view.tip.number in (view.require_baseline().number, *view.looked_after)
        if not ending and not known and all_fail(view):  # where it is confirmed already, only to say so
            return messages.FAILURES
        if not view.open_keeps or view.tip.number == self._unconfirmed:
            return ""
        if ending:
            over = self._doubted() >= view.recent[-1].number or self._time_is_over()
            return "" if over else "stop" if stop.is_set() else "limit"
        every, runs = self._context.task.scoring.confirm_every, view.totals.experiments + view.extra
        return "gain" if due(view.open_keeps, view.undecided, every=every, runs=runs, extra=view.extra) else ""

    def _confirm(self, why: str = "") -> None:
        """Begin a confirmation, or take the open one a step further."""
        context, cycle = self._context, self._cycle.confirming
        if self._asked is None:  # else nothing is to change but by its verdict
            self._check_conditions()
        if self.view.needs_baseline:  # they have changed, and the chain fell
            return
        c = context.store.open_confirmation_of(context.session_id)
        if c is None and self._confirming is not None:  # its verdict is on disk, but git could not follow at once
            self._read()
            c = context.store.confirmations(context.session_id)[self._confirming]
            self._cycle.confirming.carry_out(c)
        else:
            c = c or cycle.open(why, self._asked)
            self._confirming = c.number
            if context.stop.announce():
                say_that_it_stops(context, self.view.tip, confirming=True)
            if context.stop.now.is_set() and self._slot.running is None:
                what = f"the confirmation of experiment {c.experiment}"
                raise errors.Interrupted(messages.interrupted(context.tag, what))
            over = self._time_is_over() and self._asked is None
            words = f"the time limit is reached after {counted(len(c.runs), 'run')}" if over else ""
            c = cycle.advance(c, self._slot, over=words)
        if c.verdict is not None:
            if c.fell:
                self._read()  # what turns remember of the chain is wrong now
            self._confirming = None
            if self._asked is not None and self._asked.is_answered_by(c):
                self._end_asked(f"the confirmation of experiment {c.experiment} is done, as asked")
            self._cycle.write_learnings()

    def _end_asked(self, reason: str) -> None:
        self._asked, self._unconfirmed = None, self.view.tip.number
        self._context.stop.end(reason)

    def _give_up_confirming(self, reason: str) -> None:
        c = self._context.store.open_confirmation_of(self._context.session_id)
        self._slot.kill()
        if c is not None:
            self._cycle.confirming.give_up(c, reason)
        self._confirming, self._unconfirmed = None, self.view.tip.number
        if self._asked is not None:
            self._end_asked(reason)

    def _doubted(self) -> int:
        """The newest experiment when a confirmation last decided nothing, by the journal: a restart asks the same."""
        return self.view.undecided[-1] if self.view.undecided else -1

    def _time_is_over(self) -> bool:
        return self._limits.max_seconds is not None and self.active_seconds >= self._limits.max_seconds

    def _reserve(self) -> float:
        """Seconds to be left for the confirmation at the end of a session whose time is limited."""
        limit, view = self._limits.max_seconds, self.view
        if limit is None or view.needs_baseline or not view.open_keeps or self._doubted() >= view.tip.number:
            return 0.0  # what is left after a confirmation that decided nothing is for experiments
        runs = (*view.tip.good_runs, *view.confirmed.good_runs)
        return min(RESERVE * limit, RESERVED_RUNS * max((run.duration_s for run in runs), default=0.0))

    # ------------------------------------------------------------------ failures
    def _guarded(self, step: Callable[[], Experiment | None], experiment: Experiment | None) -> Experiment | None:
        """Do a step; failures of the surroundings are waited out, unexpected exceptions recorded as well."""
        try:
            experiment = step()
        except FATAL:
            raise
        except errors.SpendCapReached as error:
            if error.whole_session:
                return self._end_for_money(experiment, error)
            self._wait_for_money(error)
            return self._reload(experiment)
        except errors.EnvironmentFailure as error:
            self._refusals = self._refusals + 1 if isinstance(error, errors.ModelsRefused) else 0
            if self._refusals >= REFUSALS:
                raise
            self._back_off(str(error))
            return self._reload(experiment)
        except Exception as error:  # noqa: BLE001 one experiment must not end the session: recorded with its traceback
            if not isinstance(error, OSError) or error.errno not in PASSING:
                return self._record_fault(experiment, error)
            self._back_off(f"{error.strerror}: {error.filename or 'the disk'}")  # it can show anywhere: nobody's fault
            return self._reload(experiment)
        # Not where a run only begins once more: what it failed of may be there still.
        begun = experiment is not None and experiment.phase in (Phase.COMMITTED, Phase.RUNNING)
        if not begun and self._slot.running is None:
            self._failures = self._refusals = 0
        self._set_state(SessionState.RUNNING)
        return experiment

    def _record_fault(self, experiment: Experiment | None, error: Exception) -> Experiment | None:
        confirms = self._confirming is not None or self._asked is not None
        number = experiment.number if experiment else -2 - (self._confirming or 0) if confirms else -1
        count = self._faults[1] + 1 if self._faults[0] == number else 1
        self._faults = (number, count)
        what = f"{type(error).__name__}: {error}"
        trace = str(error) if isinstance(error, errors.AutoresearchdError) else traceback.format_exc()
        self._context.emit(EventKind.FAULT, what, experiment=number if experiment else None, traceback=trace)
        self._back_off(what)
        experiment = self._reload(experiment)
        if number < -1 and count % FAULTS_BEFORE_GIVING_UP == 0:  # and not at once where giving up fails as well
            self._guarded(lambda: self._give_up_confirming(f"the daemon failed {count} times at it: {what}"), None)
        if experiment is not None and count >= FAULTS_BEFORE_GIVING_UP and experiment.decision is None:
            reason = f"the daemon failed {count} times at this experiment: {what}"
            if self.view.needs_baseline:
                raise errors.BaselineError(reason, hint="daemon.log has the traceback") from error
            crash = Decision(Status.CRASH, Label.ERROR, reason=reason)
            experiment = self._guarded(partial(self._cycle.give_up, experiment, self._slot, crash), experiment)
        return experiment

    def _reload(self, experiment: Experiment | None) -> Experiment | None:
        try:
            latest = self._context.store.latest(self._context.session_id)
        except errors.AutoresearchdError:
            return experiment
        if experiment and latest and experiment.decision is None and latest.decision is not None:
            self._stale = True  # it failed between the decision and taking it in
        return None if latest is None or messages.is_settled(latest) else latest

    def _back_off(self, reason: str) -> None:
        self._failures += 1
        if self._wait(self._backoff.seconds(self._failures), reason):
            raise errors.Interrupted(f"stopped while waiting for: {reason}")

    def _wait(self, seconds: float, reason: str) -> bool:
        """Say why, and wait; whether somebody asked to stop."""
        self._set_state(SessionState.BACKING_OFF, reason)
        words = f"waiting {format_duration(seconds)}: {reason}"
        self._context.emit(EventKind.BACKING_OFF, words, seconds=seconds, reason=reason)
        return self._context.stop.wait(seconds)

    def _end_for_money(self, experiment: Experiment | None, error: errors.SpendCapReached) -> Experiment | None:
        """End the session at its own cap, once a chain that is open has been confirmed."""
        self._check_any_proposal(error.what, error.hint)
        if experiment is None or not self._reason_to_confirm(error.what):
            raise errors.Interrupted(error.what, hint=error.hint) from error
        self._spent = str(error)
        return self._give_up_proposing(experiment, error.what)

    def _give_up_proposing(self, experiment: Experiment, reason: str) -> Experiment | None:
        unproposed = decide_failed_proposal(Label.ERROR, f"nothing was proposed: {reason}")
        return self._guarded(lambda: self._cycle.give_up(experiment, self._slot, unproposed), experiment)

    def _wait_for_money(self, error: errors.SpendCapReached) -> None:
        """At the day's cap wait, and look again now and then until the day is over."""
        now = self._context.clock.now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = min(CAP_LOOK_S, (midnight - now).total_seconds() + 1.0)
        if self._limits.max_seconds is not None:
            left = self._limits.max_seconds - self.active_seconds
            if left <= 0:
                raise errors.Interrupted(f"the time limit is reached while waiting for: {error.what}", hint=error.hint)
            seconds = min(seconds, left)
        if self._state != (SessionState.BACKING_OFF, error.what):
            self._context.emit(EventKind.BACKING_OFF, str(error), seconds=seconds, reason=error.what)
        self._set_state(SessionState.BACKING_OFF, error.what)
        if self._context.stop.wait(seconds):
            raise errors.Interrupted(f"stopped while waiting for: {error.what}")

    def _wait_for_policy(self) -> bool:
        """Wait, longer each time, for a policy that fails again and again, lest it uses up numbers; whether it did."""
        if self._unproposed < FAILED_PROPOSALS or self._waited_for_policy:
            return False
        self._waited_for_policy = True
        seconds = self._backoff.seconds(self._unproposed - FAILED_PROPOSALS + 1)
        if self._limits.max_seconds is not None:
            seconds = max(0.0, min(seconds, self._limits.max_seconds - self.active_seconds))
        reason = messages.decision_of(self.view.recent[-1]).reason
        self._wait(seconds, f"the policy failed {self._unproposed} times in a row: {reason}")
        return True

    # ------------------------------------------------------------------ stopping and pausing
    def _reason_to_stop(self) -> str:
        """Why to stop before the next experiment; empty to go on."""
        if self._context.stop.is_set():
            return self._context.stop.reason or "stopped"
        if self._spent:
            return self._spent
        if self.view.totals.experiments == 0:
            return ""  # a session that ends before its first result has failed: see _check_first_result
        limits = self._limits if self._context.ends_when_spent else replace(self._limits, max_usd=None)
        reached = limit_reached(
            limits,
            experiments=self.view.experiments,
            seconds=self.active_seconds + self._reserve(),
            usd=self.view.totals.usd,
        )
        if reached is None:
            return ""
        self._check_any_proposal(reached.reason)
        return reached.reason

    def _check_any_proposal(self, reached: str, hint: str = "") -> None:
        """A session that got no usable proposal at all has done nothing, whatever its limit says."""
        store, session_id = self._context.store, self._context.session_id
        if sum(store.label_counts(session_id).get(label.value, 0) for label in _UNUSABLE) < self.view.experiments:
            return
        proposed = [e for e in store.experiments(session_id) if not messages.is_baseline(e)]
        decided = [e for e in proposed if e.decision is not None]
        if any(e.commit is not None or e.runs or messages.decision_of(e).label not in _UNUSABLE for e in decided):
            return
        if decided:
            last = messages.decision_of(decided[-1]).reason
            what = f"none of {counted(len(decided), 'proposal')} could be used, the last: {last}"
        else:
            answers = store.answers(session_id, proposed[-1].number) if proposed else ()
            if not answers or not all(answer.error for answer in answers):
                return
            what = f"no answer could be used: {answers[-1].error}"
        raise errors.PolicyError(f"{reached}, but {what}", hint=hint or _SEE)

    def _check_first_result(self) -> None:
        """A time limit that passes before the first result ends the session at once."""
        limit = self._limits.max_seconds
        if limit is not None and self.view.totals.experiments == 0 and self.active_seconds >= limit:
            self._context.stop.request("time limit", now=True)
            self._slot.kill()
            what = f"the time limit of {format_duration(limit)} was reached before the baseline was measured"
            raise errors.LimitReached(what, hint="raise --max-time or lower --budget")

    def _wait_while_paused(self) -> bool:
        """Wait a moment when paused; whether it is paused."""
        if not self._context.stop.paused.is_set():
            return False
        if self._state is None or self._state[0] is not SessionState.PAUSED:
            self._context.emit(EventKind.PAUSED, "paused; `autoresearchd unpause` goes on")
        self._set_state(SessionState.PAUSED)
        self._context.stop.wait(1.0)
        return True

    def _set_state(self, state: SessionState, reason: str = "") -> None:
        if self._state == (state, reason):
            return
        if self._state is not None and self._state[0] is SessionState.PAUSED and state is SessionState.RUNNING:
            self._context.emit(EventKind.UNPAUSED, "going on")
        now, session_id = self._context.clock.now(), self._context.session_id
        try:
            self._context.store.set_state(session_id, state, now, pid=self._pid, reason=reason)
            self._state = (state, reason)
            self.waits("")
        except errors.EnvironmentFailure:
            self._state = None  # the store itself is what fails: said elsewhere, written when it is back
            self.waits(self._context.redactor.text(reason))

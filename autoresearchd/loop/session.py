"""Many experiments: until stopped, with pauses, with patience for failing surroundings, whatever one of them does."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from autoresearchd.domain import errors
from autoresearchd.domain.confirmation import ablates
from autoresearchd.domain.experiment import Decision, Experiment, Limits, limit_reached
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.ports import EventKind, RunHandle
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
from autoresearchd.policy.policy_names import OUTSIDE, TUNERS
from autoresearchd.workspace.files import PASSING

FATAL = (
    errors.BaselineError, errors.RepositoryError, errors.Interrupted, errors.LimitReached, errors.MissingCapability,
    errors.SessionLocked, errors.StoreDamaged,
)  # fmt: skip
"""No experiment is to blame for any of them, and none could be measured before it is fixed."""
FAULTS_BEFORE_GIVING_UP = 3
"""Unexpected exceptions in one experiment before it is recorded as a crash and the next one begins."""
CAP_LOOK_S = 600.0
"""How long at most to wait for the end of a day whose money is spent, before the cap is looked at again."""
PLACE_LOOK_S, LONG_WAIT_S = 10.0, 300.0
"""How long to wait before a place that somebody else uses is looked at again, and after how long it is told again."""
REFUSALS = 3
"""Times in a row that every model refuses for good before it is believed: a gateway that restarts may say so once."""
RESERVE, RESERVED_RUNS = 0.4, 7.25
"""Of a time limit: what is left at most for its end, and how many runs that is for: the last experiment, three pairs
(in sessions of 20 to 60 simulated runs two pairs end with a third less, five with a tenth less), and what lies between.
"""
AHEAD = 4
"""Experiments for each slot that may be under way or wait for earlier ones to be decided."""
TICK_S = 0.1
"""How long several slots are left alone between two looks at them."""
PROPOSAL_LOOK_S = 0.5
FAILED_PROPOSALS = 3
"""Proposals in a row that the policy itself failed to make before the loop waits between them."""
_SEE = "`autoresearchd show N --answers` has what was answered; another model may do better"
_SEE_COMMAND = "run it by hand in a copy of the task's folder: it has to end with exit code 0 and to change a file"
_SEE_SPACE = "`autoresearchd task space` lists what search and random may turn; other policies are not bound to it"
ASKING = (Phase.PROPOSING, Phase.MEASURED)
"""In which a policy is asked, in the latter to fix what failed."""
_UNUSABLE = frozenset({Label.ERROR, Label.MALFORMED_ANSWER, Label.ILLEGAL_EDIT, Label.NO_OP})


_NOTHING_LEFT = frozenset({Label.NO_OP, Label.DUPLICATE, Label.MALFORMED_ANSWER})


def _nothing_proposed(reason: str) -> Decision:
    return decide_failed_proposal(Label.ERROR, f"nothing was proposed: {reason}")


def _fruitless(e: Experiment) -> frozenset[Label]:
    """What an experiment without a run is labelled where its policy failed. A tuner says so once it has tried all."""
    own = e.proposal is not None and e.proposal.policy in TUNERS
    return _NOTHING_LEFT | {Label.ERROR} if own else frozenset({Label.ERROR})


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
    when results can no longer be compared. between: before each new experiment, given what tells that a limit leaves
    nothing for one; may raise EnvironmentFailure to hold it back. holds: whether ``between`` is to begin something
    long, beside which nothing may be under way. waits: with what is waited for while the store cannot be told, with
    nothing once it can. asked: all that is to be done is a confirmation. last_seen: see ``Slot``.
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
        last_seen: datetime | None = None,
    ) -> None:
        self._context, self._limits, self._backoff, self._pid = context, limits, backoff or Backoff(), pid
        self.ready: Callable[[], None] = lambda: None
        self.conditions: Callable[[], bool] = lambda: False
        self.between: Callable[[Callable[[], object]], None] = lambda enough: None
        self.holds: Callable[[], bool] = lambda: False
        self.waits: Callable[[str], None] = lambda reason: None
        self._before, self._started = active_seconds, context.clock.monotonic()
        self._last_seen = last_seen
        self._failures = self._refusals = self._unproposed = 0
        self._faults = Counter[int]()
        """Unexpected exceptions, by number of what they were in; of confirmations from -2 downwards."""
        self._taken = dict[int | None, tuple[str, float]]()
        """Who is at the place where an experiment is to run (None: a confirmation), and since when it waits for it."""
        self._waited_for_policy, self._reconciled = True, False
        self._conditions_checked = self._outdated = False
        self._state: tuple[SessionState, str] | None = None
        self._slots = context.slots
        self._free = list(range(self._slots))
        """Places where nothing runs."""
        self._under_way: dict[int, tuple[Experiment, Slot]] = {}
        self._test = Slot(self._started)
        """Of the confirmation that is open."""
        self._moved = self._unread = False
        """Whether anything came of the present turn; whether what is under way has yet to be read."""
        self._ended: list[RunHandle] = []
        """Runs that had ended and were still to be read when the session was to end for something else."""
        self._asked = asked
        self._confirming: int | None = None
        """Number of the confirmation that is open."""
        self._unconfirmed = -1
        """The tip whose confirmation failed for the daemon's own fault."""
        self._spent: errors.SpendCapReached | None = None
        """The session has no money left for a model; a confirmation needs none."""
        self._read()

    def _read(self) -> None:
        """The session as the store has it; nothing else is remembered."""
        view = SessionView(self._context)
        view.under_way = lambda: [e for e, _ in self._under_way.values()]
        self._cycle, self.view = Cycle(view), view  # both, or none where one fails
        self._stale = False
        """Whether the store has a decision that the view has not."""

    @property
    def active_seconds(self) -> float:
        """How long daemons of this session have been at work, over all restarts."""
        return self._before + self._context.clock.monotonic() - self._started

    def run(self) -> str:
        """Until stopped; why. Raises what ``FATAL`` has, and ModelsRefused; PolicyError: no proposal was usable."""
        while not self._reconciled:
            self._guarded(self._reconcile)
        self.ready()
        if self._asked is not None:
            for e, slot in list(self._under_way.values()):
                slot.stands = True  # no policy is asked for anything
                if e.phase is Phase.PROPOSING:
                    self._give_up_proposing(e.number, "only a confirmation was asked for")
        while (reason := self._turn()) is None:
            pass
        return reason

    def _turn(self) -> str | None:
        """Go on, or wait where the surroundings fail between two steps; why to end, None: go on."""
        try:
            return self._go_on()
        except errors.ModelsRefused:  # for good: see ``_guarded``
            raise
        except errors.EnvironmentFailure as error:
            self._back_off(str(error), None)
            return None

    def _go_on(self) -> str | None:
        """Begin what there is room for, and take what is under way a step further; why to end, None: go on."""
        self._moved = False
        stop = self._context.stop
        # A run of a confirmation that is under way is awaited, like one of an experiment.
        going = self._test.running is not None or stop.is_set()
        to_confirm = self._confirming is not None and (self._over() or not self._rests(self._test))
        if to_confirm and (going or not self._wait_while_paused()):
            self._guarded(self._confirm)
        for number in sorted(self._under_way):
            if number in self._under_way and not self._rests(self._under_way[number][1]):
                self._guarded(partial(self._step, number), number)
        if self._has_room() and (reason := self._begin()):
            return reason
        if self._slots > 1 and not self._moved:
            self._wait_for_any()
        return None

    def _rests(self, slot: Slot) -> bool:
        """Whether one of several runs goes on and need not be looked at: a step of each at each turn takes long."""
        stop, watched = self._context.stop, slot.watched
        if self._slots == 1 or slot.running is None or stop.is_set() or stop.now.is_set():
            return False
        if not self.view.totals.experiments or (watched and self._context.clock.monotonic() >= watched.next):
            return False
        try:
            return slot.running.handle.wait(0) is None
        except errors.AutoresearchdError:
            return False

    def _begin(self) -> str:
        """Begin an experiment or a confirmation, unless there is a reason not to; why to end, empty: go on."""
        if self._unread:  # a connection may have broken after the store had taken what was begun
            self._guarded(self._take_up)
            return ""
        reason, stop = self._reason_to_stop(), self._context.stop
        tests = bool(reason and self.view.open_keeps) and not self._over()  # what was kept, at the end
        if (not reason or tests) and not stop.is_set() and self._wait_while_paused():
            return ""
        ends = reason and not self._under_way and self._confirming is None
        waits = self._confirming is not None or (reason and not ends)
        if why := "" if waits else self._reason_to_confirm(reason):
            self._guarded(partial(self._confirm, why))
        elif ends:
            self._cycle.rest()
            return reason
        elif reason or self._asked is not None or self._must_empty():
            return ""
        elif not self._wait_for_policy() and not self._wait_for_proposal():
            self._guarded(self._open)
        return ""

    def _must_empty(self) -> bool:
        """Whether what is under way is to end before another experiment begins."""
        return (bool(self._under_way) or self._confirming is not None) and self.holds()

    def _has_room(self) -> bool:
        """Whether more may begin: what was left is ended first, a baseline decided, and nothing runs far ahead.

        A confirmation comes first where none of its runs is under way: git may not have followed its verdict yet.
        """
        if not self._free or (self._confirming is not None and self._test.running is None):
            return False
        if self._under_way and self._slots == 1:  # it has no place yet: looking for one failed
            return False
        if self._under_way and not any(map(self._context.executor.ready, self._free)):
            return False
        if not self._under_way:
            return True
        first, _ = self._under_way[min(self._under_way)]
        if self.view.needs_baseline or not self._conditions_checked or first.phase in (Phase.MEASURED, Phase.DECIDED):
            return False
        return len(self._under_way) < AHEAD * self._slots

    def _wait_for_any(self) -> None:
        if running := self._handles():
            running[0].wait(TICK_S)
        else:
            stop = self._context.stop
            (stop.now if stop.is_set() else stop).wait(TICK_S)  # what is set already lets nobody wait

    def _handles(self) -> list[RunHandle]:
        """All runs under way."""
        slots = (*(slot for _, slot in self._under_way.values()), self._test)
        return [slot.running.handle for slot in slots if slot.running is not None]

    def _running(self) -> list[RunHandle]:
        """Those of them that have not ended."""
        return [handle for handle in self._handles() if handle.wait(0.0) is None]

    def _reconcile(self) -> None:
        """What the last daemon left open. Nothing else is done before this has gone through once."""
        left = reconcile(self._context, self._cycle, self._started, self._last_seen)
        self._under_way = {e.number: (e, slot) for e, slot in left}
        found = self._context.store.open_confirmation_of(self._context.session_id)
        self._confirming = found.number if found else None
        self._reconciled = True

    def _open(self) -> None:
        """Begin an experiment."""
        stop = self._context.stop
        if not self._under_way:
            self._check_conditions()
        require_branch(self._context, {self.view.confirmed_commit})
        self.between(self._reached)
        if stop.is_set() or stop.paused.is_set() or self._reached():  # while a learner ran
            return
        slot = Slot(self._started)
        e = self._cycle.open(slot)
        self._under_way[e.number], self._moved = (e, slot), True
        self._take_place(slot)

    def _step(self, number: int) -> None:
        """Take an experiment a step further, or forget it once it is settled."""
        if self._unread:
            self._take_up()
        if self._stale:
            self._read()
        if number not in self._under_way:
            return
        e, slot = self._under_way[number]
        self._check_first_result()
        if self._context.stop.announce():
            say_that_it_stops(self._context, e)
        now = self._context.clock.monotonic()
        if e.phase is Phase.COMMITTED and not self._take_place(slot):
            slot.wait(True, now)
            return
        before, first = e, number == min(self._under_way)
        if self._spent and e.phase is Phase.PROPOSING and slot.given_up is None:
            slot.given_up = _nothing_proposed(self._spent.what)
        e = self._cycle.advance(e, slot, 1.0 if self._slots == 1 else 0.0, first=first)
        slot.wait(slot.waits, now)
        self._moved |= e is not before
        self._under_way[number] = e, slot
        settled = messages.is_settled(e)
        if slot.waits or settled:
            self._leave(slot)
        if settled:
            self._settled(e)

    def _settled(self, e: Experiment) -> None:
        del self._under_way[e.number], self._faults[e.number]
        if e.commit is not None:
            self._unproposed = 0
        elif not e.runs and messages.decision_of(e).label in _fruitless(e):  # the policy itself failed
            self._unproposed += 1
            self._waited_for_policy = False

    def _take_place(self, slot: Slot) -> bool:
        """Give it a place whose host answers, if it has none; whether it has one.

        Where none does and nothing runs, any: what is wrong with it is told then, and waited out.
        """
        ready = self._context.executor.ready
        if slot.number is not None and (self._slots == 1 or ready(slot.number)):
            return True
        self._leave(slot)
        busy = len(self._free) < self._slots
        found = next((place for place in self._free if ready(place)), None if busy or not self._free else self._free[0])
        if found is not None:
            self._free.remove(found)
        slot.number = found
        return found is not None

    def _leave(self, slot: Slot) -> None:
        """Its place is free for others."""
        if slot.number is not None:
            self._free = sorted((*self._free, slot.number))
        slot.number = None

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
            over = self._doubted() >= view.recent[-1].number or self._over()
            return "" if over else "stop" if stop.is_set() else "limit"
        if self._unproposed >= FAILED_PROPOSALS and due(view.open_keeps, view.undecided, every=0.0, runs=0, extra=0):
            return "idle"
        every, runs = self._context.task.scoring.confirm_every, view.totals.experiments + view.extra
        return "gain" if due(view.open_keeps, view.undecided, every=every, runs=runs, extra=view.extra) else ""

    def _confirm(self, why: str = "") -> None:
        """Begin a confirmation, or take the open one a step further."""
        context, cycle = self._context, self._cycle.confirming
        if self._asked is None:  # else nothing is to change but by its verdict
            if self._under_way and not self._conditions_checked:
                return
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
            if self._asked is not None and self._asked.experiment is None:
                of_tip = replace(self._asked, experiment=self.view.tip.number)
                self._asked = of_tip if of_tip.is_answered_by(c) else self._asked
            if context.stop.announce():
                say_that_it_stops(context, self.view.experiment(c.experiment), confirming=True)
            if context.stop.now.is_set() and self._test.running is None:
                what = f"the confirmation of experiment {c.experiment}"
                raise errors.Interrupted(messages.interrupted(context.tag, what))
            over = self._over() if self._asked is None else ""
            words = f"{over} is reached after {counted(len(c.runs), 'run')}" if over else ""
            if not over and self._test.running is None and not self._take_place(self._test):
                return
            before, patience, asked = c, 1.0 if self._slots == 1 else 0.0, self._asked
            program = asked.program if asked is not None and asked.is_answered_by(c) else None
            c = cycle.advance(c, self._test, patience, over=words, program=program)
            self._moved |= c is not before and c != before
        if c.verdict is not None:
            self._leave(self._test)
            self._moved = True
            if c.fell:
                self._read()  # what turns remember of the chain is wrong now
            answered = self._asked is not None and self._asked.is_answered_by(c)
            if self._asked is not None and answered:  # where it fails this is come back to, and nothing is run again
                self._asked = None if context.stop.is_set() else self._asked.following()
            self._confirming = None
            if answered and self._asked is None:
                what = "ablation" if ablates(c.why) else f"confirmation of experiment {c.experiment}"
                self._end_asked(f"the {what} is done, as asked")
            self._cycle.write_learnings()

    def _end_asked(self, reason: str) -> None:
        self._asked, self._unconfirmed = None, self.view.tip.number
        self._context.stop.end(reason)

    def _give_up_confirming(self, reason: str) -> None:
        c = self._context.store.open_confirmation_of(self._context.session_id)
        self._test.kill()
        self._leave(self._test)
        if c is not None:
            self._cycle.confirming.give_up(c, reason)
        self._confirming, self._unconfirmed = None, self.view.tip.number
        if self._asked is not None:
            self._end_asked(reason)

    def _doubted(self) -> int:
        """The newest experiment when a confirmation last decided nothing, by the journal: a restart asks the same."""
        return self.view.undecided[-1] if self.view.undecided else -1

    def _over(self) -> str:
        """Which limit leaves nothing for runs, empty: none; money does so where machines are rented."""
        time, money = self._limits.max_seconds, self._limits.max_usd
        if time is not None and self.active_seconds >= time:
            return "the time limit"
        return "the spend limit" if money is not None and self._context.rate() and self._usd >= money else ""

    @property
    def _usd(self) -> float:
        """US dollars. Rented machines cost while nothing is decided, too."""
        totals = self.view.totals
        if self._context.rate():
            with contextlib.suppress(errors.EnvironmentFailure):  # a limit holds where the store is away, too
                totals = self._context.store.totals(self._context.session_id)
        return totals.usd

    def _reserve(self, limit: float | None, rate: float = 1.0) -> float:
        """What of a limit is to be left for the confirmation at the end of a session. rate: what a second takes."""
        view = self.view
        if limit is None or view.needs_baseline or not view.open_keeps or self._doubted() >= view.tip.number:
            return 0.0  # what is left after a confirmation that decided nothing is for experiments
        runs = (*view.tip.good_runs, *view.confirmed.good_runs)
        return min(RESERVE * limit, RESERVED_RUNS * max((run.duration_s for run in runs), default=0.0) * rate)

    def _time_left(self) -> tuple[float, float]:
        """Seconds until the time limit, and until only what is reserved of it is left."""
        limit = self._limits.max_seconds if self._asked is None else None
        left = math.inf if limit is None else limit - self.active_seconds
        return left, left - self._reserve(limit)

    # ------------------------------------------------------------------ failures
    def _guarded(self, step: Callable[[], None], number: int | None = None) -> None:
        """Do a step of an experiment, or another; failures of the surroundings are waited out, others recorded."""
        try:
            step()
        except errors.Interrupted as error:
            if not self._context.stop.is_set():
                raise
            self._end(number, error)
        except errors.DataMissing as error:
            if not self.view.totals.experiments:
                raise
            self._back_off(str(error), number)
            self._reload()
        except FATAL:
            raise
        except errors.SpendCapReached as error:
            if error.whole_session:
                self._end_for_money(number, error)
            else:
                self._wait_for_money(error, number)
                self._reload()
        except errors.PlaceTaken as error:
            self._wait_for_place(error, number)
            self._reload()
        except errors.EnvironmentFailure as error:
            self._refusals = self._refusals + 1 if isinstance(error, errors.ModelsRefused) else 0
            if self._refusals >= REFUSALS:
                raise
            self._back_off(str(error), number)
            self._reload()
        except Exception as error:  # noqa: BLE001 one experiment must not end the session: recorded with its traceback
            if not isinstance(error, OSError) or error.errno not in PASSING:
                self._record_fault(number, error)
            else:
                self._back_off(f"{error.strerror}: {error.filename or 'the disk'}", number)  # it can show anywhere
                self._reload()
        else:
            self._taken.pop(number, None)
            # Not where a question or a run only begins once more: what it failed of may be there still.
            e, slot = self._under_way.get(-1 if number is None else number, (None, self._test))
            asks = e is not None and (e.phase is Phase.PROPOSING or slot.asked is not None)
            asks = asks or (step == self._open and len(self._under_way) > 1)
            begun = asks or (e is not None and (e.phase in (Phase.COMMITTED, Phase.RUNNING) or slot.waits))
            begun = begun or (e is None and self._confirming is not None and slot.number is None)
            if not begun and slot.running is None:
                self._failures = self._refusals = 0
            state, stop = self._state[0] if self._state else None, self._context.stop
            paused = state is SessionState.PAUSED and stop.paused.is_set() and not stop.is_set()
            if not paused and not (asks and state is SessionState.BACKING_OFF):
                self._set_state(SessionState.RUNNING)

    def _record_fault(self, experiment: int | None, error: Exception) -> None:
        confirms = self._confirming is not None or self._asked is not None
        number = experiment if experiment is not None else -2 - (self._confirming or 0) if confirms else -1
        self._faults[number] += 1
        count = self._faults[number]
        what = f"{type(error).__name__}: {error}"
        trace = str(error) if isinstance(error, errors.AutoresearchdError) else traceback.format_exc()
        self._context.emit(EventKind.FAULT, what, experiment=experiment, traceback=trace)
        self._back_off(what, experiment)
        self._reload()
        if number < -1 and count % FAULTS_BEFORE_GIVING_UP == 0:  # and not at once where giving up fails as well
            self._guarded(lambda: self._give_up_confirming(f"the daemon failed {count} times at it: {what}"))
        e, slot = self._under_way.get(number, (None, None))
        if e is not None and slot is not None and count >= FAULTS_BEFORE_GIVING_UP and e.decision is None:
            reason = f"the daemon failed {count} times at this experiment: {what}"
            if self.view.needs_baseline:
                raise errors.BaselineError(reason, hint="daemon.log has the traceback") from error
            slot.given_up = Decision(Status.CRASH, Label.ERROR, reason=reason)
            self._guarded(partial(self._step, number), number)

    def _reload(self) -> None:
        with contextlib.suppress(errors.AutoresearchdError):
            self._take_up()

    def _take_up(self) -> None:
        """What is under way as the store has it; nothing is begun before it was read."""
        self._unread = True
        found = self._context.store.unsettled(self._context.session_id)
        self._unread = False
        before, self._under_way = self._under_way, {}
        for e in found:
            known, slot = before.pop(e.number, (None, Slot(self._started)))
            if e.decision is not None and (known is None or known.decision is None):
                self._stale = True  # it failed between the decision and taking it in
            self._under_way[e.number] = e, slot
        for _, slot in before.values():  # they were settled
            self._leave(slot)

    def _end(self, number: int | None, error: errors.Interrupted) -> bool:
        """End the session, as it was asked to stop or is at a limit, unless that would cut off what goes on beside.

        Then that is finished first, and what was kept is confirmed; about this experiment no policy is asked any more,
        and True is returned where it can go on at once without.
        """
        if self._context.stop.now.is_set():
            raise error
        beside = self._confirming is not None or len(self._under_way) > 1
        if number in self._under_way and beside and self._ask_no_more(number, error.what):
            return True
        running, known = self._running(), self._ended
        self._ended = [handle for handle in self._handles() if handle not in running]
        # Else others wait for their own surroundings, or for this experiment.
        if not self._moved and not running and all(handle in known for handle in self._ended):
            raise error
        return False

    def _back_off(self, reason: str, number: int | None) -> None:
        self._failures += 1
        # At its limit a session tries once more: it may only be that a result could not be written down at once.
        seconds, again = self._backoff.seconds(self._failures), self._failures > 1
        self._hold(number, seconds, reason, f"waiting for: {reason}", limited=again)

    def _wait_for_place(self, error: errors.PlaceTaken, number: int | None) -> None:
        """Wait until a place may be free; somebody may be there all night, so this is said once for each of them.

        And once more when it has become long: a user is notified of that.
        """
        now, (who, since) = self._context.clock.monotonic(), self._taken.get(number, ("", 0.0))
        known = who == str(error)
        since = since if known else now
        if now - since >= LONG_WAIT_S:
            words = f"waiting for {format_duration(now - since)} until it is free: {error}"
            self._context.emit(EventKind.BACKING_OFF, words, seconds=now - since, reason=str(error))
            since = math.inf  # it is told
        self._taken[number] = str(error), since
        words = "" if known else f"waiting until it is free: {error}"
        self._hold(number, PLACE_LOOK_S, str(error), f"waiting: {error.what}", words, hint=error.hint)

    def _hold(
        self, number: int | None, seconds: float, reason: str, waiting: str, words: str | None = None,
        *, hint: str = "", limited: bool = True, **more: bool,
    ) -> None:  # fmt: skip
        """Wait; end the session where somebody asks for it meanwhile, or once an experiment has no time left.

        What was kept is confirmed before, and where a user asks for it: no policy is needed for that. waiting: what it
        does, in words for its end. limited: whether a limit holds yet. Else see ``_wait``.
        """
        left, spare = self._time_left()
        asks = number not in self._under_way or self._under_way[number][0].phase in ASKING
        if limited and number in self._under_way:
            confirms = asks and self.view.open_keeps and (spare <= 0 or self._context.stop.confirm.is_set())
            over = errors.Interrupted(f"the time limit is reached while {waiting}", hint=hint, limit=True)
            if left > 0 and confirms and self._ask_no_more(number, reason):
                return
            # Before the first result, see _check_first_result.
            if left <= 0 and self.view.totals.experiments and self._end(number, over):
                return
        if left > 0:
            seconds = min(seconds, spare if asks and spare > 0 else left)
        if self._wait(seconds, reason, words, **more):
            self._end(number, errors.Interrupted(f"stopped while {waiting}"))

    def _wait(self, seconds: float, reason: str, words: str | None = None, **more: bool) -> bool:
        """Say why, and wait, at most until another slot's run ends; whether somebody asked to stop.

        Who asks for it while other slots' runs go on, which are finished, does not cut it short.
        words: how; empty: not. more: that the event has.
        """
        self._set_state(SessionState.BACKING_OFF, reason)
        words = f"waiting {format_duration(seconds)}: {reason}" if words is None else words
        if words:
            self._context.emit(EventKind.BACKING_OFF, words, seconds=seconds, reason=reason, **more)
        running, stop = self._running(), self._context.stop
        began = self._context.clock.monotonic()
        ends = began + seconds
        while (left := ends - self._context.clock.monotonic()) > 0 and all(h.wait(0.0) is None for h in running):
            awaited = stop.now if running and stop.is_set() else stop
            if awaited.wait(min(left, TICK_S) if running else left) and (not running or stop.now.is_set()):
                break
        self._count_wait(began)
        return stop.is_set()

    def _count_wait(self, began: float) -> None:
        """What was waited for by all that does not run is no overhead of the daemon's."""
        for _, slot in self._under_way.values():
            if slot.running is None and slot.waiting is None:
                slot.jobs_s += self._context.clock.monotonic() - began

    def _end_for_money(self, number: int | None, error: errors.SpendCapReached) -> None:
        """End the session at its own cap, once what is under way is decided and a chain that is open is confirmed."""
        self._check_any_proposal(error.what, error.hint, number)
        if number is None or (len(self._under_way) == 1 and not self._reason_to_confirm(error.what)):
            raise errors.Interrupted(error.what, hint=error.hint, limit=True) from error
        self._spent = error
        self._give_up_proposing(number, error.what)

    def _ask_no_more(self, number: int, reason: str) -> bool:
        """Have an experiment go on without its policy: it is decided in its turn. Whether that is new."""
        e, slot = self._under_way[number]
        if e.phase is Phase.PROPOSING:
            slot.given_up = _nothing_proposed(reason)
        before, slot.stands = slot.stands, True
        return not before

    def _give_up_proposing(self, number: int, reason: str) -> None:
        """Decide on an experiment that gets no proposal, in its turn."""
        self._ask_no_more(number, reason)
        self._guarded(partial(self._step, number), number)

    def _wait_for_money(self, error: errors.SpendCapReached, number: int | None) -> None:
        """At the day's cap wait, and look again now and then until the day is over."""
        now = self._context.clock.now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = min(CAP_LOOK_S, (midnight - now).total_seconds() + 1.0)
        words = "" if self._state == (SessionState.BACKING_OFF, error.what) else str(error)
        self._hold(number, seconds, error.what, f"waiting for: {error.what}", words, hint=error.hint, limit=True)

    def _wait_for_policy(self) -> bool:
        """Wait, longer each time, for a policy that fails again and again, lest it uses up numbers; whether it did."""
        if self._unproposed < FAILED_PROPOSALS or self._waited_for_policy:
            return False
        self._waited_for_policy = True
        seconds = min(self._backoff.seconds(self._unproposed - FAILED_PROPOSALS + 1), max(0.0, self._time_left()[1]))
        reason = messages.decision_of(self.view.recent[-1]).reason
        self._wait(seconds, f"the policy failed {self._unproposed} times in a row: {reason}")
        return True

    def _wait_for_proposal(self) -> bool:
        """Wait a moment where all proposals come from outside and none is there; whether it did."""
        context = self._context
        if context.policy.name != OUTSIDE or self.view.needs_baseline:
            return False
        if context.store.waiting_suggestions(context.session_id):
            return False
        self._set_state(SessionState.RUNNING, "waiting for a proposal from outside")
        if not self._under_way:
            context.stop.wait(PROPOSAL_LOOK_S)
        return True

    # ------------------------------------------------------------------ stopping and pausing
    def _reason_to_stop(self) -> str:
        """Why to stop before the next experiment; empty to go on."""
        if self._context.stop.is_set():
            return self._context.stop.reason or "stopped"
        if self._spent is not None:
            self._check_any_proposal(self._spent.what, self._spent.hint)
            return str(self._spent)
        if reached := self._reached():
            self._check_any_proposal(reached)
        return reached

    def _reached(self) -> str:
        """Which limit leaves nothing for another experiment; empty: none."""
        if self.view.totals.experiments == 0:
            return ""  # a session that ends before its first result has failed: see _check_first_result
        limits = self._limits if self._context.ends_when_spent else replace(self._limits, max_usd=None)
        reached = limit_reached(
            limits,
            experiments=self.view.experiments + len(self._under_way),
            seconds=self.active_seconds + self._reserve(limits.max_seconds),
            usd=self._usd + self._reserve(limits.max_usd, self._context.rate() / 3600),
        )
        return "" if reached is None else reached.reason

    def _check_any_proposal(self, reached: str, hint: str = "", number: int | None = None) -> None:
        """A session that got no usable proposal at all has done nothing, whatever its limit says.

        What else than ``number`` is under way may be the first that is of use; then this is asked again.
        """
        store, session_id, others = self._context.store, self._context.session_id, self._under_way.keys() - {number}
        if others or sum(self.view.labels[label.value] for label in _UNUSABLE) < self.view.experiments:
            return
        proposed = [e for e in store.experiments(session_id) if not messages.is_baseline(e)]
        if any(e.commit or (e.decision and e.decision.label not in _UNUSABLE) for e in proposed):
            return
        decided = [e for e in proposed if e.decision is not None]
        if decided:
            last = messages.decision_of(decided[-1]).reason
            what = f"none of {counted(len(decided), 'proposal')} could be used, the last: {last}"
        else:
            answers = store.answers(session_id, proposed[-1].number) if proposed else ()
            if not answers or not all(answer.error for answer in answers):
                return
            what = f"no answer could be used: {answers[-1].error}"
        by = self._context.policy.name
        see = _SEE_SPACE if by in TUNERS else _SEE_COMMAND if by.startswith("command:") else _SEE
        raise errors.PolicyError(f"{reached}, but {what}", hint=hint or see)

    def _check_first_result(self) -> None:
        """A limit that is reached before the first result ends the session at once."""
        if self.view.totals.experiments or not (over := self._over()):
            return
        self._context.stop.request(over, now=True)
        for _, slot in self._under_way.values():
            slot.kill()
        more = "--max-time" if "time" in over else "--max-cost"
        most = format_duration(self._limits.max_seconds or 0.0) if "time" in over else f"{self._limits.max_usd:g} USD"
        what = f"{over} of {most} was reached before the baseline was measured"
        raise errors.LimitReached(what, hint=f"raise {more} or lower --budget")

    def _wait_while_paused(self) -> bool:
        """Wait a moment when paused; whether it is paused."""
        if not self._context.stop.paused.is_set():
            return False
        if self._state is None or self._state[0] is not SessionState.PAUSED:
            self._context.emit(EventKind.PAUSED, "paused; `autoresearchd unpause` goes on")
        self._set_state(SessionState.PAUSED)
        if not self._under_way:
            began = self._context.clock.monotonic()
            self._context.stop.wait(1.0)
            self._before -= self._context.clock.monotonic() - began  # a pause uses up no time of the session's
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

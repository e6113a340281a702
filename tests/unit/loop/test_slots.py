"""Several slots: as many runs at once, decided in order; an edit whose parent is no longer the tip is tried on it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import (
    EnvironmentFailure,
    Interrupted,
    ModelsRefused,
    PolicyError,
    SpendCapReached,
)
from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Outcome, Phase, Status
from autoresearchd.domain.ports import Cancel, EventKind, ResearchState, RunRequest
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.loop.confirming import Asked
from autoresearchd.loop.context import Context, StopSwitch
from autoresearchd.loop.session import Backoff, SessionLoop
from tests.fakes.bench import TASK, Bench, Doom, Forward, Killed, Passing, Writing, program_of, run_until_killed
from tests.fakes.executors import FakeExecutor, FakeHandle, Script, prints

PROGRAM = "A = 0\nB = 0\nC = 0\nD = 0\nE = 0\nF = 0\n"


class Tuning:
    """Raises one constant after the other by one; what it proposes follows from the number alone."""

    name, repairs, names = "scripted", 0, "ABCDEF"

    def __init__(self) -> None:
        self.seen: list[ResearchState] = []

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.seen.append(state)
        name = self.names[state.number % len(self.names)]
        text = re.sub(rf"{name} = (\d+)", lambda m: f"{name} = {int(m[1]) + 1}", state.code["train.py"])
        words = f"{name} once more"
        return Proposal({"train.py": text}, words, self.name, description=words, changes={name: state.number})


def worth(text: str) -> float:
    """Each constant is worth a whole σ times ten, once; more of it harms."""
    return sum(1.0 if int(v) == 1 else -abs(int(v)) for v in re.findall(r"= (\d+)", text) if int(v))


class Slots(Bench):
    """length: for how many looks a run goes on. worth: by how much a program is better than none."""

    def __init__(self, folder: Path, slots: int, task: str = TASK, program: str = PROGRAM) -> None:
        super().__init__(folder, task.replace("stdout}", "stdout, confirm_every: 1000}"), program)
        self.slots, self.policy = slots, Tuning()
        self.length: Callable[[RunRequest], int] = lambda request: 1 + 7 * int(request.key.split("/")[1]) % 5
        self.job, self.worth = self.scored, worth
        self.executors: list[FakeExecutor] = []

    def scored(self, request: RunRequest) -> Script:
        score = 10.0 - self.worth(program_of(request)) + (request.seed % 7) * 0.02
        return Script(pieces=[*[""] * (self.length(request) - 1), f"score: {score:.6f}\n"])

    def laboratory(self, wrap: Callable[[Any], Any] = lambda port: port) -> Context:
        lab = super().laboratory(wrap)
        self.executors.append(FakeExecutor(self.job, slots=self.slots))
        return replace(lab, executor=wrap(self.executors[-1]))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Slots]]:
    """Makes sessions, which are closed at the end."""
    numbers = count()

    def made(slots: int, kind: type[Slots] = Slots, **more: str) -> Slots:
        return opened.enter_context(closing(kind(tmp_path / str(next(numbers)), slots, **more)))

    with ExitStack() as opened:
        yield made


def check(bench: Slots, count: int) -> None:
    """Nothing lost or doubled; decided in order, of which git and the program tell the same."""
    found = bench.experiments()
    assert [e.number for e in found] == list(range(count + 1)), "no gap, no double"
    assert all(e.phase is Phase.DECIDED and e.decision and e.overhead_ms is not None for e in found)
    ends = [e.finished_at for e in found if e.finished_at]
    assert ends == sorted(ends), "decided in order of number"
    assert all(
        len(e.good_runs) == (3 if e.number == 0 else 1) for e in found if e.decision.label is not Label.DUPLICATE
    )
    session = bench.store.session("t")
    kept = [e for e in found if e.decision and e.decision.status is Status.KEEP]
    assert session.incumbent == kept[-1].commit == bench.workspace().tip()
    assert bench.workspace().confirmed() == session.confirmed


@pytest.mark.parametrize("slots", [2, 4])
def test_as_many_experiments_run_at_once_as_there_are_slots(make: Callable[..., Slots], slots: int) -> None:
    bench = make(slots)
    running: Counter[int] = Counter()
    most, scored = [0], bench.scored

    def watched(request: RunRequest) -> Script:
        script = scored(request)
        running[request.slot] += 1
        busy = sum(handle._result is None for handle in bench.executors[-1].handles)
        most[0] = max(most[0], busy + 1)
        return script

    bench.job = watched
    bench.run(12)
    check(bench, 12)
    assert most[0] == slots and set(running) == set(range(slots)), "all places are used, none twice at once"
    assert any(len(state.under_way) == slots - 1 for state in bench.policy.seen), "a policy is told what is under way"


def test_waiting_for_earlier_decisions_is_no_overhead(make: Callable[..., Slots]) -> None:
    """Else the daemon looks slow where it only keeps the order: a run of a minute waits for one of two minutes."""

    class Timed(Slots):
        def laboratory(self, wrap: Callable[[Any], Any] = lambda port: port) -> Context:
            return replace(super().laboratory(wrap), clock=clock)

    def scored(request: RunRequest) -> Script:
        script, first = usual(request), request.key.split("/")[1] == "1"
        return replace(script, passing=minutes) if first else script

    def minutes() -> None:
        clock.passed += 60.0

    clock, bench = Passing(), make(2, Timed)
    usual, bench.job, bench.length = bench.scored, scored, lambda request: 40 if "/1/" in f"{request.key}/" else 2
    bench.run(3)
    long, *waited = [e.overhead_ms or 0.0 for e in bench.experiments()[1:]]
    assert clock.passed > 600 and long > 600_000, "its run says that it took a second"
    assert min(waited) < 300_000, waited


def test_a_run_under_way_is_looked_after_while_money_is_waited_for(make: Callable[..., Slots]) -> None:
    """At a day's cap each wait is of ten minutes, and a run may end in them."""

    class Spent(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.under_way:
                raise SpendCapReached("the cap of the day is reached", whole_session=False)
            return super().propose(state, cancel)

    class Watched(StopSwitch):
        def wait(self, timeout: float | None = None) -> bool:
            if any(handle._result is None for handle in bench.executors[-1].handles):
                waits.append(timeout or 0.0)
            clock.passed += timeout or 0.0
            return self.is_set()

    clock, bench, waits = Passing(), make(2), list[float]()
    bench.policy = Spent()
    bench.loop(4, replace(bench.laboratory(), clock=clock, stop=Watched())).run()
    check(bench, 4)
    assert waits and max(waits) < 1.0


class Tripping(Tuning):
    """Raises an error each time that it is asked for some experiments; ends the test where that goes on and on."""

    def __init__(self, error: Exception, *numbers: int, most: int = 40) -> None:
        super().__init__()
        self.error, self.numbers, self.left = error, numbers, most

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if state.number not in self.numbers:
            return super().propose(state, cancel)
        self.left -= 1
        if not self.left:
            raise Killed
        raise self.error


def test_two_experiments_that_always_fail_are_both_given_up(make: Callable[..., Slots]) -> None:
    """Else each of them makes the faults of the other be forgotten, all night."""
    bench = make(2)
    bench.policy = Tripping(ZeroDivisionError("a bug"), 1, 2)
    bench.run(4)
    labels = [e.decision and e.decision.label for e in bench.experiments()]
    assert labels[1:3] == [Label.ERROR] * 2 and all(e.good_runs for e in bench.experiments()[3:])
    assert [e.phase for e in bench.experiments()] == [Phase.DECIDED] * 5


def backed_off(bench: Slots) -> list[float]:
    return [event.data["seconds"] for event in bench.events.events if event.kind is EventKind.BACKING_OFF]


@pytest.mark.parametrize("slots", [2, 4])
def test_waits_for_a_server_that_stays_down_grow(make: Callable[..., Slots], slots: int) -> None:
    bench = make(slots)
    bench.policy = Tripping(EnvironmentFailure("the server is down"), *range(1, 99), most=6)
    with pytest.raises(Killed):
        bench.loop(4, backoff=Backoff(first=0.01, most=0.08)).run()
    assert backed_off(bench) == [0.01, 0.02, 0.04, 0.08, 0.08]


@pytest.mark.parametrize("slots", [2, 4])
def test_models_that_refuse_for_good_end_a_session(make: Callable[..., Slots], slots: int) -> None:
    bench = make(slots)
    bench.policy = Tripping(ModelsRefused("the key was refused"), *range(1, 99))
    with pytest.raises(ModelsRefused):
        bench.run(4)
    assert bench.policy.left == 40 - 3, "after three refusals"


def resumed(bench: Slots, error: Exception) -> tuple[SessionLoop, Passing]:
    """A daemon of two minutes that finds a confirmation open, and a question in each place that its policy fails at."""
    bench.run(3)
    view, now, clock = bench.loop(3).view, datetime.now(UTC), Passing()
    bench.store.open_confirmation(bench.session.id, experiment=3, against=view.confirmed.number, why="gain", at=now)
    for _ in range(bench.slots):
        bench.store.open_experiment(bench.session.id, parent=view.tip_commit, segment=view.segment, at=now)
    bench.policy = Tripping(error, *range(1, 99))
    lab = replace(bench.laboratory(), clock=clock, stop=Forward(clock))
    return bench.loop(None, lab, backoff=Backoff(first=5.0), max_seconds=120.0), clock


def test_a_time_limit_holds_where_a_confirmation_waits_for_questions_that_fail(make: Callable[..., Slots]) -> None:
    """Else each look at it makes the failures be forgotten, all night."""
    bench = make(2)
    loop, clock = resumed(bench, EnvironmentFailure("the server is down"))
    assert "time limit" in loop.run()
    assert 120.0 <= clock.passed < 121.0 and backed_off(bench)[:4] == [5.0, 10.0, 20.0, 40.0]
    assert all(c.verdict for c in bench.store.confirmations(bench.session.id))


def test_models_that_refuse_for_good_end_a_session_whose_confirmation_waits(make: Callable[..., Slots]) -> None:
    loop, _ = resumed(make(2), ModelsRefused("the key was refused"))
    with pytest.raises(ModelsRefused):
        loop.run()


def test_a_cap_of_the_day_that_is_waited_for_is_told_once(make: Callable[..., Slots]) -> None:
    bench, clock = make(2), Passing()
    spent = SpendCapReached("the cap of the day is reached", whole_session=False)
    bench.policy = Tripping(spent, *range(1, 99), most=6)
    with pytest.raises(Killed):
        bench.loop(4, replace(bench.laboratory(), clock=clock, stop=Forward(clock))).run()
    assert len(backed_off(bench)) == 1


@pytest.mark.parametrize(
    ("most", "reason"), [(3, "3 experiments done, as asked"), (None, "the cap is reached\n  → raise it")]
)
def test_a_limit_reached_beside_the_first_usable_proposal_lets_it_be_measured(
    make: Callable[..., Slots], most: int | None, reason: str
) -> None:
    """Else `none of 2 proposals could be used` throws its run away, and the night says that it has failed."""

    class Rare(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.number < 3:
                raise PolicyError("no block was found", label=Label.MALFORMED_ANSWER)
            if state.number > 3:
                raise SpendCapReached("the cap is reached", whole_session=True, hint="raise it")
            return super().propose(state, cancel)

    bench = make(2)
    bench.policy, bench.length = Rare(), lambda request: 40
    assert bench.loop(most).run() == reason
    assert bench.experiment(3).good_runs and bench.experiment(3).decision


def test_a_cap_that_is_reached_before_any_usable_proposal_is_no_success_in_several_slots(
    make: Callable[..., Slots],
) -> None:
    class Useless(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.number > 2:
                raise SpendCapReached("the cap is reached", whole_session=True, hint="raise it")
            raise PolicyError("no block was found", label=Label.MALFORMED_ANSWER)

    bench = make(2)
    bench.policy = Useless()
    with pytest.raises(PolicyError, match=r"^the cap is reached, but none of .* could be used") as raised:
        bench.run(None)
    assert raised.value.hint == "raise it"


def stopping(bench: Slots, error: Exception) -> Context:
    """A laboratory that is asked to stop while experiment 1 runs; then its policy raises an error for experiment 2."""

    class Stopping(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.number > 1:
                lab.stop.request("enough")
                raise error
            return super().propose(state, cancel)

    lab = replace(bench.laboratory(), policy=Stopping())
    return lab


@pytest.mark.parametrize("error", [Interrupted("not asked"), EnvironmentFailure("down"), ZeroDivisionError("a bug")])
def test_stop_finishes_what_runs_beside_a_question_and_tests_it(make: Callable[..., Slots], error: Exception) -> None:
    """Else `stop` throws away a run of an hour as soon as another experiment waits for a model."""
    bench = make(2)
    bench.length = lambda request: 40
    assert bench.loop(None, stopping(bench, error)).run() == "enough"
    _, first, second = bench.experiments()
    assert [run.label for run in first.current_runs] == [Label.NONE] and first.decision
    assert second.decision and "nothing was proposed" in second.decision.reason
    [c] = bench.store.confirmations(bench.session.id)
    assert (c.why, c.experiment, c.verdict and c.verdict.outcome) == ("stop", 1, Outcome.CONFIRMED)


def test_stop_finishes_a_confirmation_beside_a_question(make: Callable[..., Slots]) -> None:
    class Stopping(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if lab.stop.is_set() or bench.store.open_confirmation_of(bench.session.id):
                lab.stop.end("enough")
                raise Interrupted("not asked")
            return super().propose(state, cancel)

    bench = make(3)
    bench.task = replace(bench.task, scoring=replace(bench.task.scoring, confirm_every=20.0))
    lab = replace(bench.laboratory(), policy=Stopping())
    assert bench.loop(None, lab).run() == "enough"
    found = bench.store.confirmations(bench.session.id)
    assert found and all(c.verdict and c.verdict.outcome is Outcome.CONFIRMED for c in found)
    assert {run.label for c in found for run in c.runs} == {Label.NONE}
    assert all(e.phase is Phase.DECIDED for e in bench.experiments())


def test_an_answer_is_waited_for_without_a_busy_loop_once_it_is_to_stop(make: Callable[..., Slots]) -> None:
    waited = threading.Event()

    class Now(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.set()
            return self.is_set()

    class Slow(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            lab.stop.end("enough")
            assert waited.wait(60.0), "the loop does not pause between two looks"
            return super().propose(state, cancel)

    bench = make(2)
    lab = replace(bench.laboratory(), policy=Slow())
    lab.stop.now = Now()
    assert bench.loop(None, lab).run() == "enough"
    assert not list(bench.messages(EventKind.FAULT)) and bench.experiment(1).good_runs


def test_stop_waits_for_what_runs_and_not_for_a_place_that_fails(make: Callable[..., Slots]) -> None:
    class Lame(FakeExecutor):
        def require(self, slot: int) -> None:
            if any(request.key.startswith("t/1/") for request in self.requests):
                lab.stop.end("enough")
                raise EnvironmentFailure("the host is away")

    bench = make(2)
    bench.length = lambda request: 20
    lab = replace(bench.laboratory(), executor=Lame(bench.job, slots=2))
    with pytest.raises(Interrupted, match="while waiting for: the host is away"):
        bench.loop(None, lab).run()
    _, first, second, *_ = bench.experiments()
    assert first.decision and [run.label for run in first.current_runs] == [Label.NONE]
    assert second.decision is None and second.commit, "it stays open for `resume`"
    bench.run(3)
    check(bench, 3)


def test_a_time_limit_that_ends_a_wait_finishes_what_runs_beside_it(make: Callable[..., Slots]) -> None:
    class Spent(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.number > 1:
                clock.passed += 9 * 3600.0
                raise SpendCapReached("the cap of the day is reached", whole_session=False)
            return super().propose(state, cancel)

    clock, bench = Passing(), make(2)
    bench.policy, bench.length = Spent(), lambda request: 40
    reason = bench.loop(None, replace(bench.laboratory(), clock=clock), max_seconds=8 * 3600.0).run()
    assert "time limit" in reason
    _, first, second = bench.experiments()
    assert [run.label for run in first.current_runs] == [Label.NONE] and first.decision
    assert second.decision and "the cap of the day is reached" in second.decision.reason


def test_a_learner_that_is_due_begins_once_nothing_is_under_way(make: Callable[..., Slots]) -> None:
    """Else runs are measured beside it, on the same device, and nobody looks after them for hours."""
    bench, learned = make(3), list[int]()

    def due() -> bool:
        return len(bench.experiments()) == 5 and not learned

    def between(enough: Callable[[], object]) -> None:
        if due():
            learned.append(sum(e.overhead_ms is None for e in bench.experiments()))

    loop = bench.loop(8)
    loop.holds, loop.between = due, between
    loop.run()
    check(bench, 8)
    assert learned == [0]


def test_no_more_experiments_than_asked_for_and_none_is_left_open(make: Callable[..., Slots]) -> None:
    bench = make(4)
    bench.run(5)
    check(bench, 5)


def test_the_baseline_is_measured_as_busy_as_all_slots_will_be(make: Callable[..., Slots]) -> None:
    """Runs that share a machine take each other's time: σ and the level of a quiet one would mislead."""
    bench = make(3)
    bench.run(0)
    slots = Counter(request.slot for request in bench.executors[-1].requests)
    assert slots == {0: 3, 1: 3, 2: 3}
    assert len(bench.experiment(0).runs) == 3, "one of them counts"
    left = [path.name for path in (bench.root / ".autoresearchd/runs/t/0").iterdir()]
    assert not [name for name in left if "beside" in name]


def test_a_full_disk_in_a_baseline_ends_what_ran_beside_it(make: Callable[..., Slots]) -> None:
    """Else each new attempt begins one more beside those, on the disk that is full."""

    def scored(request: RunRequest) -> Script:
        handles = zip(bench.executors[-1].requests, bench.executors[-1].handles, strict=True)
        busy.append(sum(handle._result is None for other, handle in handles if other.slot == request.slot))
        if request.slot == 1:
            return Script(hang=True)
        full = sum(other.slot == 0 for other in bench.executors[-1].requests) < 2
        return prints("", outcome="disk_full", exit_code=1) if full else bench.scored(request)

    bench, busy = make(2), list[int]()
    bench.job = scored
    bench.run(0)
    assert [run.label for run in bench.experiment(0).runs].count(Label.DISK_FULL) == 2
    assert not any(busy), "one at a time in each place"


def test_a_host_that_cannot_take_part_does_not_hold_the_baseline_up(make: Callable[..., Slots]) -> None:
    class Lame(FakeExecutor):
        """Place 1 is known to be away; place 2 fails when it is asked."""

        def ready(self, slot: int) -> bool:
            return slot != 1

        def start(self, request: RunRequest) -> FakeHandle:
            if request.slot == 2:
                raise EnvironmentFailure("the host is away")
            return super().start(request)

    bench = make(3)
    lab = replace(bench.laboratory(), executor=Lame(bench.job, slots=3))
    bench.loop(0, lab).run()
    assert len(bench.experiment(0).good_runs) == 3


def test_an_edit_that_gained_on_a_tip_of_before_is_tried_on_the_new_one(make: Callable[..., Slots]) -> None:
    bench = make(2)
    bench.length = lambda request: {1: 2, 2: 6}.get(int(request.key.split("/")[1]), 1)
    view = bench.run(8).view
    check(bench, 8)
    again = bench.loop(8).view
    assert (again.best, again.sigma) == pytest.approx((view.best, view.sigma), rel=1e-9), "a restart believes the same"
    stale = next(e for e in bench.experiments() if e.decision and e.decision.label is Label.STALE_PARENT)
    assert stale.decision and stale.decision.delta and stale.decision.delta > 0, "told against its own parent"
    assert stale.decision.shift and stale.decision.shift > 0, "with that its value tells of the tip"
    [again] = tried_again(bench, stale.number)
    assert again.decision and again.decision.status is Status.KEEP and again.parent != stale.parent
    tip = bench.workspace().read(bench.workspace().tip(), "train.py")
    assert tip.count("= 1") >= 3 and "B = 1" in tip and "C = 1" in tip, "both edits are in the tip"
    assert stale.decision.reward is None, "nobody learns from a comparison that was not made"


def test_in_a_round_of_one_slot_later_members_do_not_speak_against_the_keep(make: Callable[..., Slots]) -> None:
    """They ran on the program before it: as readings of the new tip they made the session forget a true keep."""
    bench = make(1, task=TASK + "proposing: {group: 6}\n")
    view = bench.run(6).view
    kept = next(e for e in bench.experiments()[1:] if e.decision and e.decision.status is Status.KEEP)
    after = [e for e in bench.experiments() if e.number > kept.number and e.decision]
    assert after and all(e.decision.shift for e in after if e.decision and e.parent == kept.parent)
    assert not any(e.decision and e.decision.label is Label.STALE_PARENT for e in after), "nothing is rebased here"
    assert bench.loop(6).view.best == pytest.approx(view.best, rel=1e-9), "a restart believes the same"


def test_what_lost_its_place_to_an_edit_on_an_earlier_tip_is_put_on_it(make: Callable[..., Slots]) -> None:
    """Else the faster of two good edits is lost for good, as the slower one was better."""
    bench = make(2)
    bench.length = lambda request: {1: 2, 2: 6}.get(int(request.key.split("/")[1]), 1)
    bench.worth = lambda text: worth(text) + 3.0 * ("C = 1\n" in text)
    bench.run(12)
    check(bench, 12)
    first, second = bench.experiment(1), bench.experiment(2)
    assert first.parent == second.parent and first.decision and second.decision
    assert first.decision.status is second.decision.status is Status.KEEP
    [again] = tried_again(bench, 2)
    assert again.decision and again.decision.status is Status.KEEP and again.parent == second.commit
    text = bench.workspace().read(again.commit, "train.py")
    assert "B = 1" in text and "C = 1" in text


def tried_again(bench: Slots, number: int) -> list[Experiment]:
    return [e for e in bench.experiments() if e.proposal and number in e.proposal.asi.extra.get("rebased", ())]


def test_an_edit_that_does_not_go_with_what_was_kept_is_not_tried_again(make: Callable[..., Slots]) -> None:
    bench = make(2, program="A = 0\n")
    bench.policy = Writing(lambda state: f"A = {state.number}\n")
    bench.worth = lambda text: {0: 0.0, 1: 3.0, 2: 2.0}.get(int(text.split("=")[1]), -2.0)
    bench.length = lambda request: {1: 2, 2: 6}.get(int(request.key.split("/")[1]), 1)
    bench.run(5)
    assert bench.experiment(2).decision.label is Label.STALE_PARENT  # type: ignore[union-attr]
    assert not [e for e in bench.experiments() if e.proposal and "rebased" in e.proposal.asi.extra]


@pytest.mark.parametrize("named", [5, "5", [[5]], {"5": 5}, None])
def test_no_side_information_of_a_model_stops_a_session(make: Callable[..., Slots], named: object) -> None:
    """It may hold the key that the loop itself uses."""

    class Sly(Tuning):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            return replace(super().propose(state, cancel), asi=ASI("x", extra={"rebased": named}))

    bench = make(2)
    bench.policy = Sly()
    bench.run(3)
    check(bench, 3)
    assert EventKind.FAULT not in [event.kind for event in bench.events.events]


def test_the_tip_is_confirmed_while_experiments_go_on(make: Callable[..., Slots]) -> None:
    bench = make(3)
    bench.task = replace(bench.task, scoring=replace(bench.task.scoring, confirm_every=20.0))
    believed = bench.run(16).view.best
    check(bench, 16)
    kinds = [event.kind for event in bench.events.events]
    first, last = kinds.index(EventKind.CONFIRMING), kinds.index(EventKind.CONFIRMED)
    assert EventKind.DECIDED in kinds[first:last], "experiments are decided meanwhile"
    assert bench.store.session("t").confirmed_experiment > 0
    assert bench.loop(16).view.best == pytest.approx(believed, rel=1e-9), "a restart believes the same"


@pytest.mark.parametrize(
    ("slots", "step"), [(4, 61), *(pytest.param(n, 11, marks=pytest.mark.nightly) for n in (2, 4))]
)
def test_a_daemon_killed_at_any_instant_loses_and_doubles_nothing(
    make: Callable[..., Slots], slots: int, step: int
) -> None:
    count = 6
    undisturbed = make(slots)
    run_until_killed(undisturbed, doom := Doom(), count)
    check(undisturbed, count)
    for at in range(1, doom.count, step):
        bench = make(slots)
        if run_until_killed(bench, Doom(at), count):
            bench.run(count)
        check(bench, count)


def test_a_confirmation_that_is_asked_for_begins_nothing_else(make: Callable[..., Slots]) -> None:
    """`confirm` asks no policy, which may cost money, however many slots are free."""
    bench = make(3)
    bench.run(6)
    asked = len(bench.policy.seen)
    tip = bench.store.session("t").incumbent_experiment
    SessionLoop(bench.laboratory(), Limits(), backoff=Backoff(first=0.0), asked=Asked(pairs=3)).run()
    assert len(bench.policy.seen) == asked and len(bench.experiments()) == 7
    last = bench.store.confirmations(bench.session.id)[-1]
    assert (last.why, last.experiment, last.pairs) == ("asked", tip, 3)


def test_what_a_policy_is_asked_has_all_that_it_proposed_before(make: Callable[..., Slots]) -> None:
    """Slots become free together: else all are sent the same way."""
    bench = make(3)
    bench.length = lambda request: 3
    bench.run(9)
    known = [{e.number for e in (*state.recent, *state.under_way)} for state in bench.policy.seen]
    assert all(set(range(1, state.number)) <= there for state, there in zip(bench.policy.seen, known, strict=True))

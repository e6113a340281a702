"""The loop goes on whatever one experiment does, waits when its surroundings fail, and stops when it is told to."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.session_requests import reached_limit
from autoresearchd.domain import errors
from autoresearchd.domain.experiment import Limits, Run
from autoresearchd.domain.labels import Label, SessionState, Status
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.ports import HOOK_SAYS, Cancel, EventKind, ResearchState, RunRequest
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.evaluator.feedback import feedback
from autoresearchd.loop import session as session_module
from autoresearchd.loop.context import SystemClock
from autoresearchd.loop.daemon import serve
from autoresearchd.loop.session import FAULTS_BEFORE_GIVING_UP, Backoff
from autoresearchd.loop.session_view import SessionView
from autoresearchd.loop.upkeep.session_lock import SessionLock
from tests.fakes.bench import (
    LOCKED,
    TASK,
    Bench,
    ByNumber,
    Failing,
    Forward,
    Killed,
    Passing,
    Writing,
    failing,
    fails,
    job,
)
from tests.fakes.executors import FakeExecutor, FakeHandle, Script, prints
from tests.fakes.workspaces import Commit


def test_an_unexpected_exception_is_recorded_with_its_traceback_and_tried_again(bench: Bench) -> None:
    bench.policy = Failing(ZeroDivisionError("a bug"), number=2)
    bench.run()
    [fault] = [e for e in bench.events.events if e.kind is EventKind.FAULT]
    assert "ZeroDivisionError" in fault.data["traceback"] and "propose" in fault.data["traceback"]
    assert bench.experiment(2).runs, "the second attempt ran"


def test_an_experiment_that_always_fails_is_given_up_and_the_next_one_begins(bench: Bench) -> None:
    bench.policy = Failing(*[ZeroDivisionError("a bug")] * 10, number=2)
    bench.run()
    second = bench.experiment(2)
    assert (second.decision.status, second.decision.label) == (Status.CRASH, Label.ERROR)
    assert "ZeroDivisionError" in second.decision.reason
    assert bench.experiment(3).decision


def test_a_duplicate_is_told_what_its_program_gave_and_is_no_reading_of_it(bench: Bench) -> None:
    programs = ["", "SCALE = 4.0\n", "SCALE = 4.0\n", "SCALE = 5.0\nWIDE\n", "SCALE = 5.0\nWIDE\n"]
    bench.policy, bench.job = Writing(lambda state: programs[state.number]), failing("WIDE", "out of memory\n")
    bench.run(4)
    task = replace(bench.task, feedback={"duplicate": "{metric}={value:.2f}. {reason}"})
    again, value = bench.experiment(2), bench.experiment(1).decision.value
    assert (again.decision.label, again.decision.value, again.decision.metrics) == (Label.DUPLICATE, None, {})
    which = f"The same program as experiment 1, which gave score {value:.6g}; no run was spent on it."
    assert feedback(task, again) == f"score={value:.2f}. {which}"
    assert "experiment 3, which ended with error; no run" in feedback(task, bench.experiment(4))


def test_a_failing_surrounding_is_waited_for_and_said(bench: Bench) -> None:
    bench.policy = Failing(*[errors.EnvironmentFailure("the service is down", hint="wait")] * 3, number=2)
    states, real = [], bench.store.set_state

    def remember(session_id: int, state: SessionState, *rest: Any, **named: Any) -> None:
        states.append((state, named.get("reason", "")))
        real(session_id, state, *rest, **named)

    bench.store.set_state = remember  # type: ignore[method-assign]
    bench.run()
    waiting = [reason for state, reason in states if state is SessionState.BACKING_OFF]
    assert waiting and "the service is down" in waiting[0]
    assert states[-1][0] is SessionState.RUNNING
    assert bench.experiment(2).runs, "the same experiment, once the service was back"


class Shared(FakeExecutor):
    """On its machine somebody else computes when experiment 2 is to run, for some looks. look: called at each."""

    looks = 3
    look = staticmethod(lambda: None)

    def require(self, slot: int) -> None:
        if any(request.key.startswith("t/1/") for request in self.requests) and self.looks:
            self.looks -= 1
            self.look()
            raise errors.PlaceTaken("somebody else has begun to use GPU 0", hint="it is waited for")


def test_who_computes_where_a_run_was_to_begin_is_waited_for_and_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else daemon.log tells of runs that were interrupted, and a GPU that is free again idles for ten minutes."""
    monkeypatch.setattr(session_module, "PLACE_LOOK_S", 0.0)
    lab = replace(bench.laboratory(), executor=Shared(bench.job))
    bench.loop(3, lab, backoff=Backoff(first=60.0)).run()
    assert len([*bench.messages(EventKind.BACKING_OFF)]) == 1
    assert all(run.label is Label.NONE for e in bench.experiments() for run in e.runs), "no run was begun in vain"
    assert [e.number for e in bench.experiments()] == [0, 1, 2, 3]


def test_a_long_wait_for_a_place_is_told_once_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody is notified of a GPU that somebody else has used all night."""

    executor, clock = Shared(bench.job), Passing()
    monkeypatch.setattr(executor, "looks", 100)
    bench.loop(3, replace(bench.laboratory(), executor=executor, clock=clock, stop=Forward(clock))).run()
    told = [event.data["seconds"] for event in bench.events.events if event.kind is EventKind.BACKING_OFF]
    assert told == [session_module.PLACE_LOOK_S, pytest.approx(300.0, abs=15.0)] and told[1] >= 300.0


def test_a_time_limit_ends_the_wait_for_a_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def leap() -> None:
        clock.passed += 9 * 3600.0

    executor, clock = Shared(bench.job), Passing()
    monkeypatch.setattr(executor, "look", leap)
    loop = bench.loop(3, replace(bench.laboratory(), executor=executor, clock=clock), max_seconds=8 * 3600.0)
    with pytest.raises(errors.Interrupted, match="time limit is reached while waiting: somebody else"):
        loop.run()
    assert bench.experiment(2).runs == ()


def test_a_time_limit_ends_a_session_whose_surroundings_fail(bench: Bench) -> None:
    """Else `--max-time 8h` is still there a day later, where a model's server stays down."""

    class Down(Failing):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            clock.passed += 3 * 3600.0 if state.number == 2 else 0.0
            return super().propose(state, cancel)

    clock = Passing()
    bench.policy = Down(*[errors.EnvironmentFailure("the server is down")] * 99, number=2)
    loop = bench.loop(None, replace(bench.laboratory(), clock=clock), max_seconds=8 * 3600.0)
    with pytest.raises(errors.Interrupted, match="time limit is reached while waiting for: the server") as ended:
        loop.run()
    assert ended.value.limit and len(bench.policy.errors) == 96
    assert bench.experiment(2).decision is None, "it stays open for `resume`"


def test_what_could_not_be_written_down_at_once_at_the_limit_is_written_down_then(bench: Bench) -> None:
    clock = Passing()

    def late(request: RunRequest) -> Script | str:
        clock.passed += 9 * 3600.0 if request.key.startswith("t/2/") else 0.0
        return job(request)

    bench.job = late
    fails(bench.store, "record_decision", LOCKED, when=lambda: len(bench.experiments()) == 3)
    reason = bench.loop(None, replace(bench.laboratory(), clock=clock), max_seconds=8 * 3600.0).run()
    assert "time limit" in reason and bench.experiment(2).decision


def test_what_is_asked_for_while_a_learner_is_waited_for_holds_before_the_next_experiment(bench: Bench) -> None:
    lab, waits = bench.laboratory(), []
    session = bench.loop(5, lab)

    def wait(enough: Callable[[], object]) -> None:
        waits.append(1)
        if len(waits) == 3:  # before the third experiment
            lab.stop.request("the user asked for it")

    session.between = wait
    session.run()
    assert [e.number for e in bench.experiments()] == [0, 1]


def test_no_experiment_begins_where_a_learner_has_used_up_the_time(bench: Bench) -> None:
    """Else one begins hours after `--max-time`, and what was to be left for the confirmation is gone."""
    clock, learned = Passing(), list[int]()
    session = bench.loop(None, replace(bench.laboratory(), clock=clock), max_seconds=8 * 3600.0)

    def learn(enough: Callable[[], object]) -> None:
        learned.append(1)
        clock.passed += 9 * 3600.0 if len(learned) == 3 else 0.0

    session.between = learn
    assert "time limit" in session.run()
    assert [e.number for e in bench.experiments()] == [0, 1]


def test_a_full_disk_in_a_run_is_not_counted_and_the_run_is_made_again(bench: Bench) -> None:
    full = [True]

    def once(request: RunRequest) -> Script | str:
        if request.key.startswith("t/1/") and full[0]:
            full[0] = False
            return prints("", outcome="disk_full")
        return job(request)

    bench.job = once
    bench.run()
    first = bench.experiment(1)
    assert [run.label for run in first.runs] == [Label.DISK_FULL, Label.NONE]
    assert len({run.seed for run in first.runs}) == 1, "the same seed again: nothing was measured before"
    assert first.decision.label is not Label.DISK_FULL


def test_stop_finishes_the_running_experiment(bench: Bench) -> None:
    lab = bench.laboratory()

    class Stopping(ByNumber):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.number == 2:
                lab.stop.request("enough")
            return super().propose(state, cancel)

    bench.policy = Stopping()
    assert bench.loop(None, replace(lab, policy=bench.policy)).run() == "enough"
    assert [e.decision is not None for e in bench.experiments()] == [True] * 3


def test_stop_now_leaves_the_experiment_open_for_resume(bench: Bench) -> None:
    hang = threading.Event()

    def hanging(request: RunRequest) -> Script | str:
        if request.key.startswith("t/2/") and not hang.is_set():
            hang.set()
            return Script(hang=True)
        return job(request)

    bench.job = hanging
    lab = bench.laboratory()
    threading.Thread(target=lambda: (hang.wait(), lab.stop.request("now", now=True)), daemon=True).start()
    with pytest.raises(errors.Interrupted):
        bench.loop(None, lab).run()
    second = bench.experiment(2)
    assert (second.decision, [run.label for run in second.runs]) == (None, [Label.INTERRUPTED])
    bench.run()
    second = bench.experiment(2)
    assert [run.label for run in second.current_runs] == [Label.INTERRUPTED, Label.NONE]


@pytest.mark.parametrize(
    ("stands_in", "extra", "shown"),
    [
        (False, {}, [1, 0, 0]),
        (True, {}, [1, 1, 0]),
        (True, {PASSED_BY: "it"}, [1, 0, 0]),
        (True, {PASSED_BY: "it", UNUSED: "no edit"}, [1, 1, 0]),
    ],
)
def test_notes_are_shown_until_the_policy_that_reads_them_has_seen_them(
    bench: Bench, stands_in: bool, extra: dict[str, str], shown: list[int]
) -> None:
    seen: list[tuple[str, ...]] = []

    class Reading(ByNumber):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            proposal = super().propose(state, cancel)
            seen.append(state.notes)
            instead = replace(proposal, policy="search", asi=ASI(extra=extra))
            return instead if stands_in and len(seen) == 1 else proposal

    bench.policy = Reading()
    bench.store.add_note(bench.session.id, "look at SCALE", bench.session.started_at)
    bench.run()
    assert seen == [("look at SCALE",) * count for count in shown]


def test_of_what_hooks_said_while_nobody_read_it_only_the_latest_is_shown(bench: Bench) -> None:
    seen: list[tuple[str, ...]] = []

    def read(state: ResearchState) -> str:
        seen.append(tuple(state.notes))
        return "SCALE = 4.0\n"

    bench.policy = Writing(read)
    said = [f"{HOOK_SAYS}{number}" for number in range(5)]
    for text in (said[0], "look at SCALE", *said[1:]):
        bench.store.add_note(bench.session.id, text, bench.session.started_at)
    bench.run(2)
    assert seen == [("look at SCALE", *said[-3:]), ()]


def test_changed_conditions_open_a_segment_with_a_baseline_of_its_own(bench: Bench) -> None:
    bench.run(3)
    incumbent = bench.store.session("t").incumbent
    bench.store.open_segment(bench.session.id, "other", "another machine", "gpu", bench.session.started_at)
    bench.run(4)
    found = bench.experiments()
    assert [e.segment for e in found] == [0, 0, 0, 0, 1, 1]
    again = found[4]
    assert again.commit == incumbent == found[5].parent
    assert len(again.good_runs) == 3 and again.decision.status is Status.KEEP


def test_a_segment_that_was_left_before_its_baseline_buys_no_experiment(bench: Bench) -> None:
    """The limit is what a user pays for: four, however often the conditions changed."""
    bench.run(3)
    for name in ("other", "again"):
        bench.store.open_segment(bench.session.id, name, "another machine", "gpu", bench.session.started_at)
    bench.run(4)
    assert [e.segment for e in bench.experiments()] == [0, 0, 0, 0, 2, 2]
    limits = replace(bench.session.limits, max_experiments=4)
    assert reached_limit(bench.store, replace(bench.store.session("t"), limits=limits, policy="search")) is not None


def test_a_result_is_read_again_when_the_store_fails_once(bench: Bench) -> None:
    left = fails(bench.store, "close_run", LOCKED, when=lambda: len(bench.experiments()) == 2)
    bench.run()
    assert not left
    labels = [run.label for e in bench.experiments() for run in e.runs]
    assert Label.INTERRUPTED not in labels, "no run was thrown away"


def test_what_the_store_took_as_its_connection_broke_comes_before_anything_new(bench: Bench) -> None:
    """Else the experiment that was just begun is left behind, and those after it are decided without it."""
    away = errors.EnvironmentFailure("the server is away", hint="wait")
    begun = fails(bench.store, "open_experiment", away, after=True, when=lambda: len(bench.experiments()) == 2)
    left = fails(bench.store, "unsettled", away, away, when=lambda: not begun)
    bench.run(3)
    assert not left
    assert [e.number for e in bench.experiments() if e.decision is not None] == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("name", ["totals", "record_decision"])
def test_an_experiment_whose_decision_is_on_disk_as_the_store_fails_is_believed_once(
    bench: Bench, number: int, name: str
) -> None:
    """Else a loss counts twice until a restart, and what is kept after it differs from what the journal leads to."""
    away = errors.EnvironmentFailure("the server is away", hint="wait")

    def decided() -> bool:
        e = bench.experiments()[-1]
        return e.number == number and (e.decision is not None or name == "record_decision")

    loop = bench.loop(3)
    failed = fails(bench.store, name, away, after=name == "record_decision", when=decided)
    left = fails(bench.store, "unsettled", away, when=lambda: not failed)
    loop.run()
    assert not failed and not left
    assert [e.number for e in loop.view.recent] == [0, 1, 2, 3]
    assert loop.view.labels == bench.loop(3).view.labels and loop.view.totals.experiments == 4
    assert loop.view.best == pytest.approx(bench.loop(3).view.best, rel=1e-9)


def test_nothing_is_done_before_store_git_and_processes_agree(bench: Bench) -> None:
    bench.run(1)
    lab = bench.laboratory()
    bench.repository.branch = bench.repository.write(Commit({}, message="mine"))
    fails(lab.workspace, "tip", *[errors.EnvironmentFailure("git is locked", hint="wait")] * 2)
    with pytest.raises(errors.RepositoryError):
        bench.loop(5, lab).run()
    assert len(bench.experiments()) == 2


def test_a_baseline_that_fails_on_another_machine_is_measured_again_by_resume(bench: Bench) -> None:
    bench.run(2)
    bench.store.open_segment(bench.session.id, "other", "another machine", "gpu", bench.session.started_at)
    good, bench.job = bench.job, lambda request: "no metric\n"
    with pytest.raises(errors.BaselineError):
        bench.run(4)
    bench.job = good
    session_loop = bench.loop(5)
    session_loop.run()
    found = bench.experiments()
    assert [(e.number, e.decision.status) for e in found[3:5] if e.decision] == [(3, Status.CRASH), (4, Status.KEEP)]
    assert len(found[4].good_runs) == 3
    for view in (session_loop.view, SessionView(bench.laboratory())):
        assert view.baseline.value == found[4].decision.value


def test_an_interpreter_that_is_gone_for_a_while_costs_no_experiment_and_resume_goes_on(bench: Bench) -> None:
    good = bench.job

    def upgraded(request: RunRequest) -> Script | str:
        if request.key.startswith("t/2/"):
            raise errors.MissingCapability("the task's interpreter does not run")
        return good(request)

    bench.job = upgraded
    with pytest.raises(errors.MissingCapability):
        bench.run(3)
    left = bench.store.latest(bench.session.id)
    assert (left.number, left.decision) == (2, None)
    bench.job = good
    bench.run(3)
    assert [e.decision.status is Status.CRASH for e in bench.experiments()] == [False] * 4


@pytest.mark.parametrize(
    "trouble", [errors.DataMissing("workspace.data: 'd' is empty"), OSError(errno.ENOTCONN, "not connected", "/data")]
)
def test_data_that_is_away_for_a_while_is_waited_for(bench: Bench, trouble: Exception) -> None:
    good, away = bench.job, [trouble] * FAULTS_BEFORE_GIVING_UP

    def unmounted(request: RunRequest) -> Script | str:
        if request.key.startswith("t/2/") and away:
            raise away.pop()
        return good(request)

    bench.job = unmounted
    bench.run(3)
    assert not away and [e.decision.status is Status.CRASH for e in bench.experiments()] == [False] * 4


def test_conditions_are_looked_at_once_what_was_open_is_finished(bench: Bench) -> None:
    bench.policy = Failing(errors.Interrupted("stop"), number=2)
    with pytest.raises(errors.Interrupted):
        bench.run(3)
    assert bench.experiment(2).decision is None
    bench.policy = ByNumber()
    session_loop = bench.loop(3)

    def another_machine() -> bool:
        bench.store.open_segment(bench.session.id, "other", "another machine", "gpu", bench.session.started_at)
        return True

    session_loop.conditions = another_machine
    session_loop.run()
    found = bench.experiments()
    assert [e.segment for e in found[:4]] == [0, 0, 0, 1] and len(found[3].good_runs) == 3


def test_with_reverts_on_the_branch_a_foreign_commit_on_it_is_noticed_all_the_same(tmp_path: Path) -> None:
    bench = Bench(tmp_path, TASK + "history: revert\n")
    bench.run(1)
    left = bench.workspace().confirmed()
    assert bench.workspace().tip() != left, "a discard and its revert"
    foreign = bench.repository.write(Commit({"train.py": "mine = 1\n"}, (left,), "mine"))

    def moved() -> bool:
        bench.repository.branch = foreign
        return False

    resumed = bench.loop(2)
    resumed.conditions = moved
    for session_loop in (resumed, bench.loop(2)):  # moved beside a daemon, and before one
        with pytest.raises(errors.RepositoryError, match=f"points at {foreign[:10]}"):
            session_loop.run()
    bench.repository.branch = left
    bench.run(2)
    assert bench.store.totals(bench.session.id).experiments == 3


class Later(SystemClock):
    """The night is over."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=6)


@pytest.mark.parametrize("died_in", [0, 5], ids=["experiment", "confirmation"])
@pytest.mark.parametrize("ended", [False, True])
def test_the_hours_from_a_crash_to_the_next_daemon_are_none_of_the_run_that_it_cut_off(
    bench: Bench, died_in: int, ended: bool
) -> None:
    """Else the machine seems to have been at work while it was off."""

    class Deadly(FakeExecutor):
        def start(self, request: RunRequest) -> FakeHandle:
            handle = super().start(request)
            if len(self.handles) == died_in + 1:
                raise Killed
            return handle

    def runs() -> dict[int, Run]:
        of = [*bench.experiments(), *bench.store.confirmations(bench.session.id)]
        return {run.id: run for each in of for run in each.runs}

    def cut_off(request: RunRequest) -> Script | str:
        return Script(hang=True) if len(executor.handles) == died_in and not ended else job(request)

    executor = Deadly(cut_off)
    with pytest.raises(Killed):
        bench.loop(2, replace(bench.laboratory(), executor=executor)).run()
    cut = runs()[max(runs())]
    last_seen = cut.started_at + timedelta(seconds=7)
    bench.store.heartbeat(bench.session.id, last_seen, 60.0)
    lab = replace(bench.laboratory(), executor=executor, clock=Later())
    with SessionLock(bench.state / "t.lock", "t") as lock:
        given = {"active_seconds": 60.0, "backup": None, "prepare": lambda: None, "conditions": lambda: False}
        serve(lab, Limits(max_experiments=2), lock, **given)
    assert runs()[cut.id].finished_at == (cut.started_at + timedelta(seconds=1) if ended else last_seen)
    assert all(run.finished_at - run.started_at < timedelta(hours=1) for run in runs().values())

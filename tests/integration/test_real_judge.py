"""The judge that runs experiments gives what the loop gave, and leaves the session that it judges for as it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import BaselineError, EnvironmentFailure, Interrupted
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import RunRequest
from autoresearchd.learner.gate.held_out_states import HeldOut, HeldOutState
from autoresearchd.learner.gate.judge_answers import Outcome, RealJudge
from tests.fakes.bench import program_of
from tests.fakes.executors import FakeExecutor, Script, prints
from tests.integration.bench import PROGRAM, Bench, job
from tests.integration.held_out import block, opened, trajectory


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    found.policy.values = (0.0, 4.0, 2.5)
    found.run(2)
    yield found
    found.close()


@pytest.fixture
def held_out(bench: Bench) -> Iterator[HeldOut]:
    with opened(bench) as found:
        yield found


@pytest.fixture
def state(held_out: HeldOut) -> HeldOutState:
    return held_out.states([trajectory(1)]).states[0]


def better(value: float) -> str:
    return block("SCALE = 1.0", f"SCALE = {value}")


def judged(judge: RealJudge, at: HeldOutState, answer: str) -> Outcome:
    return judge.judge_all([(at, answer)])[0]


def failing(text: str = "", log: str = "no such device", **how: Any) -> FakeExecutor:
    """An executor whose runs of programs with that text fail."""
    how = {"outcome": "failed", "exit_code": 1, **how}
    return FakeExecutor(lambda asked: prints(log, **how) if text in program_of(asked) else job(asked))


def test_an_edit_earns_what_the_loop_gave_for_it(bench: Bench, held_out: HeldOut) -> None:
    """The same edits at the same states: their rewards differ by the luck of other seeds, and by no more."""
    states = held_out.states([trajectory(1), trajectory(2)]).states
    found = RealJudge(held_out, FakeExecutor(job)).judge_all([(states[0], better(4.0)), (states[1], better(2.5))])
    given = [e.decision.reward for e in bench.experiments() if e.number]
    assert [o.reward for o in found] == pytest.approx(given, abs=0.5)
    assert [(o.valid, o.not_run) for o in found] == [(True, False)] * 2


def test_a_program_is_run_once_however_often_it_is_proposed(held_out: HeldOut, state: HeldOutState) -> None:
    executor = FakeExecutor(job)
    judge = RealJudge(held_out, executor)
    found = judge.judge_all([(state, better(1.5)), (state, better(1.5)), (state, better(1.7))])
    assert len(executor.requests) == 3, "the incumbent beside them, and two programs"
    assert len({request.seed for request in executor.requests}) == 1
    again = judged(judge, state, better(1.7))
    assert len(executor.requests) == 3
    assert found[0] == found[1]
    assert again == found[2]
    assert found[2].reward >= found[0].reward > 0


def test_what_was_run_has_the_words_of_the_loop_and_a_failure_its_price(held_out: HeldOut, state: HeldOutState) -> None:
    attempts = [(state, better(1.5)), (state, better(3.5)), (state, better(1.7)), (state, "I would wait.")]
    good, bad, failed, malformed = RealJudge(held_out, failing("1.7")).judge_all(attempts)
    assert (failed.label, failed.reward, bool(failed.error)) == (Label.ERROR, -2.0, True)
    assert (malformed.label, malformed.reward) == (Label.MALFORMED_ANSWER, -2.0)
    assert good.feedback.startswith("score = 0.25") and "This is kept: it gave score" in good.feedback
    assert "worse)" in bad.feedback and "This was not kept" in bad.feedback
    assert "The experiment failed" in failed.feedback and "reward" not in failed.feedback
    assert (malformed.feedback, bool(malformed.error)) == ("", True)


def test_as_many_runs_are_under_way_as_there_are_slots(held_out: HeldOut, state: HeldOutState) -> None:
    executor = FakeExecutor(lambda request: Script(pieces=[str(job(request))]), slots=2)
    found = RealJudge(held_out, executor).judge_all([(state, better(1.0 + n / 10)) for n in range(1, 6)])
    assert {request.slot for request in executor.requests} == {0, 1}
    assert all(o.reward is not None for o in found)


def test_a_run_that_was_lost_with_its_host_says_nothing_and_is_made_again_the_next_time(
    held_out: HeldOut, state: HeldOutState
) -> None:
    lost = [True]

    def script(request: RunRequest) -> Script | str:
        if "1.5" in program_of(request) and lost:
            lost.clear()
            return prints("", outcome="lost", exit_code=None)
        return job(request)

    judge = RealJudge(held_out, FakeExecutor(script))
    first, second = judged(judge, state, better(1.5)), judged(judge, state, better(1.5))
    assert (first.reward, first.label, first.valid) == (None, Label.HOST_LOST, True)
    assert second.reward is not None


def test_where_the_incumbent_itself_does_not_run_nothing_is_said(held_out: HeldOut, state: HeldOutState) -> None:
    found = judged(RealJudge(held_out, failing("1.0")), state, better(1.5))
    assert found.reward is None
    assert "what it is compared with does not run here" in found.error


def test_what_the_incumbent_trains_beyond_the_budget_is_no_licence_to_train_yet_longer(tmp_path: Path) -> None:
    """The loop compares with the baseline, so the gate must: else each edit could take a little more than before."""
    bench = Bench(tmp_path, program=f"{PROGRAM}UNTIL = 'AUTORESEARCHD_TIME_BUDGET'\n")
    bench.policy.values = (0.0, 1.5, 4.0)
    took = {"1.0": 5.5, "1.5": 6.7, "1.6": 8.0, "1.7": 5.5}

    def script(request: RunRequest) -> Script | str:
        seconds = next((s for value, s in took.items() if f"SCALE = {value}\n" in program_of(request)), 5.5)
        return prints(str(job(request)), duration_s=seconds, cpu_s=seconds)

    bench.job = script
    bench.run(2)
    assert bench.experiment(1).decision.status is Status.KEEP
    with opened(bench) as held_out:
        (state,) = held_out.states([trajectory(2)]).states
        attempts = [(state, block("SCALE = 1.5", f"SCALE = {value}")) for value in ("1.6", "1.7")]
        long, honest = RealJudge(held_out, FakeExecutor(script)).judge_all(attempts)
        took |= dict.fromkeys(took, 8.0)
        again = judged(RealJudge(held_out, FakeExecutor(script)), *attempts[0])
    bench.close()
    assert (long.label, long.valid) == (Label.BUDGET_OVERRUN, True)
    assert "the budget is 5 s" in long.error
    assert long.reward < 0 < honest.reward
    assert again.label is Label.NONE, "on a machine that is slower for the incumbent as well, nobody is to blame"


def test_an_edit_has_the_time_that_the_loop_would_give_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.policy.values = (0.0, 4.0)

    def script(request: RunRequest) -> Script | str:
        seconds = 12.0 + 65.0 * ("SCALE = 1.5" in program_of(request))
        wall = request.task.execution.budget.wall
        if seconds > wall:
            return prints("", outcome="timeout", exit_code=None, duration_s=wall)
        return prints(str(job(request)), duration_s=seconds)

    bench.job = lambda request: prints(str(job(request)), duration_s=65.0)
    bench.run(1)
    with opened(bench) as held_out:
        (state,) = held_out.states([trajectory(1)]).states
        found = judged(RealJudge(held_out, FakeExecutor(script)), state, better(1.5))
    bench.close()
    assert bench.task.execution.budget.wall == 70.0
    assert (found.label, found.valid) == (Label.NONE, True)
    assert found.reward > 0


def test_a_full_disk_ends_the_judging_with_words(held_out: HeldOut, state: HeldOutState) -> None:
    with pytest.raises(EnvironmentFailure, match="no room on the disk") as caught:
        judged(RealJudge(held_out, failing(log="", outcome="disk_full", exit_code=None)), state, better(1.5))
    assert caught.value.hint


def test_whoever_stops_the_learner_ends_its_runs(held_out: HeldOut, state: HeldOutState) -> None:
    stop = threading.Event()
    executor = FakeExecutor(lambda request: (stop.set(), Script(hang=True))[1], slots=2)
    with pytest.raises(Interrupted):
        RealJudge(held_out, executor, cancel=stop).judge_all([(state, better(1.5)), (state, better(1.7))])
    assert all(handle.wait(0) is not None for handle in executor.handles), "nothing is left running"
    assert not list(held_out.ground("t").scratch.glob("*/workspace"))


def test_what_a_killed_judge_left_is_removed_and_the_session_stays_as_it_was(
    bench: Bench, held_out: HeldOut, state: HeldOutState
) -> None:
    def journal() -> tuple[object, ...]:
        return bench.git("for-each-ref"), [(e.number, e.decision) for e in bench.experiments()]

    before, left = journal(), held_out.ground("t").scratch / "5" / "run"
    left.mkdir(parents=True)
    (left / "training.log").write_text("old")
    judged(RealJudge(held_out, FakeExecutor(job)), state, better(1.5))
    assert not left.exists()
    assert journal() == before


class Bare(FakeExecutor):
    """An executor where nothing can be set up."""

    def setup(self, *_: object, **__: object) -> None:
        raise BaselineError("the set-up command fails: no such file")


def test_what_cannot_run_here_is_known_from_one_run_before_anything_is_asked(held_out: HeldOut) -> None:
    sound, lost = FakeExecutor(job), failing(log="", outcome="lost", exit_code=None)
    states = held_out.states([trajectory(1), trajectory(2)]).states
    judge = RealJudge(held_out, sound)
    assert judge.rehearse(states) == {}
    assert len(sound.requests) == 1, "one of a session"
    judged(judge, states[0], better(1.5))
    assert len(sound.requests) == 2, "and it counts"
    assert "does not run here (error)" in RealJudge(held_out, failing()).rehearse(states)["t"]
    assert RealJudge(held_out, lost).rehearse(states) == {}, "a host that was lost says nothing about the task"
    assert RealJudge(held_out, Bare(job)).rehearse(states) == {"t": "the set-up command fails: no such file"}
    assert not list(held_out.ground("t").scratch.glob("*/workspace"))

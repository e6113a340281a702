"""Live learning: what was proposed and run is learned from; a round that tells nothing costs no step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.errors import BaselineError, UsageError
from autoresearchd.domain.labels import Label
from autoresearchd.learner.gate.held_out_states import Gathered, HeldOutState
from autoresearchd.learner.gate.judge_answers import Attempt, Outcome
from autoresearchd.learner.learn import LearnRequest, constants_of, train_live
from autoresearchd.learner.training.train import CANCELLED, StepFigures, Trained
from tests.fakes.learnable import TinyLearnable


def states(session: str) -> tuple[HeldOutState, ...]:
    asked = ({"role": "user", "content": "ab"},)
    return tuple(HeldOutState(f"{session}/{n}", session, n, "0" * 40, asked, {}) for n in range(4))


STATES = states("t")


class Held:
    """States without a session behind them."""

    found = STATES

    def states(self, trajectories: object, *, most: int | None = None) -> Gathered:
        return Gathered(self.found)


class Places:
    """Judges answers by their place: something that differs and needs no run."""

    judged = 0

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        self.judged += len(attempts)
        words = {"novelty": 0.5, "files_hash": "h", "feedback": "It has letters."}
        return [
            Outcome(state.key, "t", True, Label.NO_GAIN, reward=float(i), **words)
            for i, (state, _) in enumerate(attempts)
        ]


def learned(
    judge: Places,
    on_step: Callable[[StepFigures], None],
    cancel: threading.Event,
    algo: str = "grpo",
    steps: int = 4,
    found: Sequence[HeldOutState] = STATES,
) -> Trained:
    options = {"rounds": "2", "count": "2"}
    constants = constants_of(LearnRequest(algo, "live", steps=steps, options=options))
    held: Any = Held()
    held.found = found
    return train_live(TinyLearnable(0), (), held, judge, constants, 4, on_step, lambda text: None, cancel)


@pytest.mark.parametrize("algo", ["grpo", "ppo", "sdpo"])
def test_each_round_is_judged_and_learned_from(algo: str) -> None:
    judge = Places()
    steps: list[StepFigures] = []
    found = learned(judge, steps.append, threading.Event(), algo)
    assert judge.judged == 2 * 4 * 2
    told = [(step.values["round/valid"], step.values["round/novelty"], step.values["round/reward"]) for step in steps]
    assert told == [(1.0, 0.5, 3.5)] * 4
    assert found.steps == len(found.history) == 4
    assert found.counts["rounds"] == 2


class Gone(Places):
    """One session's data is gone."""

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        if attempts[0][0].session == "gone":
            raise BaselineError("its data is gone")
        return super().judge_all(attempts)


def test_a_session_that_cannot_run_takes_nothing_from_the_others() -> None:
    judge, other = Gone(), states("gone")
    found = learned(judge, lambda step: None, threading.Event(), found=(*other[:2], *STATES[:2]))
    assert (found.steps, judge.judged) == (4, 2 * 2 * 2)
    with pytest.raises(UsageError, match="no session can be used: gone: its data is gone"):
        learned(judge, lambda step: None, threading.Event(), found=other)


def test_no_more_steps_are_made_than_were_asked_for() -> None:
    assert learned(Places(), lambda step: None, threading.Event(), steps=1).steps == 1


def test_a_live_run_ends_when_it_is_asked_to() -> None:
    cancel = threading.Event()
    cancel.set()
    found = learned(Places(), lambda step: None, cancel)
    assert (found.steps, found.stopped) == (0, CANCELLED)

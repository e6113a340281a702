"""Live learning: what was proposed and run is learned from; a round that tells nothing costs no step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.labels import Label
from autoresearchd.learner.gate.held_out_states import Gathered, HeldOutState
from autoresearchd.learner.gate.judge_answers import Attempt, Outcome
from autoresearchd.learner.learn import LearnRequest, constants_of, train_live
from autoresearchd.learner.training.train import CANCELLED, StepFigures, Trained
from tests.fakes.learnable import TinyLearnable

STATES = tuple(HeldOutState(f"t/{n}", "t", n, "0" * 40, ({"role": "user", "content": "ab"},), {}) for n in range(4))


class Held:
    """States without a session behind them."""

    def states(self, trajectories: object, *, most: int | None = None) -> Gathered:
        return Gathered(STATES)


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
    judge: Places, on_step: Callable[[StepFigures], None], cancel: threading.Event, algo: str = "grpo"
) -> Trained:
    options = {"rounds": "2", "count": "2"}
    constants = constants_of(LearnRequest(algo, "live", steps=4, options=options))
    held: Any = Held()
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


def test_a_live_run_ends_when_it_is_asked_to() -> None:
    cancel = threading.Event()
    cancel.set()
    found = learned(Places(), lambda step: None, cancel)
    assert (found.steps, found.stopped) == (0, CANCELLED)

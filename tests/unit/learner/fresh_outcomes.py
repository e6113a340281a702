"""Outcomes of simulated policies: rewards spread as in logs, states that differ, and a gain that is known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoresearchd.domain.labels import Label
from autoresearchd.learner.gate.judge_answers import Outcome


@dataclass(frozen=True, slots=True)
class Policy:
    """A simulated policy. gain: what it earns more on average; validity: by how much more often its edits are valid."""

    gain: float = 0.0
    validity: float = 0.0
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """Held-out states of some difficulty: how often an answer is valid there, and what a valid edit earns."""

    valid: np.ndarray
    worth: np.ndarray

    @classmethod
    def drawn(cls, random: np.random.Generator, states: int) -> World:
        return cls(random.beta(6.0, 3.0, states), random.normal(-0.3, 0.5, states))

    def outcomes(self, random: np.random.Generator, policy: Policy = Policy(), count: int = 4) -> list[Outcome]:
        """Malformed answers (−2), programs tried before (−0.5), and edits from −1 to 5, a few of them hits."""
        return [
            one(state, **self._drawn(random, policy, state, index))  # type: ignore[arg-type]
            for state in range(len(self.valid))
            for index in range(count)
        ]

    def _drawn(self, random: np.random.Generator, policy: Policy, state: int, index: int) -> dict[str, object]:
        chance = min(1.0, self.valid[state] + policy.validity)
        malformed, tried, hit = random.random() > chance, random.random() < 0.1, random.random() < 0.08
        worth = float(np.clip(random.normal(self.worth[state], 1.0), -1.0, 5.0))
        jackpot = float(random.uniform(2.0, 5.0))
        novelty, program = float(random.beta(2.0, 2.0)), "same" if policy.repeats else f"{index}"
        if malformed:
            return {"reward": -2.0 + policy.gain, "label": Label.MALFORMED_ANSWER, "valid": False}
        if tried:
            return {"reward": -0.5 + policy.gain, "label": Label.DUPLICATE, "novelty": 0.0, "program": program}
        return {"reward": (jackpot if hit else worth) + policy.gain, "novelty": novelty, "program": program}


def one(
    state: int,
    reward: float | None = 0.0,
    *,
    label: Label = Label.NONE,
    valid: bool = True,
    novelty: float = 0.5,
    program: str = "a",
    not_run: bool = False,
) -> Outcome:
    """One outcome of a numbered state."""
    return Outcome(
        f"s/{state}",
        "s",
        valid,
        label,
        "" if valid else "malformed",
        reward,
        not_run,
        novelty if valid else 0.0,
        f"{state}/{program}" if valid else "",
    )

"""What came of fresh proposals for held-out states, one by one and state by state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autoresearchd.domain.labels import Label


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fresh proposal for a held-out state came to.

    key, session: of the state. valid: a legal edit that changes the program, whether or not it was tried before. label:
    why it is not worth a run, or how its run ended; NONE: nothing speaks against it. error: the same in words. reward:
    None where the outcome says nothing about the proposal. not_run: only a run would tell its worth, and it had none.
    novelty: distance to the nearest of the last edits, 0 to 1. files_hash: of the program after the edit, empty where
    there is none. feedback: on its run, in the words that the model would be told; empty where it was not run.
    """

    key: str
    session: str
    valid: bool
    label: Label = Label.NONE
    error: str = ""
    reward: float | None = None
    not_run: bool = False
    novelty: float = 0.0
    files_hash: str = ""
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """What the proposals of one policy for one state amount to.

    proposals, valid, duplicates: how many. distinct: different programs among the valid. rewarded, rewards: how many
    have a reward, and its sum; valid_rewarded, valid_rewards: the same of the valid. novelty: sum over the valid.
    not_run: how many were only checked.
    """

    proposals: int
    valid: int
    duplicates: int
    distinct: int
    rewarded: int
    rewards: float
    valid_rewarded: int
    valid_rewards: float
    novelty: float
    not_run: int

    @property
    def reward(self) -> float:
        """The mean reward; ValueError where no proposal has one."""
        if not self.rewarded:
            raise ValueError("no proposal of this state has a reward")
        return self.rewards / self.rewarded

    @property
    def valid_rate(self) -> float:
        """The share of valid edits."""
        return self.valid / self.proposals


def tallies(outcomes: Iterable[Outcome]) -> dict[str, Tally]:
    """Outcomes of one policy counted by state, in the order in which the states first appear."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.key, []).append(outcome)
    return {key: _tally(members) for key, members in found.items()}


def _tally(members: list[Outcome]) -> Tally:
    valid = [o for o in members if o.valid]
    rewards = [o.reward for o in members if o.reward is not None]
    valid_rewards = [o.reward for o in valid if o.reward is not None]
    return Tally(
        proposals=len(members),
        valid=len(valid),
        duplicates=sum(o.label is Label.DUPLICATE for o in members),
        distinct=len({o.files_hash for o in valid}),
        rewarded=len(rewards),
        rewards=math.fsum(rewards),
        valid_rewarded=len(valid_rewards),
        valid_rewards=math.fsum(valid_rewards),
        novelty=math.fsum(o.novelty for o in valid),
        not_run=sum(o.not_run for o in members),
    )

"""Judging fresh proposals for held-out states: what an answer is worth, read as the loop reads it, run or not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.reward import novelty, reward
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.loop.messages import unified_diff
from autoresearchd.policy.edits.edit import EditError
from autoresearchd.policy.edits.read_answer import read_answer
from autoresearchd.policy.prompt import brief as prompts


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
        """The mean reward, where a proposal has one."""
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


def _tally(members: Sequence[Outcome]) -> Tally:
    valid = [o for o in members if o.valid]
    rewards, of_valid = ([o.reward for o in some if o.reward is not None] for some in (members, valid))
    return Tally(
        proposals=len(members),
        valid=len(valid),
        duplicates=sum(o.label is Label.DUPLICATE for o in members),
        distinct=len({o.files_hash for o in valid}),
        rewarded=len(rewards),
        rewards=math.fsum(rewards),
        valid_rewarded=len(of_valid),
        valid_rewards=math.fsum(of_valid),
        novelty=math.fsum(o.novelty for o in valid),
        not_run=sum(o.not_run for o in members),
    )


_MAX_ERROR = 300


@dataclass(frozen=True, slots=True)
class HeldOutState:
    """A state that was not learned from, as a policy was shown it.

    key: names it among all. session: as trajectories name it. number: of the first experiment that was proposed at it.
    parent: the commit that edits are made on; code: text of the editable files there. earlier: diffs of the last
    experiments before it. profile: that the task ran in.
    """

    key: str
    session: str
    number: int
    parent: str
    messages: tuple[Mapping[str, Any], ...]
    code: Mapping[str, str]
    earlier: tuple[str, ...] = ()
    profile: str = ""


Attempt = tuple[HeldOutState, str]
"""A state, and the completion that a policy gave for it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an edit is held against, by whoever knows the sessions.

    legal: lets the changed files of an edit pass, or raises PolicyError. tried: whether a program (its ``code_hash``)
    had been tried before the state.
    """

    legal: Callable[[HeldOutState, Mapping[str, str]], None]
    tried: Callable[[HeldOutState, str], bool]


@dataclass(frozen=True, slots=True)
class Examined:
    """An answer once it is read. label: NONE where the edit is worth a run; files: those that it changes.

    There are files where it is a legal edit that changes the program.
    """

    label: Label
    error: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    novelty: float = 0.0
    files_hash: str = ""


class Judge(Protocol):
    """Says what answers are worth."""

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """What each of some answers is worth, in their order; an answer is judged as if it were the only one."""
        ...


class CheckingJudge:
    """Judges without running anything.

    What is malformed, illegal, without effect or tried before earns what the formula gives for it; any other edit earns
    its novelty bonus only, since what it would gain is not known.

    rules: what edits are held against.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def judge(self, state: HeldOutState, completion: str) -> Outcome:
        """What one answer is worth."""
        seen = examine(state, completion, self._rules)
        found = reward(Label.NONE, 0.0, None, None, distance=seen.novelty)
        bonus = 0.0 if found is None else found.parts.get("novelty", 0.0)
        return settled(state, seen) or outcome(state, seen, bonus, not_run=True)

    def judge_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        return [self.judge(state, completion) for state, completion in attempts]


def examine(state: HeldOutState, completion: str, rules: Rules) -> Examined:
    """Read an answer as the loop does: the edit in it, whether it is legal, and whether it was tried before.

    The hint that an edit is *nearly* what was tried before is left out: it is a second question, not a judgement.
    """
    try:
        if prompts.is_brief(state.messages):
            edit = prompts.read_answer(completion, state.code, state.profile)
        else:
            edit = read_answer(completion, state.code)
        rules.legal(state, edit.files)
    except (EditError, PolicyError) as error:
        return Examined(error.label, shorten(str(error), _MAX_ERROR))
    after = {**state.code, **edit.files}
    program = code_hash(after)
    tried = rules.tried(state, program)
    return Examined(
        Label.DUPLICATE if tried else Label.NONE,
        "the same program was tried before" if tried else "",
        files=dict(edit.files),
        novelty=novelty(unified_diff(state.code, after), state.earlier),
        files_hash=program,
    )


def settled(state: HeldOutState, seen: Examined) -> Outcome | None:
    """The outcome of an answer that is not worth a run; None where only a run tells."""
    if seen.label is Label.NONE:
        return None
    penalty = reward(seen.label, None, None, None)
    return outcome(state, seen, None if penalty is None else penalty.total)


def outcome(
    state: HeldOutState,
    seen: Examined,
    worth: float | None,
    *,
    not_run: bool = False,
    label: Label | None = None,
    error: str = "",
    feedback: str = "",
) -> Outcome:
    """The outcome of an answer. label, error, feedback: of its run, where it had one."""
    return Outcome(
        state.key,
        state.session,
        bool(seen.files),
        seen.label if label is None else label,
        shorten(error, _MAX_ERROR) if error else seen.error,
        worth,
        not_run,
        seen.novelty,
        seen.files_hash,
        feedback,
    )

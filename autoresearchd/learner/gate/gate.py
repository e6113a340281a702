"""The gate of a learner run: what can be asked and judged is looked at before the training, the rest after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.data.read_sessions import TRAINED, ReadSession, Seen
from autoresearchd.learner.data.trajectories import Trajectory, grouped
from autoresearchd.learner.gate.compare_policies import GateOptions, Verdict, compare
from autoresearchd.learner.gate.held_out_states import UNUSABLE, Gathered, HeldOut, reason_of, unusable
from autoresearchd.learner.gate.judge_answers import Attempt, CheckingJudge, HeldOutState, Judge, Outcome
from autoresearchd.learner.gate.promotion_needs import COUNT, JUDGE, STATES, runs_experiments
from autoresearchd.learner.training.constant_values import asks_at_home

if TYPE_CHECKING:
    from autoresearchd.learner.algorithms.learnable import Sampler, Who


_BATCH = 8
"""Completions that are drawn at once."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How two policies are asked and judged.

    judge: ``real`` (experiments are run), ``checks`` (nothing is run: only validity, duplicates and novelty are
    compared), or ``auto``: real where a run trains for ten seconds at most.
    states: at most; count: proposals for each; max_tokens: of a proposal, 0: as long as those that were stored.
    run_foreign: whether experiments of other repositories' sessions may be run, too.
    """

    judge: str = JUDGE
    states: int = STATES
    count: int = COUNT
    max_tokens: int = 0
    temperature: float = 1.0
    run_foreign: bool = False

    @property
    def at_home(self) -> bool:
        """Whether only the repository's own sessions are asked about."""
        return asks_at_home(self.judge, run_foreign=self.run_foreign)


class Rehearsing(Judge, Protocol):
    """A judge that can tell beforehand for which sessions it cannot judge."""

    def rehearse(self, states: Sequence[HeldOutState]) -> Mapping[str, str]:
        """The sessions of these states that cannot be judged here, each with the reason in words."""
        ...


class Bench(Protocol):
    """Opens sessions, and makes the judge that runs their experiments."""

    def opened(self, sessions: Iterable[ReadSession], names: Iterable[str]) -> AbstractContextManager[HeldOut]:
        """The sessions of these names, open until the end of the context."""
        ...

    def real(self, held: HeldOut) -> Rehearsing:
        """The judge that runs experiments; UsageError where those of the sessions did not run in one place."""
        ...


@dataclass(frozen=True, slots=True)
class Exam:
    """What a gate asks about, and how.

    sessions: those that were read. held_out: the trajectories whose states are asked about. seen: what the versions
    have learned from that the new one comes from. settings: how it is asked and judged. seed: of the proposals.
    """

    sessions: Sequence[ReadSession]
    held_out: Sequence[Trajectory]
    settings: GateSettings
    seed: int = 0
    seen: Seen = field(default_factory=Seen)

    @property
    def names(self) -> set[str]:
        """Of the sessions that are asked about."""
        return {each.session for each in self.held_out}


class Gate:
    """The gate of one learner run: ``rehearse`` before the training, ``verdict`` after it.

    A session that cannot be opened, read or judged here is left out, by name, and the others are asked about.
    """

    def __init__(
        self, exam: Exam, bench: Bench, tell: Callable[[str], None], cancel: Cancel, options: GateOptions | None = None
    ) -> None:
        self._exam, self._bench, self._tell, self._cancel = exam, bench, tell, cancel
        self._options = options or GateOptions()
        self._lost: dict[str, str] = {}

    # -- before the training
    def rehearse(self) -> int:
        """Say before anything is trained what will not be asked about, and why; how many states are left.

        Where experiments are to be run, each task is set up, and what was the best in its session runs once. Raises
        UsageError: the sessions' experiments ran in different places; Interrupted: ``cancel`` was set;
        EnvironmentFailure: the disk is full.
        """
        with self._bench.opened(self._exam.sessions, self._exam.names) as held:
            gathered = self._gathered(held)
            if self._runs(held, gathered.states):
                self._lost |= self._bench.real(held).rehearse(gathered.states)
                gathered = self._gathered(held)
        for why, count in gathered.left_out.items():
            self._tell(f"{_states(count)} not asked about: {why}")
        count = len(gathered.states)
        if count < self._options.least:
            self._tell(
                f"{counted(count, 'held-out state') if count else 'no held-out states'} can be asked about, and a "
                f"promotion takes at least {self._options.least}: what is learned now will be kept and not used"
            )
        return count

    # -- after it
    def verdict(self, model: Sampler, old: Who, new: Who, max_tokens: int) -> Verdict:
        """Compare what two policies propose at the held-out states, in at most so many tokens.

        Raises Interrupted: ``cancel`` was set; EnvironmentFailure: the disk is full.
        """
        settings = self._exam.settings
        with self._bench.opened(self._exam.sessions, self._exam.names) as held:
            gathered = self._gathered(held)
            states, too_long = fitting(model, gathered.states, max_tokens)
            left_out = Counter({**gathered.left_out, **too_long})
            for why, count in too_long.items():
                self._tell(f"{_states(count)} not asked about: {why}")
            asked = f"{counted(len(states), 'held-out state')}, {counted(settings.count, 'proposal')} each"
            self._tell(f"the new and the old policy are asked about {asked}")
            attempts = [
                fresh(
                    model,
                    states,
                    who=who,
                    count=settings.count,
                    max_tokens=max_tokens,
                    temperature=settings.temperature,
                    seed=self._exam.seed,
                    cancel=self._cancel,
                )
                for who in (old, new)
            ]
            judge = self._bench.real(held) if self._runs(held, states) else CheckingJudge(held.rules)
            outcomes = self._outcomes(judge, attempts)
        left_out.update(unusable(s.session, self._lost[s.session]) for s in states if s.session in self._lost)
        return compare(*outcomes, self._options, left_out=left_out)

    def _outcomes(self, judge: Judge, attempts: Sequence[Sequence[Attempt]]) -> tuple[list[Outcome], list[Outcome]]:
        """What came of both policies' proposals, session by session: one that fails takes no other with it."""
        found: tuple[list[Outcome], list[Outcome]] = ([], [])
        for session in dict.fromkeys(state.session for side in attempts for state, _ in side):
            if session in self._lost:
                continue
            mine = [[attempt for attempt in side if attempt[0].session == session] for side in attempts]
            try:
                judged = judge.judge_all([attempt for side in mine for attempt in side])
            except UNUSABLE as error:
                self._lost[session] = reason_of(error)
                self._tell(f"nothing is judged for session {session}: {self._lost[session]}")
                continue
            found[0].extend(judged[: len(mine[0])])
            found[1].extend(judged[len(mine[0]) :])
        return found

    # -- both
    def _gathered(self, held: HeldOut) -> Gathered:
        """The states that are asked about, and how many others there are, by reason."""
        left_out: Counter[str] = Counter()
        usable: list[Trajectory] = []
        for (session, _), members in grouped(self._exam.held_out).items():
            if session in self._lost:
                left_out[unusable(session, self._lost[session])] += 1
            elif any(self._exam.seen.holds(each) for each in members):
                left_out[TRAINED] += 1
            else:
                usable += members
        found = held.states(usable, most=self._exam.settings.states)
        return Gathered(found.states, {**left_out, **found.left_out})

    def _runs(self, held: HeldOut, states: Iterable[HeldOutState]) -> bool:
        """Whether proposals are run, and not only checked; a foreign task has no say in it."""
        grounds = [held.ground(state.session) for state in states]
        settings = self._exam.settings
        return runs_experiments(
            settings.judge,
            [ground.task.execution.budget.training for ground in grounds],
            foreign=any(ground.foreign for ground in grounds),
            run_foreign=settings.run_foreign,
        )


def _states(count: int) -> str:
    return f"{counted(count, 'held-out state')} {'is' if count == 1 else 'are'}"


def fitting(
    model: Sampler, states: Sequence[HeldOutState], max_tokens: int
) -> tuple[tuple[HeldOutState, ...], Mapping[str, int]]:
    """The states whose prompt leaves room for an answer, and how many others there are, by the reason in words."""
    if model.context is None:
        return tuple(states), {}
    room = model.context - max_tokens
    found = tuple(state for state in states if len(model.encode(state.messages)) <= room)
    why = f"its prompt and an answer of {max_tokens:,} tokens are longer than the model's context of {model.context:,}"
    return found, {why: len(states) - len(found)} if len(found) < len(states) else {}


def fresh(
    model: Sampler,
    states: Sequence[HeldOutState],
    *,
    who: Who,
    count: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    batch: int = _BATCH,
    cancel: Cancel | None = None,
) -> list[Attempt]:
    """Ask a policy ``count`` times at each state, all of which fit; the completions in order of the states.

    The seed of each completion follows from ``seed``, the state and its place alone: two policies that are asked with
    the same arguments draw with the same random numbers, so that what differs is what they believe. Raises Interrupted:
    ``cancel`` was set; it is looked at between two batches.
    """
    questions: list[tuple[HeldOutState, tuple[int, ...], int]] = []
    for state in states:
        prompt = model.encode(state.messages)
        questions += [(state, prompt, derive_seed(seed, i, f"fresh {state.key}")) for i in range(count)]
    # Prompts of like length share a batch: there is less padding to compute.
    order = sorted(range(len(questions)), key=lambda i: len(questions[i][1]))
    found: dict[int, Attempt] = {}
    for begin in range(0, len(order), batch):
        if cancel is not None and cancel.is_set():
            raise Interrupted("the learner was stopped while it drew fresh proposals")
        chosen = order[begin : begin + batch]
        drawn = model.generate(
            [questions[i][1] for i in chosen],
            max_tokens=max_tokens,
            temperature=temperature,
            seeds=[questions[i][2] for i in chosen],
            who=who,
        )
        found |= {i: (questions[i][0], each.text) for i, each in zip(chosen, drawn, strict=True)}
    return [found[i] for i in range(len(questions))]

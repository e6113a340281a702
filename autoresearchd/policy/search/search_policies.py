"""The policies without a model: ``search``, which learns from what was tried, and ``random``, the honest floor.

Candidate values of ``search`` are moderate steps around the present value; an additive Gaussian process over past
effects picks what most likely pays. With the same history, state and seed a new object proposes the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel, ResearchState, TrialHistory
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.policy.search.find_constants import Program
from autoresearchd.policy.search.memory import Candidate, Coupling, Effect, Memory, Surrogate, expected_gain, key, where
from autoresearchd.policy.search.name_ranges import BATCH, CONTEXT, PER_PASS, words_of
from autoresearchd.policy.search.parameter import Parameter, Value

Move = tuple[Parameter, Value]

_MOST_CHANGES = 3
_STEPS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
_WHIM = 0.25
"""How much chance there is in the choice: groups drawn from one state must differ."""
_MARGIN = 1.5
"""How much of the noise a change has to bring before it counts."""
_RESTS = 6
"""For how many proposals a move that was discarded again in a bundle is put into no other."""
_FAVOURED = 2
"""Unless so many trials favour it."""
_MEANING = {  # of a higher and of a lower value, by family
    "learning rate": ("may converge faster within the budget", "may train more stably and end lower"),
    "batch size": ("gives less noisy gradients for fewer steps", "gives more optimiser steps within the budget"),
    "width": ("gives the model more capacity", "lets the model take more steps within the budget"),
    "depth": ("gives the model more depth", "lets the model take more steps within the budget"),
    "context": ("lets each token see further", "makes steps cheaper"),
    "weight decay": ("may regularise better", "may let the weights grow as they need"),
    "dropout": ("may regularise better", "may use the short budget better"),
    "average": ("averages gradients over a longer time", "follows the gradients more closely"),
    "schedule": ("makes a phase of the schedule longer", "makes a phase of the schedule shorter"),
    "epsilon": ("damps small updates", "lets small gradients count"),
    "steps": ("gives the procedure more steps", "makes the procedure cheaper"),
    "count": ("may suit this budget better", "makes steps cheaper"),
}
_ARCHITECTURE = frozenset({"width", "depth", "context", "count", "choice", "flag"})


class SearchPolicy:
    """Searches the constants of the editable files.

    code_at: texts of the editable files at a commit. Without it the search does not know what constants were before a
    keep changed them, and so not which way it went.
    """

    name = "search"
    repairs = 0

    def __init__(self, history: TrialHistory, code_at: Callable[[str], Mapping[str, str]] | None = None) -> None:
        self._history, self._code_at = history, code_at
        self._memory: Memory | None = None
        self._program = Program()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """The change that most likely pays."""
        if cancel.is_set():
            raise Interrupted("the search was asked to stop")
        parameters = self._program.tunable(state.task, state.code)
        memory = self._memory = self._memory or Memory(state.task.metric)
        memory.refresh(self._history)
        effects = memory.effects(_values(state), state.baseline)
        lineage = self._lineage(state, memory)
        coupling = Coupling(parameters, memory, lineage)
        telling = [e for e in effects if not (e.failed and coupling.explained.issuperset(e.changes))]
        surrogate = Surrogate(parameters, lineage, telling, state.parent, state.sigma)
        turn = _Turn(state, parameters, memory, surrogate, effects, coupling)
        chosen = turn.choose()
        moves = [(c.parameter, c.value) for c in chosen]
        return _proposal(self.name, self._program, state, moves, turn.reason(chosen), turn.expected(chosen))

    def _lineage(self, state: ResearchState, memory: Memory) -> dict[str, dict[str, Value]]:
        """What the constants were at the incumbent and at each of its ancestors, as far as is known."""
        ancestry = memory.ancestry(state.parent)
        root, current = ancestry[0][0], self._program.values(state.task, state.code)
        values = {n: v for n, v in current.items() if not any(n in changes for _, changes in ancestry)}
        if self._code_at is not None and root != state.parent:
            values = self._program.values(state.task, self._code_at(root))
        known: dict[str, dict[str, Value]] = {}
        for commit, changes in ancestry:
            values = {**values, **changes}
            known[commit] = values
        return {**known, state.parent: current}


class RandomPolicy:
    """Draws one to three constants and their values uniformly; what it draws follows from the state's seed alone."""

    name = "random"
    repairs = 0

    def __init__(self) -> None:
        self._program = Program()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """A random change."""
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        parameters = self._program.tunable(state.task, state.code)
        random = np.random.default_rng(state.seed)
        for _ in range(100):
            if changes := draw(parameters, random):
                moves = [(parameters[name], value) for name, value in changes.items()]
                return _proposal(self.name, self._program, state, moves, "drawn at random")
        raise PolicyError("no constant has another value in its range", label=Label.NO_OP)


def draw(parameters: Mapping[str, Parameter], random: np.random.Generator) -> dict[str, Value]:
    """One to three constants, each anywhere in its range, none at its present value; empty where luck failed."""
    names = sorted(parameters)
    count = min(len(names), int(random.integers(1, _MOST_CHANGES + 1)))
    chosen = [parameters[names[int(i)]] for i in random.choice(len(names), size=count, replace=False)]
    changes = {parameter.name: _anywhere(parameter, random) for parameter in chosen}
    return {name: value for name, value in changes.items() if value != parameters[name].value}


def _anywhere(parameter: Parameter, random: np.random.Generator) -> Value:
    if not parameter.numeric:
        others = parameter.others()
        return others[int(random.integers(len(others)))]
    low, high = parameter.bounds()
    for _ in range(20):
        if (value := parameter.at(float(random.uniform(low, high)))) != parameter.value:
            return value
    return parameter.value


def _proposal(
    name: str, program: Program, state: ResearchState, moves: Sequence[Move], reason: str, expected: float | None = None
) -> Proposal:
    changes = {parameter.name: value for parameter, value in moves}
    clauses = "; ".join(map(_clause, moves))
    hypothesis = clauses[0].upper() + clauses[1:] + (f" ({reason})" if reason else "")
    subject = ", ".join(f"{p.label} {_show(p.value)} → {_show(value)}" for p, value in moves)
    alters_model = any(parameter.range.family in _ARCHITECTURE for parameter, _ in moves)
    return Proposal(
        files=program.files(state, changes),
        hypothesis=hypothesis,
        policy=name,
        description=subject,
        expected_delta=expected,
        changes=changes,
        role=state.role,
        asi=ASI(hypothesis, arch_change=subject if alters_model else "", next_action_hint=_hint(moves)),
        state_id=state.state_id,
        round_id=state.round_id,
    )


def _show(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _clause(move: Move) -> str:
    """Why one change might help."""
    parameter, value = move
    arrow = f"({_show(parameter.value)} → {_show(value)})"
    if not parameter.numeric:
        new = f"as {_show(value)}" if not isinstance(value, bool) else "on" if value else "off"
        return f"{parameter.label} {new} may suit this budget better {arrow}"
    higher = parameter.place(value) > parameter.home
    meaning = _MEANING.get(parameter.range.family, ("may suit this budget better",) * 2)[0 if higher else 1]
    return f"a {'higher' if higher else 'lower'} {parameter.label} {arrow} {meaning}"


def _hint(moves: Sequence[Move]) -> str:
    """What to try next, whichever way this one ends."""
    parameter, value = moves[0]
    if len(moves) > 1:
        return "if it helps, go on from here; if not, try the changes one at a time"
    if not parameter.numeric:
        return f"if it does not help, leave {parameter.label} at {_show(parameter.value)}"
    here, there = parameter.home, parameter.place(value)
    further, back = parameter.at(2 * there - here), parameter.at(2 * here - there)
    onward = f"if it helps, try {parameter.label} = {_show(further)}" if further != value else "if it helps, keep it"
    return f"{onward}; if not, try {_show(back)}" if back != parameter.value else f"{onward}; if not, leave it"


class _Turn:
    def __init__(
        self,
        state: ResearchState,
        parameters: Mapping[str, Parameter],
        memory: Memory,
        surrogate: Surrogate,
        effects: Sequence[Effect],
        coupling: Coupling,
    ) -> None:
        self._effects, self._coupling = effects, coupling
        self._state, self._memory, self._surrogate = state, memory, surrogate
        self._all = parameters
        self._parameters = {n: p for n, p in parameters.items() if n not in coupling.dropped}
        self._random = np.random.default_rng(state.seed)
        self._threshold = _MARGIN * surrogate.noise

    def choose(self) -> list[Candidate]:
        """One to three changes."""
        for changes in self._coupling.untried:
            together = [c for n, v in changes.items() for c in self._surrogate.judge(self._all[n], [v])]
            if self._new(together):
                return together
        scored = []
        for parameter in self._parameters.values():
            if values := self._values(parameter):
                for candidate in self._surrogate.judge(parameter, values):
                    whim = math.exp(_WHIM * float(self._random.standard_normal()))
                    scored.append((self._gain([candidate]) * whim, candidate))
        ranked = [candidate for _, candidate in sorted(scored, key=lambda each: -each[0])]
        for first in ranked:
            chosen = self._combine(first, ranked)
            if self._new(chosen):
                return chosen
            alone = [first, *self._together(first)]
            if self._new(alone):
                return alone
        return self._anything()

    # -- candidates

    def _values(self, parameter: Parameter) -> list[Value]:
        if not parameter.numeric:
            return [v for v in parameter.others() if not self._barred(parameter, v)]
        here, step = parameter.home, parameter.range.step
        whim = float(self._random.uniform(-2.5, 2.5))
        found = dict.fromkeys(parameter.at(here + d * step) for d in (*_STEPS, whim))
        found |= dict.fromkeys(self._coupling.nearby(parameter, list(found)))
        return [v for v in found if v != parameter.value and not self._barred(parameter, v)]

    def _barred(self, parameter: Parameter, value: Value) -> bool:
        """Whether a value is known to fail by itself."""
        if not self._coupling.fits(parameter, value):
            return True
        place = where(parameter, value)
        for before, after, effect in self._surrogate.rises(parameter.name):
            if not effect.failed or len(effect.changes) > 1:
                continue
            if effect.beyond and parameter.numeric:
                if (after > before and place > after - 0.1) or (after < before and place < after + 0.1):
                    return True
            elif abs(place - after) < 1e-9:
                return True
        return False

    def _gain(self, candidates: Sequence[Candidate]) -> float:
        mean = sum(c.mean for c in candidates)
        deviation = math.sqrt(sum(c.deviation**2 for c in candidates))
        return expected_gain(mean, deviation, self._threshold)

    # -- the choice

    def _combine(self, first: Candidate, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Add what helped or nearly helped in the past, where that makes success likelier."""
        chosen = [first, *self._together(first), *self._beside(first)]
        if first.parameter.name in self._coupling.doubtful:
            return chosen
        best: dict[str, Candidate] = {}
        for candidate in ranked:
            name = candidate.parameter.name
            known = name != first.parameter.name and candidate.mean > 0 and self._surrogate.rises(name) != []
            known = known and name not in self._coupling.doubtful and not self._rests(candidate)
            if known and (name not in best or candidate.mean > best[name].mean):
                best[name] = candidate
        for candidate in sorted(best.values(), key=lambda c: -c.mean):
            new = candidate.parameter.name not in {c.parameter.name for c in chosen}
            if new and len(chosen) < _MOST_CHANGES and self._gain([*chosen, candidate]) > 1.1 * self._gain(chosen):
                chosen.append(candidate)
        return chosen

    def _together(self, first: Candidate) -> list[Candidate]:
        """What has to have the same value."""
        names = self._coupling.together.get(first.parameter.name, ())
        return [c for name in names for c in self._surrogate.judge(self._all[name], [first.value])]

    def _rests(self, candidate: Candidate) -> bool:
        """Whether a move was discarded twice here, in a bundle lately, and one (lucky) trial at most favours it."""
        place = where(candidate.parameter, candidate.value)
        rises = self._surrogate.rises(candidate.parameter.name)
        same = [e for before, after, e in rises if (after - before) * place > 0]
        here = [e for e in same if e.parent == self._state.parent and not e.kept]
        lately = [len(e.changes) for e in here if self._state.number - e.number <= _RESTS]
        bundled = max(lately, default=0) > 1 and len(here) > 1
        return bundled and sum(e.kept or (e.gain or 0.0) > 0 for e in same) < _FAVOURED

    def _beside(self, first: Candidate) -> Iterator[Candidate]:
        """Rows per pass, moved against a context length: as many tokens fit into the memory as before."""
        moved = first.parameter
        if moved.range.family != CONTEXT or not isinstance(first.value, int) or isinstance(moved.value, (str, bool)):
            return
        for parameter in self._parameters.values():
            rows = parameter.range.family == BATCH and set(words_of(parameter.name)) & PER_PASS
            if rows and parameter.path == moved.path and isinstance(parameter.value, int):
                exact = parameter.value * moved.value / first.value
                whole = exact >= 1 and exact.is_integer() and parameter.legal(exact)
                if whole and not self._barred(parameter, int(exact)):
                    yield from self._surrogate.judge(parameter, [int(exact)])
                return

    def _new(self, chosen: Sequence[Candidate]) -> bool:
        changes = {c.parameter.name: c.value for c in chosen}
        return key(self._state.parent, changes) not in self._memory.tried

    def _anything(self) -> list[Candidate]:
        free = {n: p for n, p in self._parameters.items() if n not in self._coupling.together}
        for _ in range(200):
            drawn = draw(free, self._random)
            chosen = [Candidate(self._parameters[name], value) for name, value in drawn.items()]
            fits = all(self._coupling.fits(c.parameter, c.value) for c in chosen)
            if chosen and fits and self._new(chosen):
                return chosen
        raise PolicyError(
            f"all values of {counted(len(free), 'constant')} have been tried on this program{self._left_alone()}",
            label=Label.NO_OP,
            hint="add constants to the editable file, or take a policy with a model (--policy litellm:MODEL)",
        )

    # -- words

    def expected(self, chosen: Sequence[Candidate]) -> float | None:
        """Expected improvement: what the surrogate believes, else what keeps brought so far, else nothing."""
        mean = sum(c.mean for c in chosen)
        if mean > 0 and all(self._surrogate.rises(c.parameter.name) for c in chosen):
            return mean
        keeps = [e.gain for e in self._effects if e.kept and e.gain is not None]
        return statistics.median(keeps) if keeps else None

    def reason(self, chosen: Sequence[Candidate]) -> str:
        """Why this and why now, from the history, and what was given up since the last time."""
        news = self._left_alone(since=max((m.number for m in self._memory.misfits), default=0))
        return f"{self._why(chosen)}{news}".removeprefix("; ")

    def _left_alone(self, since: int = 0) -> str:
        """Which constants are moved no more, in words; since: the failure that it was for, or a later one."""
        latest = since == 0 or all(e.number <= since for e in self._effects)
        names = [self._all[n].label for n, last in self._coupling.dropped.items() if last >= since and latest]
        return f"; left alone, for it fits no other value: {', '.join(sorted(names))}" if names else ""

    def _why(self, chosen: Sequence[Candidate]) -> str:
        if any(c.parameter.name in self._coupling.together for c in chosen):
            return "one alone failed for the other, which has the same value"
        if len(chosen) > 1:
            return "together they may pass what each alone did not"
        only = chosen[0]
        place = where(only.parameter, only.value)
        for before, after, effect in reversed(self._surrogate.rises(only.parameter.name)):
            if effect.gain is None or not only.parameter.numeric:
                continue
            # The difference of two values may say otherwise than the estimate that the experiment was decided on.
            told, over = (effect.gain, " over its parent's value") if effect.told is None else (effect.told, "")
            same = (after - before) * place > 0
            if same and told > 0:
                return f"a step this way brought {told:+.4g}{over} in experiment {effect.number}"
            if not same and told < 0:
                return f"the other way cost {told:+.4g}{over} in experiment {effect.number}"
        return ""


def _values(state: ResearchState) -> dict[str, float]:
    decided = [(e.commit, e.decision) for e in (*state.top, *state.recent)]
    values = {c: d.value for c, d in decided if c and d and d.status is Status.KEEP and d.value is not None}
    if state.incumbent_value is not None:
        values[state.incumbent or state.parent] = state.incumbent_value
    return values

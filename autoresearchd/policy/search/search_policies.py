"""The policies without a model: ``search``, which learns from what was tried, and ``random``, the honest floor.

Candidate values of ``search`` lie around the present value, from fractions of a moderate step to as far as steps pay; a
Gaussian process over past effects picks what most likely pays. With the same history, state and seed a new object
proposes the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.outlook import Outlook, Prospect
from autoresearchd.domain.ports import Cancel, ResearchState, TrialHistory
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.evaluator.rules.run_time import reads_budget
from autoresearchd.policy.search.find_constants import constants, movable, new_files, spaces
from autoresearchd.policy.search.memory import Array, Coupling, Effect, Memory, Surrogate, expected_gain, key, where
from autoresearchd.policy.search.parameter import BATCH, CONTEXT, PER_PASS, Parameter, Value, words_of

_MOST_CHANGES = 3
_LADDER = tuple(way * size for size in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0) for way in (-1, 1))
"""From fractions of a moderate step to decades."""
_REACH = 2.0
"""How many moderate steps a constant may go at once: between ends that a person gave, any number."""
_PAID, _GROWTH = 2.0, 4.0
"""A step that brought so many times the noise may be followed by one so many times as long."""
_STUCK = 8
"""After so many experiments in a row that were not kept, any step may be twice as long."""
_HELPS = 0.5
"""To how many times the noise a move has to be believed in before it is put beside another one."""
_WHIM = 0.25
"""How much chance there is in the choice: groups drawn from one state must differ."""
_MARGIN = 1.5
"""How much of the noise a change has to bring before it counts."""
_RESTS = 6
"""For how many proposals a move that was discarded again in a bundle is put into no other."""
_FAVOURED = 2
"""Unless so many trials favour it."""
_MOST_MOVED = 256
"""Constants that are moved, the most important first: what each move may bring takes time by their square."""
_SHOWN = 6
"""Values of a constant that an outlook has: the most promising."""
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


class Move(NamedTuple):
    """A constant, and the value that it is given."""

    parameter: Parameter
    value: Value


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
        self._read: dict[str, dict[str, Value]] = {}  # constants of programs, by commit
        self._named: dict[str, str] = {}
        self._first: dict[tuple[tuple[str, str], ...], str] = {}
        self._outlook: tuple[str, Outlook] | None = None
        self._ahead: tuple[object, _Turn] | None = None  # what the outlook was made from: a pass asks for its choice

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """The change that most likely pays."""
        if cancel.is_set():
            raise Interrupted("the search was asked to stop")
        ahead, self._ahead = self._ahead, None
        turn = ahead[1] if ahead is not None and ahead[0] == _key(state) else self._turn(state)
        chosen = turn.chosen
        return _proposal(self.name, state, chosen, turn.reason(chosen), turn.expected(chosen))

    def outlook(self, state: ResearchState) -> Outlook:
        """What it would propose now, and what it believes of each constant; members of a round are given the same.

        PolicyError: there is nothing to tune, or nothing left.
        """
        key = f"{state.round_id}/{state.parent}"
        if not state.round_id or self._outlook is None or self._outlook[0] != key:
            turn = self._turn(state)
            self._outlook, self._ahead = (key, turn.outlook()), (_key(state), turn)
        return self._outlook[1]

    def _turn(self, state: ResearchState) -> _Turn:
        """All that a choice is made from."""
        found = constants(state.task, state.code)
        movables = {name: parameter for name, parameter in found.items() if movable(parameter)}
        most = {*sorted(movables, key=lambda name: -movables[name].range.priority)[:_MOST_MOVED]}
        parameters = {name: parameter for name, parameter in movables.items() if name in most}
        if self._memory is None:
            self._memory = Memory(state.task.metric)
            if state.task.history == "revert" and self._code_at is not None:
                self._memory.program = partial(self._program, self._code_at)
        memory = self._memory.refresh(self._history)
        state = replace(state, parent=memory.program(state.parent))
        values = _values(state)
        effects = memory.effects(values, state.baseline, values.get(state.parent)) + memory.pending(state.under_way)
        lineage = self._lineage(state, {p.name: p.value for p in found.values()}, memory)
        coupling = Coupling(parameters, memory, lineage)
        telling = [e for e in effects if not (e.failed and coupling.explained.issuperset(e.changes))]
        timed = reads_budget(state.task, state.code)
        first = lineage.get(memory.ancestry(state.parent)[0][0], parameters)
        fresh = parameters.keys() - first.keys()
        surrogate = Surrogate(parameters, lineage, telling, state.parent, state.sigma, timed, fresh)
        return _Turn(state, parameters, memory, surrogate, effects, coupling, lineage)

    def _program(self, code_at: Callable[[str], Mapping[str, str]], commit: str) -> str:
        """The first commit that was seen with the files of this one."""
        if commit not in self._named:
            self._named[commit] = self._first.setdefault(tuple(sorted(code_at(commit).items())), commit)
        return self._named[commit]

    def _lineage(self, state: ResearchState, current: dict[str, Value], memory: Memory) -> dict[str, dict[str, Value]]:
        """What the constants were at the incumbent and at each of its ancestors, as far as is known."""
        ancestry = memory.ancestry(state.parent)
        values = {n: v for n, v in current.items() if not any(n in changes for _, changes in ancestry)}
        known: dict[str, dict[str, Value]] = {}
        for commit, changes in ancestry:
            if not changes and self._code_at is not None and commit != state.parent:  # the root, or more than constants
                if commit not in self._read:
                    found = spaces(state.task, self._code_at(commit)).values()
                    self._read[commit] = {p.name: p.value for space in found for p in space.parameters}
                values = self._read[commit]
            values = {**values, **changes}
            known[commit] = values
        return {**known, state.parent: current}


class RandomPolicy:
    """Draws one to three constants and their values uniformly; what it draws follows from the state's seed alone."""

    name = "random"
    repairs = 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """A random change."""
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        parameters = {n: p for n, p in constants(state.task, state.code).items() if movable(p)}
        random = np.random.default_rng(state.seed)
        for _ in range(100):
            if changes := draw(parameters, random):
                moves = [Move(parameters[name], value) for name, value in changes.items()]
                return _proposal(self.name, state, moves, "drawn at random")
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
    low, high = parameter.bounds
    for _ in range(20):
        if (value := parameter.at(float(random.uniform(low, high)))) != parameter.value:
            return value
    return parameter.value


def _proposal(
    name: str, state: ResearchState, moves: Sequence[Move], reason: str, expected: float | None = None
) -> Proposal:
    clauses = "; ".join(map(_clause, moves))
    hypothesis = clauses[0].upper() + clauses[1:] + (f" ({reason})" if reason else "")
    subject = ", ".join(f"{p.label} {_show(p.value)} → {_show(value)}" for p, value in moves)
    alters_model = any(parameter.range.family in _ARCHITECTURE for parameter, _ in moves)
    return Proposal(
        files=new_files(state.code, moves),
        hypothesis=hypothesis,
        policy=name,
        description=subject,
        expected_delta=expected,
        changes={parameter.name: value for parameter, value in moves},
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


@dataclass
class _Turn:
    """One choice. all: the constants by name, those among them that are moved no more."""

    state: ResearchState
    all: Mapping[str, Parameter]
    memory: Memory
    surrogate: Surrogate
    effects: Sequence[Effect]
    coupling: Coupling
    lineage: Mapping[str, Mapping[str, Value]]

    def __post_init__(self) -> None:
        self._parameters = {n: p for n, p in self.all.items() if n not in self.coupling.dropped}
        self._random = np.random.default_rng(self.state.seed)
        self._threshold = _MARGIN * self.surrogate.noise

    @cached_property
    def chosen(self) -> list[Move]:
        """One to three changes."""
        for changes in self.coupling.untried:
            together = [Move(self.all[name], value) for name, value in changes.items()]
            if self._new(together):
                return together
        moves = self._moves
        firsts, gains, means, _ = self._firsts
        helpful: dict[str, list[Move]] = {}  # by constant, the best first
        for i in np.argsort(-means):
            if means[i] > _HELPS * self.surrogate.noise and self._joins(firsts[i]):
                helpful.setdefault(firsts[i][0].parameter.name, firsts[i])
        whim = np.exp(_WHIM * self._random.standard_normal(len(firsts)))
        for i in np.argsort(-gains * whim):
            combined, alone = self._combine(firsts[i], gains[i], helpful), [moves[i], *self._together(moves[i])]
            for chosen in (combined, alone):
                if self._new(chosen):
                    return chosen
        return self._anything()

    def outlook(self) -> Outlook:
        """The choice, and what is believed of each constant that may be moved by itself."""
        chosen, before = self.chosen, self._run_before()
        _, gains, means, deviations = self._firsts
        open_: dict[str, list[int]] = {}
        for i in np.argsort(-gains):
            name, value = self._moves[i].parameter.name, self._moves[i].value
            if name not in self.coupling.together and value not in before.get(name, ()) and self._new([self._moves[i]]):
                open_.setdefault(name, []).append(int(i))
        found = []
        for name, best in ((n, open_[n][:_SHOWN]) for n in self._parameters if n in open_):
            p, first = self._parameters[name], best[0]
            found.append(
                Prospect(
                    name,
                    p.value,
                    p.kind.value,
                    p.range.low if p.numeric else None,
                    p.range.high if p.numeric else None,
                    tuple(sorted((self._moves[i].value for i in best), key=lambda value: where(p, value))),
                    self._moves[first].value,
                    float(means[first]),
                    float(deviations[first]),
                    len(self.surrogate.rises(name)),
                    tuple(before.get(name, ())),
                )
            )
        return Outlook(tuple(found), {c.parameter.name: c.value for c in chosen})

    def _run_before(self) -> dict[str, dict[Value, None]]:
        """By constant, values that alone give a program which was run: here, or where only constants differ from it."""
        now, away = self.lineage[self.state.parent], dict[str, dict[str, Value]]()
        for commit, changes in reversed(self.memory.ancestry(self.state.parent)):
            if (then := self.lineage.get(commit)) is not None:
                away[commit] = {n: v for n, v in then.items() if n in now and v != now[n]}
            if not changes:  # the beginning, or where more than constants changed
                break
        found: dict[str, dict[Value, None]] = {}
        for parent, made in (*self.memory.tried, *((commit, frozenset()) for commit in away)):
            if parent in away and len(made) <= len(away[parent]) + 1:
                left = [(n, v) for n, v in {**away[parent], **dict(made)}.items() if now.get(n) != v]
                if len(left) == 1:
                    found.setdefault(left[0][0], {})[left[0][1]] = None
        return found

    # -- candidates

    @cached_property
    def _moves(self) -> list[Move]:
        return [Move(p, value) for p in self._parameters.values() for value in self._values(p)]

    @cached_property
    def _firsts(self) -> tuple[list[list[Move]], Array, Array, Array]:
        """Each move with what goes with it; expected improvement, mean and deviation of the gain of each."""
        firsts = [[move, *self._together(move), *self._beside(move)] for move in self._moves]
        return (firsts, *self._judge(firsts))

    def _values(self, parameter: Parameter) -> list[Value]:
        if not parameter.numeric:
            return [v for v in parameter.others() if not self._barred(parameter, v)]
        here, step = parameter.home, parameter.range.step
        down, up = self._reach(parameter)
        whim = float(self._random.uniform(-down, up))
        places = (*(d for d in _LADDER if -down <= d <= up), -down, up, whim)
        found = dict.fromkeys(parameter.at(here + d * step) for d in places)
        found |= dict.fromkeys(self.coupling.nearby(parameter, list(found)))
        return [v for v in found if v != parameter.value and not self._barred(parameter, v)]

    def _reach(self, parameter: Parameter) -> tuple[float, float]:
        """How many steps a constant may go down and up at once."""
        usual = _LADDER[-1] if parameter.range.hard else _REACH * 2.0 ** min(self.state.streak // _STUCK, 4)
        far = {-1: usual, 1: usual}
        for before, after, effect in self.surrogate.rises(parameter.name):
            if not effect.failed and effect.gain is not None and effect.gain > _PAID * self.surrogate.noise:
                way = 1 if after > before else -1
                far[way] = max(far[way], _GROWTH * abs(after - before))
        low, high = ((end - parameter.home) / parameter.range.step for end in parameter.bounds)
        # From outside of the range that a person gave it is counted from the nearer end.
        return min(far[-1] + max(0.0, -high), -low), min(far[1] + max(0.0, low), high)

    def _barred(self, parameter: Parameter, value: Value) -> bool:
        """Whether a value is known to fail by itself."""
        if not self.coupling.fits(parameter, value):
            return True
        place = where(parameter, value)
        for before, after, effect in self.surrogate.rises(parameter.name):
            if not effect.failed or len(effect.changes) > 1:
                continue
            if effect.beyond and parameter.numeric:
                if (after > before and place > after - 0.1) or (after < before and place < after + 0.1):
                    return True
            elif abs(place - after) < 1e-9:
                return True
        return False

    def _judge(self, bundles: Sequence[Sequence[Move]]) -> tuple[Array, Array, Array]:
        """Expected improvement, mean and deviation of the gain of each."""
        if not bundles:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        points = np.array([self.surrogate.place({c.parameter.name: c.value for c in each}) for each in bundles])
        means, deviations = self.surrogate.believe(points)
        found = zip(means, deviations, strict=True)
        return np.array([expected_gain(float(m), float(d), self._threshold) for m, d in found]), means, deviations

    # -- the choice

    def _combine(self, chosen: list[Move], gain: float, helpful: Mapping[str, list[Move]]) -> list[Move]:
        """Add what is thought to help, where that makes success likelier."""
        if self.coupling.doubtful.isdisjoint(c.parameter.name for c in chosen):
            for name, more in helpful.items():
                if len(chosen) < _MOST_CHANGES and name not in {c.parameter.name for c in chosen}:
                    better = float(self._judge([[*chosen, *more]])[0][0])
                    if better > 1.1 * gain:
                        gain, chosen = better, [*chosen, *more]
        return chosen

    def _joins(self, first: Sequence[Move]) -> bool:
        """Whether a move may be put beside another one."""
        return len(first) == 1 and first[0].parameter.name not in self.coupling.doubtful and not self._rests(first[0])

    def _together(self, first: Move) -> list[Move]:
        """What has to have the same value."""
        names = self.coupling.together.get(first.parameter.name, ())
        return [Move(self.all[name], first.value) for name in names]

    def _rests(self, move: Move) -> bool:
        """Whether a move was discarded twice here, in a bundle lately, and one (lucky) trial at most favours it."""
        place = where(move.parameter, move.value)
        rises = self.surrogate.rises(move.parameter.name)
        same = [e for before, after, e in rises if (after - before) * place > 0]
        here = [e for e in same if e.parent == self.state.parent and not e.kept]
        lately = [len(e.changes) for e in here if self.state.number - e.number <= _RESTS]
        bundled = max(lately, default=0) > 1 and len(here) > 1
        return bundled and sum(e.kept or (e.gain or 0.0) > 0 for e in same) < _FAVOURED

    def _beside(self, first: Move) -> Iterator[Move]:
        """Rows per pass, moved against a context length: as many tokens fit into the memory as before."""
        moved = first.parameter
        if moved.range.family != CONTEXT or not isinstance(first.value, int) or isinstance(moved.value, (str, bool)):
            return
        for parameter in self._parameters.values():
            rows = parameter.range.family == BATCH and set(words_of(parameter.name)) & PER_PASS
            if rows and parameter.path == moved.path and isinstance(parameter.value, int) and first.value:
                exact = parameter.value * moved.value / first.value
                whole = exact >= 1 and exact.is_integer() and parameter.legal(exact)
                if whole and not self._barred(parameter, int(exact)):
                    yield Move(parameter, int(exact))
                return

    def _new(self, chosen: Sequence[Move]) -> bool:
        changes = {c.parameter.name: c.value for c in chosen}
        fit = all(c.parameter.legal(c.value) for c in chosen)  # a partner may have a range of its own
        return fit and key(self.state.parent, changes) not in self.memory.tried

    def _anything(self) -> list[Move]:
        free = {n: p for n, p in self._parameters.items() if n not in self.coupling.together}
        for _ in range(200):
            drawn = draw(free, self._random)
            chosen = [Move(self._parameters[name], value) for name, value in drawn.items()]
            fits = all(self.coupling.fits(c.parameter, c.value) for c in chosen)
            if chosen and fits and self._new(chosen):
                return chosen
        raise PolicyError(
            f"all values of {counted(len(free), 'constant')} have been tried on this program{self._left_alone()}",
            label=Label.NO_OP,
            hint="add constants to the editable file, or take a policy with a model (--policy litellm:MODEL)",
        )

    # -- words

    def expected(self, chosen: Sequence[Move]) -> float | None:
        """Expected improvement: what the surrogate believes, else what keeps brought so far, else nothing."""
        mean = float(self._judge([chosen])[1][0])
        if mean > 0 and all(self.surrogate.rises(c.parameter.name) for c in chosen):
            return mean
        keeps = [e.gain for e in self.effects if e.kept and e.gain is not None]
        return statistics.median(keeps) if keeps else None

    def reason(self, chosen: Sequence[Move]) -> str:
        """Why this and why now, from the history, and what was given up since the last time."""
        news = self._left_alone(since=max((m.number for m in self.memory.misfits), default=0))
        return f"{self._why(chosen)}{news}".removeprefix("; ")

    def _left_alone(self, since: int = 0) -> str:
        """Which constants are moved no more, in words; since: the failure that it was for, or a later one."""
        latest = since == 0 or all(e.number <= since for e in self.effects)
        names = [self.all[n].label for n, last in self.coupling.dropped.items() if last >= since and latest]
        return f"; left alone, for it fits no other value: {', '.join(sorted(names))}" if names else ""

    def _why(self, chosen: Sequence[Move]) -> str:
        if any(c.parameter.name in self.coupling.together for c in chosen):
            return "one alone failed for the other, which has the same value"
        if len(chosen) > 1:
            return "together they may pass what each alone did not"
        only = chosen[0]
        place = where(only.parameter, only.value)
        for before, after, effect in reversed(self.surrogate.rises(only.parameter.name)):
            gain = effect.told if only.parameter.numeric else None
            if gain is not None and (after - before) * place > 0 and gain > 0:
                return f"a step this way brought {gain:+.4g} in experiment {effect.number}"
            if gain is not None and (after - before) * place <= 0 and gain < 0:
                return f"the other way cost {gain:+.4g} in experiment {effect.number}"
        return ""


def _key(state: ResearchState) -> object:
    return state.number, state.seed, state.parent, [e.number for e in state.under_way]


def _values(state: ResearchState) -> dict[str, float]:
    decided = [(e.commit, e.decision) for e in (*state.top, *state.recent)]
    values = {c: d.value for c, d in decided if c and d and d.status is Status.KEEP and d.value is not None}
    if state.incumbent_value is not None:
        values[state.incumbent or state.parent] = state.incumbent_value
    return values

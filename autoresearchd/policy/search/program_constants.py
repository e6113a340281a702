"""The tunable constants of all editable files of a state, found once for each text, and random draws from them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.policy.search.find_constants import Space, look, replace, searchable
from autoresearchd.policy.search.measured_constants import left_alone, named
from autoresearchd.policy.search.parameter import Kind, Parameter, Value

_REMEMBERED = 8
MOST_CHANGES = 3


class Program:
    """Finds constants and changes them; remembers what it found in the latest texts."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Space] = {}

    def parameters(self, state: ResearchState) -> dict[str, Parameter]:
        """All tunable constants by name; PolicyError where there are none."""
        return self.tunable(state.task, state.code)

    def tunable(self, task: Task, code: Mapping[str, str]) -> dict[str, Parameter]:
        """The same of some text of the editable files."""
        parameters = {p.name: p for path in task.editable for p in self._of(task, path, code.get(path)) if movable(p)}
        if parameters:
            return parameters
        raise nothing_to_tune(
            task, [found.label for s in spaces(task, code).values() for found in s.left_out if found.notable]
        )

    def values(self, task: Task, code: Mapping[str, str]) -> dict[str, Value]:
        """What the tunable constants are in some text of the editable files."""
        return {p.name: p.value for path in task.editable for p in self._of(task, path, code.get(path))}

    def files(self, state: ResearchState, changes: Mapping[str, Value]) -> dict[str, str]:
        """New text of each file that the changes touch."""
        files: dict[str, str] = {}
        for path in state.task.editable:
            own = {n: v for n, v in changes.items() if n.startswith(f"{path}:")}
            if own:
                files[path] = replace(state.code[path], self._of(state.task, path, state.code[path]), own)
        return files

    def _of(self, task: Task, path: str, text: str | None) -> tuple[Parameter, ...]:
        if text is None or not searchable(path):
            return ()
        key = (path, task.profile, text)
        if key not in self._found:
            self._found[key] = space_of(task, path, text)
            while len(self._found) > _REMEMBERED:
                del self._found[next(iter(self._found))]
        return self._found[key].parameters


def space_of(task: Task, path: str, text: str) -> Space:
    """What may be tuned in a file of a task, and what is left alone and why. The one place where reasons come from."""
    reasons = {c.start: why for c, why in left_alone(task, text)} if path.endswith(".py") else {}
    given = options_of(task.execution.run_command)
    return look(text, path=path, profile=task.profile, reasons=reasons, given=given, search=task.search)


def spaces(task: Task, code: Mapping[str, str]) -> dict[str, Space]:
    """The same of each editable file that can be searched; PolicyError where one cannot be parsed."""
    return {path: space_of(task, path, code[path]) for path in task.editable if path in code and searchable(path)}


def options_of(command: str) -> frozenset[str]:
    """The options and assignments of a command line, without their values: ``--lr``, ``optimizer.lr``."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return frozenset(name for word in words if (name := word.partition("=")[0]) != word or word.startswith("-"))


def nothing_to_tune(task: Task, left_out: Sequence[str] = ()) -> PolicyError:
    """The error for a program without a constant to turn. left_out: names of those that are left alone for a reason."""
    if left_out:
        return PolicyError(
            f"nothing to tune: every constant is left alone ({named(left_out)})",
            label=Label.NO_OP,
            hint="`autoresearchd task space` says why; write what may vary as constants of its own, let the "
            "evaluator measure (evaluation.command), or take a policy with a model (--policy litellm:MODEL)",
        )
    files, others = ", ".join(task.editable), "a policy with a model (--policy litellm:MODEL) or a tool of your own"
    python = any(path.endswith(".py") for path in task.editable)
    why = "no constants at the top level, defaults, known constructor arguments or listed choices"
    if not python:
        known = any(map(searchable, task.editable))
        why = "no number that may vary, and no listed choice" if known else "no Python, YAML, JSON or TOML"
    return PolicyError(
        f"{files}: nothing to tune: {why}",
        label=Label.NO_OP,
        hint=("write what may vary as constants, e.g. LEARNING_RATE = 3e-4, or " if python else "")
        + f"take {others} (--policy command:CMD)",
    )


def movable(parameter: Parameter) -> bool:
    """Whether there is another value that it may have."""
    if not parameter.numeric:
        return bool(parameter.others())
    low, high = parameter.bounds()
    return low < high


def draw(parameters: Mapping[str, Parameter], random: np.random.Generator) -> dict[str, Value]:
    """One to three constants, each anywhere in its range, none at its present value; empty where luck failed."""
    names = sorted(parameters)
    count = min(len(names), int(random.integers(1, MOST_CHANGES + 1)))
    changes: dict[str, Value] = {}
    for index in random.choice(len(names), size=count, replace=False):
        parameter = parameters[names[int(index)]]
        value = _anywhere(parameter, random)
        if value != parameter.value:
            changes[parameter.name] = value
    return changes


def _anywhere(parameter: Parameter, random: np.random.Generator) -> Value:
    if parameter.kind is Kind.CHOICE:
        others = parameter.others()
        return others[int(random.integers(len(others)))]
    low, high = parameter.bounds()
    for _ in range(20):
        value = parameter.at(float(random.uniform(low, high)))
        if value != parameter.value:
            return value
    return parameter.value

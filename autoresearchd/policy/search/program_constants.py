"""The tunable constants of a task's editable files, and those that are left alone because they reach what is measured.

Where a program prints its own score, another value of what makes, reads, splits or seeds the data gives another score
and no better model. The look is by data flow, and by names where those leave no doubt. Where the evaluator measures, on
data that the program does not make, more rows to train on are an honest edit.
"""

from __future__ import annotations

import shlex
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.policy.search.comments import Source
from autoresearchd.policy.search.data_flow import Constant, reached
from autoresearchd.policy.search.find_constants import UNPARSABLE, Space, look, replace, searchable
from autoresearchd.policy.search.known_calls import usual
from autoresearchd.policy.search.name_ranges import bag, words_of
from autoresearchd.policy.search.parameter import Parameter, Value
from autoresearchd.policy.search.program_parts import Parts

_REMEMBERED = 8
_MOST_CHARACTERS = 400_000
_MOST_NAMED = 8
_TAKE_MODEL = "take a policy with a model (--policy litellm:MODEL)"

_PARTS = bag("train training val valid validation test eval evaluation holdout heldout dev")
_AMOUNTS = bag("n num size number count frac fraction ratio pct percent share row sample example point item image line")
_ROWS = bag("sample row example point observation record datapoint")
_COUNTED = bag("n num number")
_EVALUATED = bag("iter iteration batch step token sample seed length len context k")
_PLACE = bag("path dir directory file folder root csv")
_DATA = bag("data dataset corpus input train val valid test label target")


class Program:
    """Finds constants and changes them; remembers what it found in the latest texts."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Space] = {}

    def tunable(self, task: Task, code: Mapping[str, str]) -> dict[str, Parameter]:
        """All constants by name that have another value; PolicyError where there are none."""
        parameters = {p.name: p for path in task.editable for p in self._of(task, path, code.get(path)) if movable(p)}
        if parameters:
            return parameters
        left = [left.label for space in spaces(task, code).values() for left in space.left_out if left.notable]
        raise nothing_to_tune(task, left)

    def values(self, task: Task, code: Mapping[str, str]) -> dict[str, Value]:
        """What the constants are in some text of the editable files."""
        return {p.name: p.value for path in task.editable for p in self._of(task, path, code.get(path))}

    def files(self, state: ResearchState, changes: Mapping[str, Value]) -> dict[str, str]:
        """New text of each file that the changes touch."""
        by_path: dict[str, dict[str, Value]] = defaultdict(dict)
        for name, value in changes.items():
            by_path[next(path for path in state.task.editable if name.startswith(f"{path}:"))][name] = value
        code = state.code
        return {path: replace(code[path], self._of(state.task, path, code[path]), by_path[path]) for path in by_path}

    def _of(self, task: Task, path: str, text: str | None) -> tuple[Parameter, ...]:
        if text is None or not searchable(path):
            return ()
        key = (path, task.profile, text)
        if key not in self._found:
            while len(self._found) >= _REMEMBERED:
                del self._found[next(iter(self._found))]
            self._found[key] = space_of(task, path, text)
        return self._found[key].parameters


def space_of(task: Task, path: str, text: str) -> Space:
    """What may be tuned in a file of a task, and what is left alone and why. The one place where reasons come from."""
    reasons = {c.start: why for c, why in left_alone(task, text)} if path.endswith(".py") else {}
    command = task.execution.run_command
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    # The command's options and assignments, without their values: --lr, optimizer.lr.
    given = {name for word in words if (name := word.partition("=")[0]) != word or word.startswith("-")}
    return look(text, path=path, profile=task.profile, reasons=reasons, given=given, search=task.search)


def spaces(task: Task, code: Mapping[str, str]) -> dict[str, Space]:
    """The same of each editable file that can be searched; PolicyError where one cannot be parsed."""
    return {path: space_of(task, path, code[path]) for path in task.editable if path in code and searchable(path)}


def nothing_to_tune(task: Task, left_out: Sequence[str] = ()) -> PolicyError:
    """The error for a program without a constant to turn. left_out: names of those that are left alone for a reason."""
    if left_out:
        what = f"nothing to tune: every constant is left alone ({named(left_out)})"
        hint = (
            "`autoresearchd task space` says why; write what may vary as constants of its own, let the evaluator "
            f"measure (evaluation.command), or {_TAKE_MODEL}"
        )
    else:
        why = "no number that may vary, and no listed choice"
        hint = f"{_TAKE_MODEL} or a tool of your own (--policy command:CMD)"
        if any(path.endswith(".py") for path in task.editable):
            why = "no constants at the top level, defaults, known constructor arguments or listed choices"
            hint = f"write what may vary as constants, e.g. LEARNING_RATE = 3e-4, or {hint}"
        elif not any(map(searchable, task.editable)):
            why = "no Python, YAML, JSON or TOML"
        what = f"{', '.join(task.editable)}: nothing to tune: {why}"
    return PolicyError(what, label=Label.NO_OP, hint=hint)


def movable(parameter: Parameter) -> bool:
    """Whether there is another value that it may have."""
    low, high = parameter.bounds()
    return low < high if parameter.numeric else bool(parameter.others())


# ---------------------------------------------------------------------- what reaches the score
def left_alone(task: Task, text: str) -> tuple[tuple[Constant, str], ...]:
    """Constants of an editable file that reach what is measured, each with the reason that it is not to be tuned."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    return tuple((c, why) for c, why in _look(text, task.metric.name) if not c.inline)


def _named_alone(task: Task, code: Mapping[str, str]) -> str:
    """Some of their names in all editable files; with the file where there are several."""
    paths = [path for path in task.editable if path.endswith(".py") and path in code]
    names = {path: dict.fromkeys(c.name for c, _ in left_alone(task, code[path])) for path in paths}
    return named([name if len(paths) == 1 else f"{path}:{name}" for path in paths for name in names[path]])


def warnings_of(task: Task, code: Mapping[str, str]) -> tuple[str, ...]:
    """What nothing protects where a program computes its own score, and what is left alone; empty where it does not."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    told = (
        f"{task.metric.name} is self-reported: the program that is edited computes and prints its own score, so an "
        "edit can change the data or the score, and nothing here can tell; evaluation.command in task.yaml lets the "
        "evaluator measure it"
    )
    alone = _named_alone(task, code)
    return (told, f"search and random leave alone what reaches it: {alone}") if alone else (told,)


def rule(task: Task, code: Mapping[str, str]) -> str:
    """What a policy with a model is told of it, in a sentence or two; empty where the evaluator measures."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ""
    alone = _named_alone(task, code)
    return (
        "What is measured stays as it is: the data, how it is made, read, split and seeded, and the computation of "
        f"{task.metric.name}{f', and with them {alone},' if alone else ''} are not to be changed; an edit that changes "
        "them is flagged, and its result means nothing."
    )


def changed(task: Task, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """What an edit changes of what is measured, one phrase each: ``N, which makes the data that is measured``.

    A constant that was renamed or removed counts, for nobody can tell what stands for it now.
    """
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    found = []
    for path in task.editable:
        old, new = before.get(path, ""), after.get(path, "")
        if path.endswith(".py") and old != new:
            were, are = _texts(old, task.metric.name), _texts(new, task.metric.name)
            reasons = {c.name: why.removeprefix("it ") for c, why in reversed(_look(old, task.metric.name))}
            found += [f"{n.partition('#')[0]}, which {reasons[n]}" for n, text in were.items() if text != are.get(n)]
    return tuple(dict.fromkeys(found))


def named(names: Sequence[str]) -> str:
    """Some names in a sentence, the first few of them."""
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _texts(text: str, metric: str) -> dict[str, list[str]]:
    """What is written for every constant that reaches what is measured, wherever it stands, by name."""
    found: dict[str, list[str]] = defaultdict(list)
    for constant, _ in _look(text, metric):
        found[constant.name].append(" ".join(constant.text.split()))
    return found


@lru_cache(maxsize=16)
def _look(text: str, metric: str) -> tuple[tuple[Constant, str], ...]:
    if len(text) > _MOST_CHARACTERS:
        return ()
    try:
        with warnings.catch_warnings(action="ignore"):
            flows = reached(Parts(Source(text)), metric)
    except UNPARSABLE:
        return ()
    found = []
    for constant, way in flows:
        by_name = "" if constant.inline else _by_name(constant.name)
        if why := way.replace("the metric", metric or "what is measured") if way else by_name:
            found.append((constant, why))
    return tuple(sorted(found, key=lambda item: item[0].start))


def _by_name(name: str) -> str:
    """The reason that a name alone gives; empty where it gives none."""
    words = frozenset(words_of(name))
    if "seed" in words:
        return "it is a seed"
    splits = "fold" in words or words == {"cv"} or ("split" in words and not usual(name) and "min" not in words)
    if splits or (words & _PARTS and words & _AMOUNTS and not words & {"batch", "epoch", "step", "worker"}):
        return "it splits the data"
    if words & _ROWS and words & _COUNTED and not words & {"min", "max", "leaf"}:
        return "it is the size of the data"
    if words & {"eval", "evaluation", "val", "validation", "test"} and words & _EVALUATED and "every" not in words:
        return "it says on how much it is measured"
    return "it says which data is read" if words & _PLACE and words & _DATA else ""

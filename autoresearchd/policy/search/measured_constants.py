"""Constants that reach what is measured: they make, read or split the data, seed it, or are part of the metric.

Where a program prints its own score, another value of such a constant gives another score and no better model. The
look is by data flow (``data_flow``), and by names where those leave no doubt: it rather leaves a constant alone that
might be tuned than the other way round. Where the evaluator measures, on data that the program does not make, there is
nothing to leave alone: more rows to train on are an honest edit there.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache

from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.policy.search.comments import Source
from autoresearchd.policy.search.data_flow import Constant, reached
from autoresearchd.policy.search.find_constants import UNPARSABLE
from autoresearchd.policy.search.known_calls import usual
from autoresearchd.policy.search.name_ranges import bag, words_of
from autoresearchd.policy.search.program_parts import Parts

_MOST_CHARACTERS = 400_000
_MOST_NAMED = 8

_PARTS = bag("train training val valid validation test eval evaluation holdout heldout dev")
_AMOUNTS = bag("n num size number count frac fraction ratio pct percent share row sample example point item image line")
_ROWS = bag("sample row example point observation record datapoint")
_COUNTED = bag("n num number")
_EVALUATED = bag("iter iteration batch step token sample seed length len context k")
_PLACE = bag("path dir directory file folder root csv")
_DATA = bag("data dataset corpus input train val valid test label target")


def left_alone(task: Task, text: str) -> tuple[tuple[Constant, str], ...]:
    """Constants of an editable file that are not to be tuned for that reason, each with its place and the reason."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    return tuple((c, why) for c, why in _look(text, task.metric.name) if not c.inline)


def _names(task: Task, code: Mapping[str, str]) -> list[str]:
    """Their names in all editable files; with the file where there are several."""
    paths = [path for path in task.editable if path.endswith(".py") and path in code]
    names = {path: dict.fromkeys(c.name for c, _ in left_alone(task, code[path])) for path in paths}
    return [name if len(paths) == 1 else f"{path}:{name}" for path in paths for name in names[path]]


def warnings_of(task: Task, code: Mapping[str, str]) -> tuple[str, ...]:
    """What nothing protects where a program computes its own score, and what is left alone; empty where it does not."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    found = _names(task, code)
    alone = f"search and random leave alone what reaches it: {named(found)}" if found else ""
    return (
        f"{task.metric.name} is self-reported: the program that is edited computes and prints its own score, so an "
        "edit can change the data or the score, and nothing here can tell; evaluation.command in task.yaml lets the "
        "evaluator measure it",
        *([alone] if alone else ()),
    )


def rule(task: Task, code: Mapping[str, str]) -> str:
    """What a policy with a model is told of it, in a sentence or two; empty where the evaluator measures."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ""
    found = _names(task, code)
    constants = f", and with them {named(found)}," if found else ""
    return (
        "What is measured stays as it is: the data, how it is made, read, split and seeded, and the computation of "
        f"{task.metric.name}{constants} are not to be changed; an edit that changes them is flagged, and its result "
        "means nothing."
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
            for name, (values, why) in were.items():
                if values != are.get(name, ((), ""))[0]:
                    found.append(f"{name.partition('#')[0]}, which {why.removeprefix('it ')}")
    return tuple(dict.fromkeys(found))


def named(names: Sequence[str]) -> str:
    """Some names in a sentence, the first few of them."""
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _texts(text: str, metric: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Every constant found, by name: what is written there, wherever it stands, and the reason."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for constant, why in _look(text, metric):
        values, first = found.get(constant.name, ((), why))
        found[constant.name] = ((*values, " ".join(constant.text.split())), first)
    return found


@lru_cache(maxsize=16)
def _look(text: str, metric: str) -> tuple[tuple[Constant, str], ...]:
    if len(text) > _MOST_CHARACTERS:
        return ()
    with warnings.catch_warnings(action="ignore"):
        try:
            flows = reached(Parts(Source(text)), metric)
        except UNPARSABLE:
            return ()
    found = []
    for constant, way in flows:
        by_name = "" if constant.inline else _by_name(constant.name)
        why = way.replace("the metric", metric or "what is measured") if way else by_name
        found += [(constant, why)] if why else []
    return tuple(sorted(found, key=lambda item: item[0].start))


def _by_name(name: str) -> str:
    """The reason that a name alone gives; empty where it gives none."""
    words = frozenset(words_of(name))
    if "seed" in words:
        return "it is a seed"
    if words & {"fold"} or words == {"cv"} or ("split" in words and not usual(name) and "min" not in words):
        return "it splits the data"
    if words & _PARTS and words & _AMOUNTS and not words & {"batch", "epoch", "step", "worker"}:
        return "it splits the data"
    if words & _ROWS and words & _COUNTED and not words & {"min", "max", "leaf"}:
        return "it is the size of the data"
    if words & {"eval", "evaluation", "val", "validation", "test"} and words & _EVALUATED and "every" not in words:
        return "it says on how much it is measured"
    if words & _PLACE and words & _DATA:
        return "it says which data is read"
    return ""

"""Pydantic's errors in the words of task.yaml: which key, in which line, what is wrong, what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autoresearchd.config.problems import MISSING, Problem, did_you_mean, nearest, shown
from autoresearchd.config.task_schema import RULE, TaskFile
from autoresearchd.config.yaml_document import Document, Place, dotted

_EXAMPLES: Mapping[str, str] = {
    "name": "name: my-task",
    "workspace": "workspace: {target_file: train.py}",
    "workspace.target_file": "target_file: train.py",
    "execution": "execution: {run_command: python train.py}",
    "execution.run_command": "run_command: python train.py",
    "scoring": "scoring: {metric: val_loss, direction: minimize}",
    "scoring.metric": "metric: val_loss",
    "scoring.direction": "direction: minimize",
    "evaluation.command": "command: python evaluate.py",
    "checks.command": "command: pytest -q tests",
    "scoring.constraints.metric": "metric: peak_vram_mb",
    "roles.name": "name: optimizer",
    "fleet.slots.host": "host: gpu-box-1",
}
"""What to write for each required key."""

_KINDS: Mapping[str, tuple[str, str]] = {
    "string_type": ("text", "write text, in quotes where YAML takes it for something else"),
    "bool_type": ("true or false", "write true or false"),
    "int_type": ("a whole number", "write a number such as 8192"),
    "int_from_float": ("a whole number", "write a number such as 8192"),
    "float_type": ("a number", "write a number such as 0.05"),
    "tuple_type": ("a list", "write a list: [first, second]"),
    "dict_type": ("a mapping", "write keys with values: {KEY: value}"),
    "model_type": ("a mapping", "write its keys with their values, each on an indented line"),
}
"""Type of a pydantic error → what was expected, and how to write it."""

_BOUNDS: Mapping[str, tuple[str, str, str]] = {
    "greater_than": ("gt", "too small", "more than"),
    "greater_than_equal": ("ge", "too small", "at least"),
    "less_than": ("lt", "too large", "less than"),
    "less_than_equal": ("le", "too large", "at most"),
}
"""Type of a pydantic error → the name of the bound in its context, what is wrong with the value, what is needed."""


def explain(
    error: ValidationError,
    document: Document,
    profile: str = "",
    from_profile: frozenset[Place] = frozenset(),
    *,
    top: type[BaseModel] = TaskFile,
    advise: Callable[[Place, list[str]], str] | None = None,
) -> list[Problem]:
    """Problems out of a validation error.

    from_profile: the places that come from ``profile``, which was laid upon the file; top: what all of the file was to
    be; advise: what to write in place of a key that is not known, usually the nearest of the known ones.
    """
    teller = _Teller(document, profile, from_profile, top, advise or _usual_advice)
    return [problem for details in error.errors(include_url=False) for problem in teller.tell(details)]


def _usual_advice(place: Place, known: list[str]) -> str:
    return did_you_mean(str(place[-1]), known)


@dataclass(frozen=True, slots=True)
class _Teller:
    document: Document
    profile: str
    from_profile: frozenset[Place]
    top: type[BaseModel]
    advise: Callable[[Place, list[str]], str]

    def tell(self, details: ErrorDetails) -> Iterator[Problem]:
        place: Place = details["loc"]
        context = details.get("ctx", {})
        if details["type"] == "missing":
            keys = [step for step in place if isinstance(step, str)]
            yield self._problem(place, MISSING, f"add `{_EXAMPLES.get('.'.join(keys), f'{place[-1]}: …')}`")
        elif details["type"] == "extra_forbidden":
            hint = self.advise(place, _known_at(place[:-1], self.top))
            yield self._problem(place, "there is no such key", hint)
        elif details["type"] == RULE and "conflicts" in context:
            for key, what, hint in context["conflicts"]:
                yield self._problem(self._below(place, key), self._of_profile(place, what), hint)
        elif details["type"] == RULE:
            yield self._problem(place, context["what"], context["hint"])
        else:
            yield self._problem(self._written(place), *_kind(details, self.document.texts.get(place)))

    def _problem(self, place: Place, what: str, hint: str) -> Problem:
        written = self._written(place)
        if place and isinstance(place[-1], int):
            place = written  # one path where a list may stand: the list is ours
        prefix: Place = ("profiles", self.profile) if written in self.from_profile else ()
        return Problem(what, hint, dotted((*prefix, *place)), self.document.line(place))

    def _of_profile(self, place: Place, what: str) -> str:
        """A conflict in words that name the profile, where a value that they speak of is the profile's own."""
        spoken = set(re.findall(r"\w+", what))
        below = {step for p in self.from_profile if p[: len(place)] == place for step in p[len(place) :]}
        return f"{what}, in the profile {self.profile}" if spoken & below else what

    def _below(self, place: Place, key: str) -> Place:
        """The place of a dotted key below ``place``; a name of a variable may have dots of its own."""
        whole = (*place, key)
        return whole if whole in self.document.lines else (*place, *filter(None, key.split(".")))

    def _written(self, place: Place) -> Place:
        """The place, or what is around it, as far as the file has it."""
        while place and place not in self.document.lines:
            place = place[:-1]
        return place


def _kind(details: ErrorDetails, text: str | None) -> tuple[str, str]:
    """(what, hint) of a value of the wrong kind or size."""
    value, context = details["input"], details.get("ctx", {})
    if details["type"] in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = nearest(value, choices) if isinstance(value, str) else ""
        hint = f"did you mean {near!r}?" if near else "write one of them"
        return f"{shown(value)} is not among {', '.join(choices)}", hint
    if details["type"] in _KINDS:
        expected, hint = _KINDS[details["type"]]
        if expected == "text" and text is not None:
            hint = f'put it in quotes: "{text}"'
        if expected == "a list" and isinstance(value, str):
            hint = f"write a list: [{value}]"
        return f"{expected} is needed, found {_found(value)}", hint
    if details["type"] in _BOUNDS:
        bound, what, needed = _BOUNDS[details["type"]]
        return f"{shown(value)} is {what}", f"write a number that is {needed} {context[bound]:g}"
    if details["type"] == "finite_number":
        return f"a finite number is needed, found {text or shown(value)}", "write it in digits, or leave the key out"
    return f"{shown(value)}: {details['msg'][:1].lower()}{details['msg'][1:]}", "correct the value"


def _found(value: Any) -> str:
    match value:
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case bool():
            return shown(value)
        case int() | float():
            return f"the number {shown(value)}"
        case str():
            return f"the text {shown(value)}"
        case _:
            return "nothing"


def _known_at(place: Place, top: type[BaseModel]) -> list[str]:
    """Keys of the section at ``place``."""
    section: type[BaseModel] | None = top
    for step in place:
        if isinstance(step, str) and section is not None and step in section.model_fields:
            section = _section_in(section.model_fields[step].annotation)
    known = list(section.model_fields) if section is not None else []
    return [*known, "profiles"] if top is TaskFile and not place else known


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation speaks of: ``Check`` in ``tuple[Check, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)

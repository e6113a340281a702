"""All that is wrong in a file, told together: key, line, what would be right; pydantic's errors in the same words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from autoresearchd.config.yaml_document import Document, Place, Problem, dotted, shown
from autoresearchd.domain.quantities import some_of

_Model = TypeVar("_Model", bound=BaseModel)
_MISSING = "this key is missing"
_LISTED = 24
_RULE = "rule"
"""Type of our own errors: their context has ``what`` and ``hint``, or ``conflicts``."""

Conflict = tuple[str, str, str]
"""(dotted key below the value that is being validated, what is wrong, what would be right)."""

_EXAMPLES: Mapping[str, str] = {
    "workspace": "workspace: {target_file: train.py}",
    "workspace.target_file": "target_file: train.py",
    "execution": "execution: {run_command: python train.py}",
    "execution.run_command": "run_command: python train.py",
    "scoring": "scoring: {metric: val_loss, direction: minimize}",
    "scoring.direction": "direction: minimize",
}
"""What to write for a required key."""

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

_BOUNDS: Mapping[str, tuple[str, str, str]] = {
    "greater_than": ("gt", "too small", "more than"),
    "greater_than_equal": ("ge", "too small", "at least"),
    "less_than": ("lt", "too large", "less than"),
    "less_than_equal": ("le", "too large", "at most"),
}


def wrong(what: str, hint: str) -> PydanticCustomError:
    """An error of validation in our own words."""
    return PydanticCustomError(_RULE, "{what}", {"what": what, "hint": hint})


def in_conflict(conflicts: list[Conflict]) -> PydanticCustomError:
    """Several errors at once, in keys below the value."""
    return PydanticCustomError(_RULE, "keys in conflict", {"conflicts": conflicts})


def raise_any(file: str, problems: Iterable[Problem]) -> None:
    """Raise one ConfigError for the first problem by line, the others in its hint; nothing where there is none."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    meant = {(problem.key.rpartition(".")[0], problem.hint) for problem in ordered}

    def is_misspelt(problem: Problem) -> bool:  # the key that stands for it is told already
        within, _, key = problem.key.rpartition(".")
        return problem.what == _MISSING and (within, f"did you mean {key!r}?") in meant

    if errors := [problem.error(file) for problem in ordered if not is_misspelt(problem)]:
        first, *others = errors
        first.hint = "\n".join([first.hint, *map(str, others)])
        raise first


def validated(
    model: type[_Model],
    values: Mapping[str, Any],
    document: Document,
    file: str,
    advise: Callable[[Place, list[str]], str] | None = None,
) -> _Model:
    """The values of a document as a model; raises ConfigError with all that is wrong in it."""
    try:
        made = model.model_validate(values)
    except ValidationError as error:
        raise_any(file, [*document.problems, *explain(error, document, model, advise=advise)])
        raise
    raise_any(file, document.problems)
    return made


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that ``word`` is nearly; empty where there is none."""
    lowered = {choice.lower(): choice for choice in reversed(list(known))}
    near = get_close_matches(word.lower().replace("-", "_"), list(lowered), n=1, cutoff=0.6)
    return lowered[near[0]] if near else ""


def did_you_mean(word: str, known: list[str]) -> str:
    """A remedy for a word that is not known: the nearest known one, or all of them."""
    near = nearest(word, known)
    return f"did you mean {near!r}?" if near else f"known here: {some_of(known, _LISTED) or 'none'}"


def explain(
    error: ValidationError,
    document: Document,
    top: type[BaseModel],
    profile: str = "",
    from_profile: frozenset[Place] = frozenset(),
    advise: Callable[[Place, list[str]], str] | None = None,
) -> Iterator[Problem]:
    """Problems out of a validation error.

    from_profile: places laid upon the file by ``profile``; advise: what to write in place of a key that is not known.
    """

    def problem(place: Place, what: str, hint: str) -> Problem:
        written = document.written(place)
        if place and isinstance(place[-1], int):
            place = written  # one path where a list may stand: the list is ours
        prefix: Place = ("profiles", profile) if written in from_profile else ()
        return Problem(what, hint, dotted((*prefix, *place)), document.line(place))

    for details in error.errors(include_url=False):
        place: Place = details["loc"]
        context = details.get("ctx", {})
        if details["type"] == "missing":
            keys = ".".join(step for step in place if isinstance(step, str))
            yield problem(place, _MISSING, f"add `{_EXAMPLES.get(keys, f'{place[-1]}: …')}`")
        elif details["type"] == "extra_forbidden":
            known = [*_known_at(place[:-1], top), *(["profiles"] if profile and len(place) == 1 else [])]
            hint = advise(place, known) if advise else did_you_mean(str(place[-1]), known)
            yield problem(place, "there is no such key", hint)
        elif details["type"] == _RULE:
            for key, what, hint in context.get("conflicts", ()):
                whole = (*place, key)  # a name of a variable may have dots of its own
                below = whole if whole in document.lines else (*place, *filter(None, key.split(".")))
                # Where a value that it speaks of is the profile's own, the profile is named.
                spoken = set(re.findall(r"\w+", what))
                own = {step for p in from_profile if p[: len(place)] == place for step in p[len(place) :]}
                yield problem(below, f"{what}, in the profile {profile}" if spoken & own else what, hint)
            if "what" in context:
                yield problem(place, context["what"], context["hint"])
        else:
            yield problem(document.written(place), *_kind(details, document.texts.get(place)))


def _kind(details: ErrorDetails, text: str | None) -> tuple[str, str]:
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
        return f"{shown(value)} is {what}", f"write a number that is {needed} {context[bound]:,.10g}"
    if details["type"] == "finite_number":
        return f"a finite number is needed, found {text or shown(value)}", "write it in digits, or leave the key out"
    return f"{shown(value)}: {details['msg'][:1].lower()}{details['msg'][1:]}", "correct the value"


def _found(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    kind = "text " if isinstance(value, str) else "number " if type(value) in (int, float) else ""
    return f"the {kind}{shown(value)}" if kind else shown(value)


def _known_at(place: Place, top: type[BaseModel]) -> list[str]:
    section: type[BaseModel] | None = top
    for step in place:
        if isinstance(step, str) and section is not None and step in section.model_fields:
            section = _section_in(section.model_fields[step].annotation)
    return list(section.model_fields) if section is not None else []


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation speaks of: ``Check`` in ``tuple[Check, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)

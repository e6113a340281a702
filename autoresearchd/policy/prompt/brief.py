"""The prompt for models too small for the full one: the program's constants, what was tried, one line as the answer.

A model of a hundred million parameters writes no SEARCH/REPLACE block that fits, but after an example it sets a
constant: the form in which it can earn a reward at all, and so learn. The example names constants of no program.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping, Sequence

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.models.client import Count, Message
from autoresearchd.policy.edits.answer_parts import MAX_ANSWER_LINES, Edit, EditError, show
from autoresearchd.policy.prompt import sections
from autoresearchd.policy.prompt.quote import Quote
from autoresearchd.policy.prompt.sections import Piece, Section, fit
from autoresearchd.policy.search import find_constants
from autoresearchd.policy.search.find_constants import space_of
from autoresearchd.policy.search.parameter import Parameter, Value

BRIEF = "brief"
"""The setting ``prompt`` that asks for it."""

FORM = "assignment"
"""How the edit of such an answer is written, as the store has it."""

TRIED = 12
"""Earlier experiments that are told."""

_MOST_VALUE = 80
_MOST_LINE = 250
_ASSIGNMENT = re.compile(
    r"[\s`*>-]{0,20}(?P<name>[A-Za-z_][\w.\[\]()/:]{0,120}?)\s{0,20}=(?!=)\s{0,20}(?P<value>\S.*)?"
)
_LITERAL = re.compile(
    r"[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])|True\b|False\b|'[^'\n]{0,60}'|\"[^\"\n]{0,60}\""
)
_GOES_ON = re.compile(
    r"""\s{0,20}(?:%|(?:\*\*|//|<<|>>|[-+*/×|&^@])[\s(+~-]{0,20}(?:\.?\d|['"]|(?P<name>[A-Za-z_]\w{0,120})))"""
)
"""Arithmetic after a literal. After a dash words may stand, too: a name counts where it is that of a constant."""
_SYSTEM = (
    "You improve a program by giving one of its constants a new value. Answer with one line, NAME = value, and nothing "
    "else."
)
_EXAMPLE = (
    {"role": "user", "content": "Constants:\nLAYERS = 4\nDROP = 0.1\n\nTried:\nDROP = 0.3: worse\n\nYour line:"},
    {"role": "assistant", "content": "LAYERS = 6"},
)
_OUTCOMES: Mapping[Status, str] = {Status.KEEP: "seems better", Status.DISCARD: "no better", Status.CRASH: "it failed"}


def messages(state: ResearchState, *, budget: int, count: Count) -> tuple[Message, ...]:
    """A system message, an example and the question, without secrets; the oldest experiments go first for want of room.

    Raises PolicyError: the constants and the notes alone have more tokens than the budget, or there is no constant.
    """
    quote = Quote(state.redactor)
    found = constants(sections.current_files(state), state.task.profile, state.task)
    if not found:
        raise PolicyError(
            "the brief prompt asks for a constant, and the editable files have none",
            hint="set `prompt: full` in config.yaml, or give the program constants at its top level",
        )
    lines = "\n".join(f"{name} = {parameter.source}" for name, parameter in found.items())
    parts = (
        Section((Piece(f"Constants:\n{lines}"),)),
        Section(
            tuple(Piece(line, (i,)) for i, line in enumerate(_tried(state.recent, found, quote))),
            wrap=lambda text: f"Tried:\n{text}",
        ),
        Section((Piece("Follow this:\n" + "\n".join(sections.notes(state, quote))),) if state.notes else ()),
        Section((Piece("Your line:"),)),
    )

    def build(texts: Sequence[str]) -> tuple[Message, ...]:
        asked = state.redactor.text("\n\n".join(texts))
        return (
            {"role": "system", "content": _SYSTEM},
            *_EXAMPLE,
            {"role": "user", "content": asked.encode("utf-8", "replace").decode()},
        )

    return fit(parts, build, budget=budget, count=count)


def read_answer(text: str, code: Mapping[str, str], profile: str, task: Task | None = None) -> Edit:
    """The edit in an answer: its first line that begins with ``NAME = value`` counts, and nothing after that value."""
    found = constants(code, profile, task)
    # A longer line is no assignment, and the pattern would take its time over it.
    short = (line[:_MOST_LINE] for line in text.splitlines()[:MAX_ANSWER_LINES])
    match = next((match for line in short if (match := _ASSIGNMENT.match(line))), None)
    if match is None:
        raise EditError("no line of the answer is NAME = value", hint="answer with one such line")
    name = match["name"]
    if name not in found:
        raise EditError(f"there is no constant {show(name)}", hint=f"take one of {', '.join(found)}")
    parameter = found[name]
    value = _value(match["value"] or "", name, parameter, found)
    path = parameter.path
    own = tuple(p for p in found.values() if p.path == path)
    changed = find_constants.replace(code[path], own, {parameter.name: value})
    if changed == code[path]:
        raise EditError(
            f"the edit changes nothing: {name} has this value already", label=Label.NO_OP, hint="give it a new value"
        )
    return Edit({path: changed}, FORM)


def is_brief(messages: Sequence[Message]) -> bool:
    """Whether messages are those of a brief prompt."""
    return bool(messages) and messages[0].get("content") == _SYSTEM


def constants(code: Mapping[str, str], profile: str, task: Task | None = None) -> dict[str, Parameter]:
    """What may be set, by the name that the model is told: without the file where that is enough.

    task: whose bounds hold; without it, as of an answer in the records, only the program's comments do.
    """
    every = [
        parameter
        for path, text in code.items()
        if find_constants.searchable(path)
        for parameter in (
            find_constants.find(text, path=path, profile=profile or "cpu")
            if task is None
            else space_of(task, path, text).parameters
        )
    ]
    labels = [parameter.label for parameter in every]
    return {p.label if labels.count(p.label) == 1 else p.name: p for p in every}


def _value(text: str, name: str, parameter: Parameter, found: Mapping[str, Parameter]) -> Value:
    """The literal that a text begins with, where it can stand in the constant's place."""
    literal = _LITERAL.match(text)
    more = None if literal is None else _GOES_ON.match(text, literal.end())
    # What 1/2 begins with is not what it says: the outcome of 1 would be told as that of 1/2.
    if more is not None and (more["name"] is None or more["name"] in found):
        raise EditError(
            f"{name} = {show(text, _MOST_VALUE)} is arithmetic, and is not worked out", hint="write what it comes to"
        )
    value: object = None
    if literal is not None:
        with contextlib.suppress(ValueError, SyntaxError):  # 1__0, 007
            value = ast.literal_eval(literal[0])
    if not isinstance(value, (int, float, str)) or not parameter.legal(value):
        choices = "a number" if parameter.numeric else f"one of {', '.join(map(repr, parameter.range.choices))}"
        kind = "a whole number" if parameter.kind.value == "int" else choices
        raise EditError(f"{name} cannot be {show(text, _MOST_VALUE)}", hint=f"it is {kind}")
    return value


def _tried(recent: Sequence[Experiment], found: Mapping[str, Parameter], quote: Quote) -> list[str]:
    """What came of the last edits that set constants which are there, oldest first, each change once."""
    known = {parameter.name: name for name, parameter in found.items()}
    lines: dict[str, str] = {}
    for e in recent:
        changes = e.proposal.changes if e.proposal else {}
        if e.decision is None or not changes or not changes.keys() <= known.keys():
            continue
        what = ", ".join(f"{known[name]} = {quote.line(value, 32)}" for name, value in changes.items())
        outcome = _OUTCOMES.get(e.decision.status, "not allowed")
        if e.decision.status is Status.DISCARD and e.decision.delta is not None and e.decision.delta < 0:
            outcome = "worse"
        if e.confirmed is False:  # kept, until it was tested
            outcome = "no better"
        lines.pop(what, None)
        lines[what] = f"{what}: {outcome}"
    return list(lines.values())[-TRIED:]

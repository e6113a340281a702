"""The prompt for models too small for the full one: some of the program's constants, and which values each may take.

A model of a hundred million to some billion parameters writes no SEARCH/REPLACE block that fits, but it picks a value
out of a list: the form in which it can earn a reward at all, and so learn. A model that can be held to a JSON schema
has no other choice than a value that is new. The example names constants of no program.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from textwrap import wrap
from typing import Any

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Experiment, Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.outlook import Prospect
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.task import Task
from autoresearchd.models.client import Count, Message
from autoresearchd.policy.edits.answer_parts import MAX_ANSWER_LINES, Edit, EditError, means_to_edit, said, show
from autoresearchd.policy.edits.read_answer import read_answer as read_edit
from autoresearchd.policy.prompt import sections
from autoresearchd.policy.prompt.digest import better
from autoresearchd.policy.prompt.quote import Quote
from autoresearchd.policy.prompt.sections import Piece, Section, fit
from autoresearchd.policy.search import find_constants
from autoresearchd.policy.search.find_constants import space_of
from autoresearchd.policy.search.parameter import Kind, Parameter, Value
from autoresearchd.policy.search.search_policies import SearchPolicy

BRIEF = "brief"
"""The setting ``prompt`` that asks for it."""

FORM = "assignment"
"""How such an answer is written, as the store has it."""

MOST_TOKENS = 1_500
"""Of the prompt."""
TRIED = 10
"""Earlier experiments that are told."""
MOST_SHOWN = 8
"""Constants that are told: half of them the most promising, where a search stands by, the rest those least tried."""
MOST_CHANGES = 3

_MOST_VALUE = 80
_MOST_LINE = 250
_MOST_COMMENT = 40
_ASSIGNMENT = re.compile(
    r"[\s`*>-]{0,20}(?P<name>[A-Za-z_][\w.\[\]()/:#-]{0,120}?)\s{0,20}=(?!=)\s{0,20}(?P<value>\S.*)?"
)
_LITERAL = re.compile(
    r"[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])|True\b|False\b|'[^'\n]{0,60}'|\"[^\"\n]{0,60}\""
)
_GOES_ON = re.compile(
    r"""\s{0,20}(?:%|(?:\*\*|//|<<|>>|[-+*/×|&^@])[\s(+~-]{0,20}(?:\.?\d|['"]|(?P<name>[A-Za-z_]\w{0,120})))"""
)
"""Arithmetic after a literal. After a dash words may stand, too: a name counts where it is that of a constant."""
_PASSES = re.compile(
    r"[\s`*>\"'-]{0,20}(?:1[.)]\s{0,20})?(?:(?:(?:my|final) ){0,2}answer:[\s`*]{0,20})?"
    r"(?:pass\b[\s`*.!\"']{0,20}(?:$|[:–—]|-+\s)|(?-i:PASS)\b[\s`*.!\"']{0,20}(?:[,;(]|(?:because|since|as)\b))",
    re.IGNORECASE,
)
"""A line that passes; behind a colon or a dash it may say why, and behind more where PASS is in capitals."""
_MARK = re.compile(r"</?s>|<\|[\w ]{1,40}\|>")
"""What a chat template begins and ends texts with, where a server leaves it in an answer."""
_REASON = frozenset({"hypothesis", "description"})
"""Keys of the JSON object with which the full prompt has any answer say why."""
_JSON_FENCE = re.compile(r"^[ \t]*```(?:json)?[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"#[^\"'\n]*$")
_TOLD = re.compile(r"^(\S+) = .* \(now ", re.MULTILINE)
_ANONYMOUS = re.compile(r"C\d+")
"""The names in a question, and those that hide others."""
_WIDTH = 100
_BEGINS = "You improve a program by giving one of its constants a new value"
_SAID = {  # structured, may pass
    (False, False): ". Answer with one line, NAME = value, and nothing else.",
    (False, True): ". Answer with one line, NAME = value, and nothing else. Answer PASS to leave it to the search.",
    (True, False): '. Answer with {"constant": NAME, "value": VALUE} and nothing else.',
    (True, True): '. Answer with {"constant": NAME, "value": VALUE} and nothing else, or {"pass": true} to leave it to '
    "the search.",
}
_EXAMPLE = """\
loss: lower is better

Constants, and new values that may be tried:
DROP = 0.05 or 0.2 (now 0.1)
LAYERS = 3 or 5 or 6 (now 4)

Tried:
DROP 0.3: worse

Your answer:"""
_OUTCOMES: Mapping[Status, str] = {Status.KEEP: "seems better", Status.DISCARD: "no better", Status.CRASH: "it failed"}
_READER = json.JSONDecoder(parse_constant=lambda _: None)


@dataclass(frozen=True, slots=True)
class Menu:
    """What may be answered in a state. known: all constants, by the names that the model is told.

    prospects: what is believed of those that may be moved; offers: of the ones that are told, in that order. proposal:
    what the search would do, in the same names; empty: there is nobody to pass to.
    """

    known: Mapping[str, Parameter]
    prospects: Mapping[str, Prospect]
    offers: Mapping[str, Prospect]
    proposal: Mapping[str, Value]
    anonymous: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """A JSON schema of the answers, of which none gives a program that was run; llama.cpp can follow all of it."""
        forms: list[dict[str, Any]] = [
            {"constant": {"const": n}, "value": {"enum": list(p.values)}} for n, p in self.offers.items()
        ]
        passing = [{"pass": {"const": True}}] if self.proposal else []
        return {
            "anyOf": [
                {"type": "object", "properties": form, "required": list(form), "additionalProperties": False}
                for form in (*forms, *passing)
            ]
        }

    def check(self, name: str, value: Value) -> None:
        """Raise EditError for a value that is out of the range that the model is told, or was run before."""
        prospect = self.prospects.get(name)
        if prospect is None:
            return
        low, high = prospect.low, prospect.high
        if low is not None and high is not None and not low <= float(value) <= high:
            raise EditError(f"{name} = {value!r} is out of its range", hint=f"it goes from {low:g} to {high:g}")
        if value in prospect.tried:
            what = f"{name} = {value!r} was tried already"
            raise EditError(what, label=Label.DUPLICATE, hint=f"take one of {_listed(prospect.values)}")


def menu(state: ResearchState, *, anonymous: bool = False) -> Menu:
    """What is offered in a state; the same to all members of a round. anonymous: constants are called C1, C2 and so on.

    Raises PolicyError: there is no constant, or none has a value left.
    """
    code = sections.current_files(state)
    known = constants(code, state.task.profile, state.task, anonymous=anonymous)
    if not known:
        raise PolicyError(
            "the brief prompt asks for a constant, and the editable files have none",
            hint="set `prompt: full` in config.yaml, or give the program constants at its top level",
        )
    outlook = state.outlook or replace(SearchPolicy(_Nothing()).outlook(replace(state, code=code)), proposal={})
    names = {parameter.name: name for name, parameter in known.items()}
    order = [p for p in outlook.constants if p.name in names]
    # A small model takes to what stands first. Drawn apart from whose turn it is, which has been decided by now.
    Random(derive_seed(state.round_seed, 0, "menu")).shuffle(order)  # noqa: S311
    first = [p for p in order if p.name in outlook.proposal]
    if outlook.proposal:
        first += sorted(order, key=lambda p: -p.gain - p.deviation)[: MOST_SHOWN // 2]
    chosen = list(dict.fromkeys((*first, *sorted(order, key=lambda p: p.tries))))[:MOST_SHOWN]
    # Small models copy what they are told of the search: who agrees with it passes.
    agrees = outlook.proposal if len(outlook.proposal) == 1 else {}
    left = {p.name: tuple(v for v in p.values if v != agrees.get(p.name)) for p in chosen}
    offers = {names[p.name]: replace(p, values=left[p.name]) for p in order if left.get(p.name)}
    if not offers:
        raise PolicyError("no constant has a value left that was not tried on this program", label=Label.NO_OP)
    proposal = {names[name]: value for name, value in outlook.proposal.items() if name in names}
    return Menu(known, {names[p.name]: p for p in order}, offers, proposal, anonymous)


class _Nothing:
    """The history of who is told none."""

    def trials(self, after: int = -1) -> Sequence[Trial]:
        return ()


def messages(
    state: ResearchState, *, budget: int, count: Count, offered: Menu | None = None, structured: bool = False
) -> tuple[Message, ...]:
    """A system message, an example and the question, without secrets; the oldest experiments go first for want of room.

    Then go the ends of the notes, and constants at last. structured: whether the answer will obey the schema of
    ``offered``. Raises PolicyError: the budget is smaller than any question, or as ``menu`` does.
    """
    quote, offered = Quote(state.redactor), offered or menu(state)
    lines = []
    for name, p in offered.offers.items():
        values = " or ".join(_told(value, structured) for value in p.values)
        line = f"{name} = {values} (now {_told(p.value, structured)})"
        line += f"; {_told(p.best, structured)} may gain {p.gain:.2g}" if offered.proposal and p.gain > 0 else ""
        lines.append(line + ("" if offered.anonymous else _comment(state.code, offered.known[name], quote)))
    told = [f"{name} = {_told(value, structured)}" for name, value in offered.proposal.items()]
    late, best = (_tried(earlier, offered.known, quote, structured) for earlier in (state.recent, state.top))
    late = late[-TRIED:]
    parts = (
        _lines((f"{quote.line(state.task.metric.name, 60)}: {better(state.task)} is better",)),
        _lines([f"The search would set {', '.join(told)}."] if told else ()),
        _lines(lines, "Constants, and new values that may be tried:", rank=2, last=True),
        _lines([*(line for line in best if line not in late), *late], "Tried:", rank=0),
        _lines(_parts(sections.notes(state, quote)), "Follow this:", rank=1, last=True),
        _lines(("Your answer:",)),
    )
    system = _BEGINS + _SAID[structured, bool(offered.proposal)]
    answer = '{"constant": "LAYERS", "value": 6}' if structured else "LAYERS = 6"
    example = ({"role": "user", "content": _EXAMPLE}, {"role": "assistant", "content": answer})

    def build(texts: Sequence[str]) -> tuple[Message, ...]:
        asked = state.redactor.text("\n\n".join(texts))
        return (
            {"role": "system", "content": system},
            *example,
            {"role": "user", "content": asked.encode("utf-8", "replace").decode()},
        )

    return fit(parts, build, budget=min(budget, MOST_TOKENS), count=count)


def _lines(lines: Iterable[str], title: str = "", *, rank: int | None = None, last: bool = False) -> Section:
    """Lines below a title. rank: which go sooner than others for want of room, None: none; last: the last go first."""
    pieces = tuple(Piece(line, None if rank is None else (rank, -i if last else i)) for i, line in enumerate(lines))
    return Section(pieces, wrap=(lambda text: f"{title}\n{text}") if title else str)


def _parts(notes: Iterable[str]) -> Iterable[str]:
    """Notes in lines of some words each, of which the last may be left out."""
    return (part for note in notes for line in note.splitlines() for part in wrap(line, _WIDTH) or [""])


def _told(value: Value, structured: bool) -> str:
    return json.dumps(value) if structured else repr(value)


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(map(repr, values))


def _comment(code: Mapping[str, str], parameter: Parameter, quote: Quote) -> str:
    """What the program says of a constant on its line."""
    rest = code.get(parameter.path, "").encode()[parameter.end :].split(b"\n", 1)[0].decode("utf-8", "replace")
    found = _COMMENT.search(rest) if parameter.path.endswith(".py") else None
    return f"  {quote.line(found[0], _MOST_COMMENT)}" if found else ""


def is_brief(messages: Sequence[Message]) -> bool:
    """Whether messages are those of a brief prompt, of this version or of an earlier one."""
    return bool(messages) and str(messages[0].get("content")).startswith(_BEGINS)


def offers_pass(messages: Sequence[Message]) -> bool:
    """Whether messages, of any prompt, say that the turn may be left to the search."""
    if is_brief(messages):
        return str(messages[0].get("content")).endswith((_SAID[False, True], _SAID[True, True]))
    return any(sections.LEFT_BY_ANSWER in str(message.get("content")) for message in messages)


def constants(
    code: Mapping[str, str], profile: str, task: Task | None = None, *, anonymous: bool = False
) -> dict[str, Parameter]:
    """What may be set, by the name that the model is told: without the file where that is enough.

    task: whose bounds hold; without it only those in the program's comments do.
    """
    every = list[Parameter]()
    for path, text in code.items():
        if not find_constants.searchable(path):
            continue
        try:
            if task is None:
                every += find_constants.find(text, path=path, profile=profile or "cpu")
            else:
                every += space_of(task, path, text).parameters
        except PolicyError:  # a template of a configuration file, say: the search passes it over, too
            if path.endswith(".py"):
                raise
    if anonymous:
        return {f"C{i}": parameter for i, parameter in enumerate(every, 1)}
    labels = [parameter.label for parameter in every]
    return {p.label if labels.count(p.label) == 1 else p.name: p for p in every}


# ---------------------------------------------------------------------- answers
def passes(text: str) -> bool:
    """Whether an answer leaves the choice to the search: as JSON, or in its first or last line beside a reason."""
    text = _JSON_FENCE.sub("", _MARK.sub("", said(text)))
    found = _object(text)
    if found.get("pass") is True:
        return True
    if means_to_edit(text) or (found and _REASON.isdisjoint(found)):
        return False
    lines = [s[:_MOST_LINE] for line in text.splitlines() if (s := line.strip()) and not s.startswith("{")]
    if not lines:
        return False
    # A program may end in ``pass``, and words after what is set be meant for something else.
    sets = bool(_pairs(text, {}))
    last = "PASS" in lines[-1] and not sets and _PASSES.match(lines[-1])
    first = ("PASS" in lines[0] or not (sets or "=" in lines[0])) and _PASSES.match(lines[0])
    return bool(last or first)


def read_answer(
    text: str, code: Mapping[str, str], profile: str, task: Task | None = None, offered: Menu | None = None
) -> Edit:
    """The edit in an answer: one constant as JSON, or up to three lines ``NAME = value``, and nothing after the value.

    Of lines the first and those directly below count, as far as they can be used. offered: what values are held to.
    """
    known = constants(code, profile, task) if offered is None else offered.known
    changes: dict[str, Value] = {}
    errors: list[EditError] = []
    for name, given in _pairs(said(text), known):
        if name in changes:
            continue
        try:
            value = _value(given, name, known)
            if offered is not None:
                offered.check(name, value)
            changes[name] = value
        except EditError as error:
            errors.append(error)
    if not changes:
        none = EditError("no line of the answer is NAME = value", hint="answer with one such line")
        raise errors[0] if errors else none
    files = find_constants.new_files(code, ((known[name], value) for name, value in changes.items()))
    return Edit(files, FORM, changes={known[name].name: value for name, value in changes.items()})


def read_beside(text: str, code: Mapping[str, str], task: Task) -> Edit:
    """The edit in an answer to the full prompt with a search beside it: in any form, or as lines ``NAME = value``."""
    try:
        return read_edit(text, code)
    except EditError:
        if means_to_edit(text):
            raise
        with contextlib.suppress(EditError):
            return read_answer(text, code, task.profile, task)
        raise


def read_stored(text: str, code: Mapping[str, str], task: Task, messages: Sequence[Message]) -> Edit:
    """The edit in an answer to stored messages of any prompt, as it would be read in the loop.

    But for what was tried: the menu of back then is not stored.
    """
    if not is_brief(messages):
        return read_beside(text, code, task) if offers_pass(messages) else read_edit(text, code)
    known = constants(code, task.profile, task)
    told = _TOLD.findall(str(messages[-1].get("content")))
    if told and all(map(_ANONYMOUS.fullmatch, told)) and not known.keys() >= set(told):
        known = constants(code, task.profile, task, anonymous=True)
    ranges = {
        name: Prospect(p.name, p.value, p.kind.value, p.range.low, p.range.high, (), p.value, 0.0, 0.0)
        for name, p in known.items()
        if p.numeric
    }
    return read_answer(text, code, task.profile, task, Menu(known, ranges, {}, {}))


def _pairs(text: str, known: Mapping[str, Parameter]) -> list[tuple[str, Any]]:
    """Names, and what they are to be: JSON values, or texts that begin with a literal."""
    found = _object(text)
    if "constant" in found and "value" in found:
        return [(str(found["constant"]), found["value"])]
    if not known.keys().isdisjoint(found):
        if len(found) > MOST_CHANGES:
            what = f"the answer sets {len(found)} constants"
            raise EditError(what, hint=f"set {MOST_CHANGES} at most")
        return list(found.items())
    pairs: list[tuple[str, Any]] = []
    for line in text.splitlines()[:MAX_ANSWER_LINES]:
        # A longer line is no assignment, and the pattern would take its time over it.
        match = _ASSIGNMENT.match(line[:_MOST_LINE])
        if match is not None:
            pairs.append((match["name"], match["value"] or ""))
        if pairs and (match is None or len(pairs) == MOST_CHANGES):
            break
    return pairs


def _object(text: str) -> Mapping[str, Any]:
    """The first JSON object of an answer; empty where there is none."""
    try:
        found, _ = _READER.raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _value(given: Any, name: str, known: Mapping[str, Parameter]) -> Value:
    """The value that a constant is given, where it can stand in its place and is another one."""
    if name not in known:
        raise EditError(f"there is no constant {show(name)}", hint=f"take one of {show(', '.join(known), 400)}")
    parameter, value = known[name], given
    if isinstance(given, str) and not parameter.legal(given):
        value = _literal(given, name, known)
    if not isinstance(value, (int, float, str)) or not parameter.legal(value):
        choices = "a number" if parameter.numeric else f"one of {_listed(parameter.range.choices)}"
        kind = "a whole number" if parameter.kind.value == "int" else choices
        raise EditError(f"{name} cannot be {show(given, _MOST_VALUE)}", hint=f"it is {kind}")
    if value == parameter.value:
        what = f"the edit changes nothing: {name} has this value already"
        raise EditError(what, label=Label.NO_OP, hint="give it a new value")
    if parameter.numeric:  # as it will be written
        return int(value) if parameter.kind is Kind.INT else float(value)
    return value


def _literal(text: str, name: str, known: Mapping[str, Parameter]) -> object:
    """The literal that a text begins with, None where there is none."""
    literal = _LITERAL.match(text)
    more = None if literal is None else _GOES_ON.match(text, literal.end())
    # What 1/2 begins with is not what it says: the outcome of 1 would be told as that of 1/2.
    if more is not None and (more["name"] is None or more["name"] in known):
        raise EditError(
            f"{name} = {show(text, _MOST_VALUE)} is arithmetic, and is not worked out", hint="write what it comes to"
        )
    if literal is not None:
        with contextlib.suppress(ValueError, SyntaxError):  # 1__0, 007
            found: object = ast.literal_eval(literal[0])
            return found
    return None


def _tried(earlier: Sequence[Experiment], known: Mapping[str, Parameter], quote: Quote, structured: bool) -> list[str]:
    """What came of edits that set constants which are there, in order, each change once."""
    names = {parameter.name: name for name, parameter in known.items()}
    lines: dict[str, str] = {}
    for e in earlier:
        changes = e.proposal.changes if e.proposal else {}
        if e.decision is None or not changes or not changes.keys() <= names.keys():
            continue
        what = ", ".join(f"{names[name]} {quote.line(_told(value, structured), 32)}" for name, value in changes.items())
        outcome = _OUTCOMES.get(e.decision.status, "not allowed")
        if e.decision.status is Status.DISCARD and e.decision.delta is not None and e.decision.delta < 0:
            outcome = "worse"
        if e.confirmed is False:  # kept, until it was tested
            outcome = "no better"
        lines.pop(what, None)
        lines[what] = f"{what}: {outcome}"
    return list(lines.values())

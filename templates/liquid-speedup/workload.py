"""Random templates with variables for them, and how they are rendered. Protected: no experiment may edit it.

A site is what all templates of an evaluation speak of: names, what kind of data each stands for, and phrases, which are
expressions and conditions that its templates have in common. A batch is `{"templates": […], "contexts": […]}`:
each template is rendered with each context. The site is drawn for each evaluation, templates and values
for each batch. Now and then a template is faulty, a variable is missing,
or a filter meets what it was not made for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TEMPLATES = 2  # in a batch
CONTEXTS = 2
STATEMENTS = 26  # in a template, and what is nested in them
DEEPEST = 3  # tags in tags
LEVELS = 2  # rows in rows
PHRASES = 12  # for each kind of row, and for what is in none
COMMON = 0.7  # how often a phrase is used where one could be
FAULTY = 0.04
STRANGE = 0.03  # how often an expression is of another kind than what it is used for
FAILED = "!error"

SYLLABLES = ["ba", "co", "di", "fu", "ga", "he", "ji", "ko", "lu", "me", "no", "pa", "qui", "ro", "su", "ta", "vé"]
KINDS = ["text", "integer", "decimal", "flag", "words", "rows"]
SPECIAL = ["&", "<b>", "ß", "–", '"', "7", "x=1", "'s", "3.5", ">"]
TEXT_FILTERS = [
    "upcase", "downcase", "capitalize", "strip", "escape", "append: {text}", "prepend: {text}", "truncate: {small}",
    "truncate: {size}, {text}", "replace: {piece}, {text}", "slice: {small}, {size}", "default: {text}",
]  # fmt: skip
NUMBER_FILTERS = [
    "plus: {number}", "minus: {number}", "times: {factor}", "divided_by: {size}", "modulo: {size}", "abs", "round",
    "round: 2", "default: {number}", "times: {number}",
]  # fmt: skip
LIST_FILTERS = ["reverse", "sort", "uniq"]
FAULTS = ["{% endif %}", "{{ a | nothing }}", "{% for %}", "{{ 3 4 }}", "{% wrong %}", "{% assign = 2 %}", "{{ $ }}"]
FAULTS += ["{{ 1 | divided_by: 0 }}", "{{ 'a' | append }}", "{% if 1 == %}{% endif %}", "{% comment %}"]


@dataclass(frozen=True)
class Field:
    """What a name stands for: text, integer, decimal, flag, words (a list), rows (a list of mappings with `fields`)."""

    name: str
    kind: str
    fields: tuple[Field, ...] = ()


def word(rng: random.Random) -> str:
    """A name that no language has."""
    return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) + rng.choice(["", "", "x", "l", "_n"])


def sentence(rng: random.Random, most: int = 7) -> str:
    """Some words, a few signs among them."""
    words = [rng.choice(SPECIAL) if rng.random() < 0.12 else word(rng) for _ in range(rng.randint(1, most))]
    return " ".join(words)


def fields(rng: random.Random, depth: int) -> tuple[Field, ...]:
    """What a mapping has; rows in it as long as there is depth left."""
    kinds = ["text", "text", "integer", "decimal", "flag", "words"] + ["rows"] * depth
    rng.shuffle(kinds)
    return tuple(Field(word(rng), kind, fields(rng, depth - 1) if kind == "rows" else ()) for kind in kinds)


def values(rng: random.Random, wanted: tuple[Field, ...], depth: int) -> dict[str, Any]:
    """Values for fields; one in fifty is missing."""
    return {field.name: value(rng, field, depth) for field in wanted if rng.random() > 0.02}


def value(rng: random.Random, field: Field, depth: int) -> Any:
    """One value of a field's kind."""
    if field.kind == "text":
        return sentence(rng)
    if field.kind == "integer":
        return rng.randint(-20, 400)
    if field.kind == "decimal":
        return round(rng.uniform(-5, 90), 2)
    if field.kind == "flag":
        return rng.random() < 0.5
    if field.kind == "words":
        return [word(rng) for _ in range(rng.randint(0, 5))]
    return [values(rng, field.fields, depth - 1) for _ in range(rng.randint(2 * depth, 4 * depth))]


@dataclass(frozen=True)
class Site:
    """What templates speak of: the fields of a context, names for what they define themselves, and phrases.

    expressions, conditions: by what a loop runs over ("" outside of loops).
    """

    fields: tuple[Field, ...]
    names: tuple[str, ...]
    expressions: dict[str, list[str]]
    conditions: dict[str, list[str]]


class Writer:
    """Writes one template of a site."""

    def __init__(self, rng: random.Random, site: Site) -> None:
        self.rng = rng
        self.scope = list(site.fields)
        # A name is defined once: text that is made of itself in a loop would grow without end.
        self.names = iter(site.names)
        self.site, self.inside = site, [""]
        self.left = STATEMENTS

    def template(self) -> str:
        pieces = [self.block(DEEPEST)]
        while self.left > 0:
            pieces.append(self.block(DEEPEST))
        if self.rng.random() < FAULTY:
            pieces.insert(self.rng.randint(0, len(pieces)), self.rng.choice(FAULTS))
        return "".join(pieces)

    # ------------------------------------------------------------------ expressions
    def path(self, *kinds: str) -> str:
        if self.rng.random() < STRANGE:
            return self.rng.choice([word(self.rng), *(f.name for f in self.scope)])
        found = [f.name for f in self.scope if f.kind in kinds]
        if not found:
            return self.literal(kinds[0])
        # What was defined last is what a template speaks of most.
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def literal(self, kind: str) -> str:
        if kind == "text":
            quote = self.rng.choice("\"'")
            return quote + sentence(self.rng, 2).replace(quote, "") + quote
        if kind == "flag":
            return self.rng.choice(["true", "false", "nil"])
        return str(self.rng.randint(-9, 99)) if kind != "decimal" else f"{self.rng.uniform(0, 9):.2f}"

    def anything(self, kind: str) -> str:
        return self.path(kind) if kind in ("words", "rows") or self.rng.random() < 0.6 else self.literal(kind)

    def filters(self, choices: list[str], most: int = 3) -> str:
        rng = self.rng
        found = ""
        for name in rng.choices(choices, k=rng.choice(range(most + 1))):
            found += " | " + name.format(
                text=self.path("text") if rng.random() < 0.3 else self.literal("text"),
                number=self.path("integer", "decimal") if rng.random() < 0.5 else self.literal("integer"),
                piece=repr(rng.choice(SYLLABLES)), factor=self.literal("decimal"),
                size=rng.randint(1, 24), small=rng.randint(0, 12),
            )  # fmt: skip
        return found

    def number(self) -> str:
        return self.path("integer", "decimal") + self.filters(NUMBER_FILTERS)

    def expression(self) -> str:
        return self.phrase(self.site.expressions) or self.new_expression()

    def condition(self) -> str:
        return self.phrase(self.site.conditions) or self.new_condition()

    def phrase(self, known: dict[str, list[str]]) -> str:
        found = known.get(self.rng.choice(self.inside[-2:]), [])
        return self.rng.choice(found) if found and self.rng.random() < COMMON else ""

    def new_expression(self) -> str:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.45:
            return self.path("text") + self.filters(TEXT_FILTERS)
        if chance < 0.75:
            return self.number()
        rows = [f for f in self.scope if f.kind == "rows"]
        if chance < 0.85 and rows:
            found = rng.choice(rows)
            inner = rng.choice(found.fields)
            if inner.kind in ("integer", "decimal"):
                return f"{found.name} | sum: '{inner.name}' | round: 1"
            if inner.kind == "flag":
                return f"{found.name} | where: '{inner.name}' | size"
            return f"{found.name} | sort: '{inner.name}' | map: '{inner.name}' | join: ', '"
        ending = rng.choice([" | join: ', '", " | first", " | last | upcase", " | size", ""])
        return self.path("words") + self.filters(LIST_FILTERS, 2) + ending

    def comparison(self) -> str:
        chance, sign = self.rng.random(), self.rng.choice(["==", "!=", "<", ">", "<=", ">="])
        if chance < 0.25:
            return self.path("flag")
        if chance < 0.65:
            return f"{self.path('integer', 'decimal')} {sign} {self.literal('integer')}"
        if chance < 0.8:
            return f"{self.path('words')}.size {sign} {self.rng.randint(0, 5)}"
        piece = self.rng.choice([repr(self.rng.choice(SYLLABLES)), self.path("text")])
        return f"{self.path('text', 'words')} contains {piece}"

    def new_condition(self) -> str:
        parts = [self.comparison() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        return "".join(f" {self.rng.choice(['and', 'or'])} {p}" for p in parts)[4:].strip()

    # ------------------------------------------------------------------ statements
    def tag(self, content: str) -> str:
        left, right = (self.rng.choice(["", "", "", "-"]) for _ in range(2))
        return f"{{%{left} {content} {right}%}}"

    def block(self, depth: int) -> str:
        known = len(self.scope)
        parts = []
        for _ in range(self.rng.randint(2, 5)):
            parts += [self.rng.choice(["\n", " ", "\n  "]), self.statement(depth)]
        del self.scope[known:]
        return "".join(parts)

    def statement(self, depth: int) -> str:
        rng, self.left = self.rng, self.left - 1
        chance = rng.random()
        if chance < 0.25:
            return f"<{rng.choice('pbi')}>{sentence(rng)}"
        if chance < 0.6 or depth == 0 or self.left < 0:
            dash = rng.choice(["", "", "", "-"])
            return f"{{{{{dash} {self.expression()} }}}}"
        if chance < 0.68:
            return self.assign()
        if chance < 0.82:
            return self.branches(depth)
        return self.loop(depth) if chance < 0.97 else self.tag("comment") + self.block(0) + self.tag("endcomment")

    def assign(self) -> str:
        name, kind = next(self.names), self.rng.choice(["text", "integer", "words", "capture"])
        if kind == "capture":
            written = self.tag(f"capture {name}") + self.block(0) + self.tag("endcapture")
        elif kind == "text":
            written = self.tag(f"assign {name} = {self.path('text')}{self.filters(TEXT_FILTERS)}")
        elif kind == "integer":
            written = self.tag(f"assign {name} = {self.number()}")
        else:
            written = self.tag(f"assign {name} = {self.path('text')} | split: ' '{self.filters(LIST_FILTERS, 2)}")
        self.scope.append(Field(name, "text" if kind == "capture" else kind))
        return written

    def branches(self, depth: int) -> str:
        name = self.rng.choice(["if", "if", "if", "unless"])
        parts = [self.tag(f"{name} {self.condition()}"), self.block(depth - 1)]
        while self.rng.random() < 0.3:
            parts += [self.tag(f"elsif {self.condition()}"), self.block(depth - 1)]
        if self.rng.random() < 0.5:
            parts += [self.tag("else"), self.block(depth - 1)]
        return "".join(parts) + self.tag("end" + name)

    def enter(self, over: Field) -> None:
        self.scope += [Field(f"{singular(over)}.{f.name}", f.kind, f.fields) for f in over.fields]
        self.inside.append(singular(over))

    def loop(self, depth: int) -> str:
        rng, name, known = self.rng, next(self.names), len(self.scope)
        entered = len(self.inside)
        rows = [f for f in self.scope if f.kind == "rows"]
        chance = rng.random()
        if chance < 0.75 and rows:
            over = rng.choice(rows)
            source, name = over.name, singular(over)
            self.enter(over)
        elif chance < 0.9:
            source = self.path("words")
            self.scope.append(Field(name, "text"))
        else:
            source = f"({rng.randint(0, 2)}..{rng.choice(['4', '7', self.path('words') + '.size'])})"
            self.scope.append(Field(name, "integer"))
        self.scope += [Field("forloop.index", "integer"), Field("forloop.last", "flag"), Field("forloop.first", "flag")]
        source += rng.choice(["", "", "", " reversed", f" limit: {rng.randint(1, 6)}", f" offset: {rng.randint(1, 3)}"])
        total = next(self.names)
        counts = rng.random() < 0.4
        before = self.tag(f"assign {total} = 0") if counts else ""
        adds = self.tag(f"assign {total} = {total} | plus: {self.path('integer', 'decimal')}") if counts else ""
        body = self.block(depth - 1)
        del self.inside[entered:]
        otherwise = self.tag("else") + self.block(0) if rng.random() < 0.15 else ""
        del self.scope[known:]
        if counts:
            self.scope.append(Field(total, "integer"))
        return before + self.tag(f"for {name} in {source}") + adds + body + otherwise + self.tag("endfor")


def singular(rows: Field) -> str:
    """What one of the rows is called in a loop."""
    return rows.name.rpartition(".")[2] + "_1"


def site(rng: random.Random) -> Site:
    """A site; no two have a name in common but by chance."""
    names = tuple(dict.fromkeys(word(rng) + "_" for _ in range(20 * STATEMENTS)))
    drawn = Site(fields(rng, LEVELS), names, {}, {})

    def learn(writer: Writer) -> None:
        about = writer.inside[-1]
        drawn.expressions[about] = [writer.new_expression() for _ in range(PHRASES)]
        drawn.conditions[about] = [writer.new_condition() for _ in range(PHRASES)]
        for field in [f for f in writer.scope if f.kind == "rows" and f.name.rpartition(".")[0] in ("", about)]:
            if singular(field) not in drawn.expressions:
                inner = Writer(rng, drawn)
                inner.scope, inner.inside = list(writer.scope), list(writer.inside)
                inner.enter(field)
                learn(inner)

    learn(Writer(rng, drawn))
    return drawn


def batch(rng: random.Random, about: Site) -> dict[str, Any]:
    """Templates, and variables that each of them is rendered with."""
    return {
        "templates": [Writer(rng, about).template() for _ in range(TEMPLATES)],
        "contexts": [values(rng, about.fields, LEVELS) for _ in range(CONTEXTS)],
    }


def conformance(rng: random.Random, about: Site, filters: list[str]) -> dict[str, Any]:
    """A batch that is not timed: every filter with 0 to 3 arguments, on whatever it may meet, and every fault."""
    writer = Writer(rng, about)
    sources = list(FAULTS)
    for name in filters:
        for count, kind in [(0, k) for k in KINDS[::2]] + [(n, k) for n in (1, 2) for k in KINDS] + [(3, "text")]:
            words = [writer.anything(kind), *(writer.anything(rng.choice(KINDS)) for _ in range(2))]
            called = f"{name}: {', '.join(words[:count])}" if count else name
            sources.append(f"{{{{ {writer.anything(rng.choice(KINDS))} | {called} }}}}")
    rng.shuffle(sources)
    return {"templates": sources, "contexts": [values(rng, about.fields, LEVELS) for _ in range(CONTEXTS)]}


def render_all(template: Callable[[str], Any], error: type[Exception], payload: bytes) -> bytes:
    """A batch as JSON, rendered: the outputs with a zero byte after each, `!error` for a template that fails."""
    said = []
    wanted = json.loads(payload)
    for source in wanted["templates"]:
        try:
            parsed = template(source)
        except error:
            said += [FAILED] * len(wanted["contexts"])
            continue
        for variables in wanted["contexts"]:
            try:
                said.append(parsed.render(variables))
            except error:
                said.append(FAILED)
    return "".join(text + "\0" for text in said).encode()

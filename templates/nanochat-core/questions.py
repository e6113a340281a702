"""The questions of the `nanochat-core` task: five kinds of multiple choice, made from real text. Protected.

Each question is a context and some choices of which one is what the text says; a language model answers with the choice
that it finds likeliest, in bits per byte. All are made without looking at any model.

==========  =======  =================================================================================================
kind        choices  what is asked
==========  =======  =================================================================================================
cloze       4        how the text goes on from the beginning of a word; the others are passages from elsewhere in it
brackets    3        which bracket closes here; round, square and curly ones are right equally often
indent      4        how far the next line is indented: 0, 4, 8 or 12 blanks, each right equally often
copy        4        which name, that stands in the context already, comes again; the others have the same length
words       2        which is a word of this text, and which has its letters shuffled
==========  =======  =================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CONTEXT = 88  # bytes
WIDTH = 112  # of a row: context, choice, and what comes after it
PASSAGE = 16
KINDS = {"cloze": 4, "brackets": 3, "indent": 4, "copy": 4, "words": 2}  # and how many choices they have
PAIRS = {b"(": b")", b"[": b"]", b"{": b"}"}
INDENTS = (0, 4, 8, 12)


@dataclass(frozen=True)
class Question:
    """The right choice comes first; group: what is to be right equally often."""

    context: bytes
    choices: tuple[bytes, ...]
    group: object = None


def words_of(text: bytes, least: int, most: int) -> Iterator[re.Match[bytes]]:
    """Names in a text by their length, those that a context can stand before."""
    pattern = rb"(?<![A-Za-z0-9_])[A-Za-z_]{%d,%d}(?![A-Za-z0-9_])" % (least, most)
    return (found for found in re.finditer(pattern, text) if found.start() >= CONTEXT)


def before(text: bytes, place: int) -> bytes:
    """The context of a place."""
    return text[place - CONTEXT : place]


def cloze(text: bytes, rng: np.random.Generator) -> Iterator[Question]:
    """Passages from the beginnings of words."""
    places = [found.start() for found in words_of(text, 2, 20) if found.start() + PASSAGE <= len(text)]
    for place in places[::7]:
        others = [text[at : at + PASSAGE] for at in rng.choice(places, 12)]
        right = text[place : place + PASSAGE]
        wrong = list(dict.fromkeys(other for other in others if other != right))[:3]
        if len(wrong) == 3:
            yield Question(before(text, place), (right, *wrong))


def brackets(text: bytes, rng: np.random.Generator) -> Iterator[Question]:
    """Closing brackets whose opening one stands in the context."""
    opened: list[tuple[bytes, int]] = []
    for found in re.finditer(rb"[][(){}]", text):
        one, place = found[0], found.start()
        if one in PAIRS:
            opened.append((one, place))
        else:
            kind, start = opened.pop() if opened else (b"", 0)
            if PAIRS.get(kind) == one and CONTEXT <= place < start + CONTEXT and place - start > 1:
                yield Question(before(text, place), (one, *(other for other in PAIRS.values() if other != one)), one)


def indent(text: bytes, rng: np.random.Generator) -> Iterator[Question]:
    """Lines after lines that are not empty."""
    for found in re.finditer(rb"(?<=[^\n]\n)( *)([^\s][^\n]{5})", text):
        deep = len(found[1])
        if found.start() >= CONTEXT and deep in INDENTS:
            wrong = [other for other in INDENTS if other != deep]
            choices = tuple(b" " * blanks + found[2] for blanks in (deep, *wrong))
            yield Question(before(text, found.start()), choices, deep)


def copy(text: bytes, rng: np.random.Generator) -> Iterator[Question]:
    """Names that stand in their context."""
    by_length: dict[int, list[bytes]] = {}
    for found in words_of(text, 6, 16):
        by_length.setdefault(len(found[0]), []).append(found[0])
    for found in words_of(text, 6, 16):
        context = before(text, found.start())
        if not re.search(rb"(?<![A-Za-z0-9_])" + re.escape(found[0]) + rb"(?![A-Za-z0-9_])", context):
            continue
        known = sorted({word for word in by_length[len(found[0])] if word not in context})
        if len(known) >= 3:
            yield Question(context, (found[0], *(known[i] for i in rng.permutation(len(known))[:3])))


def words(text: bytes, rng: np.random.Generator) -> Iterator[Question]:
    """Words where they are seen first."""
    seen: set[bytes] = set()
    for found in words_of(text, 6, 14):
        word = found[0]
        if word in seen or not word.islower() or b"_" in word:
            continue
        seen.add(word)
        shuffled = bytes(np.frombuffer(word, np.uint8)[rng.permutation(len(word))])
        if shuffled != word:
            yield Question(before(text, found.start()), (word, shuffled))


def drawn(made: list[Question], count: int, rng: np.random.Generator) -> list[Question]:
    """Some of the questions of a kind, from each group as many; an order of its own."""
    groups: dict[object, list[Question]] = {}
    for at in rng.permutation(len(made)):
        groups.setdefault(made[at].group, []).append(made[at])
    each = min(count // len(groups), *(len(group) for group in groups.values())) if len(groups) > 1 else count
    return [question for key in sorted(groups, key=repr) for question in groups[key][:each]]


def questions(texts: list[bytes], count: int, rng: np.random.Generator) -> dict[str, list[Question]]:
    """For each kind `count` questions, or as many as the texts have."""
    makers = {"cloze": cloze, "brackets": brackets, "indent": indent, "copy": copy, "words": words}
    return {
        kind: drawn([question for text in texts for question in makers[kind](text, rng)], count, rng) for kind in KINDS
    }


def tables(asked: dict[str, list[Question]], texts: list[bytes], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The questions as arrays, their choices shuffled.

    rows (R, WIDTH): context, choice, and text from elsewhere; contexts and choices (R,): lengths of the first two;
    question (R,), slot (R,): which question and which of its choices; right, kind: by question, slot and KINDS' index.
    """
    rest = b"".join(texts)
    found: dict[str, list[int]] = {name: [] for name in ("contexts", "choices", "question", "slot", "right", "kind")}
    rows = []
    for index, kind in enumerate(KINDS):
        for question in asked[kind]:
            order = rng.permutation(len(question.choices))
            for slot, at in enumerate(order):
                start = int(rng.integers(len(rest) - WIDTH))
                row = (question.context + question.choices[at] + rest[start : start + WIDTH])[:WIDTH]
                rows.append(np.frombuffer(row, np.uint8))
                found["contexts"].append(len(question.context))
                found["choices"].append(len(question.choices[at]))
                found["question"].append(len(found["right"]))
                found["slot"].append(slot)
            found["right"].append(int(np.flatnonzero(order == 0)[0]))
            found["kind"].append(index)
    return {"rows": np.stack(rows), **{name: np.array(values) for name, values in found.items()}}

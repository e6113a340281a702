"""Word problems of grade-school arithmetic: their sentences, their tokens, and how an answer is read. Protected.

A problem is a beginning, one or two events, each of which changes a number, and a question. A token is a word or a
whole number up to 99. An answer is what a model writes: its steps, then `#` and a number, then the end:

    noah has 12 nuts . noah finds 7 more . noah loses 4 of them . how many nuts now ? :
    12 + 7 = 19 ; 19 - 4 = 15 # 15 END

For every operation there are sentences that the base policy was shown with their solutions (`CLEAR`), and others that
it was shown with any operation, drawn at random (`OPEN`): what those stand for, only the rewards tell.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NAMES = ("mia", "omar", "lena", "kofi", "ines", "ravi", "yuki", "noah", "zara", "egon", "tove", "luca")
THINGS = ("apples", "marbles", "stickers", "pencils", "shells", "coins", "buttons", "cards", "stamps", "beads", "nuts")
BEGINNING = "{name} has {number} {things} ."
QUESTION = "how many {things} now ?"
CLEAR = {
    "+": ("{name} finds {number} more .", "{name} buys {number} more ."),
    "-": ("{name} loses {number} of them .", "{name} gives {number} to {other} ."),
    "*": ("{name} then has {number} times as many .",),
    "/": ("{name} keeps one of {number} equal parts .",),
}
OPEN = {
    "+": ("{number} come from {other} as a gift .", "{name} picks up another {number} ."),
    "-": ("{number} break .", "{name} sells {number} at the market ."),
    "*": ("the pile grows {number} fold .",),
    "/": ("only every {number} th is kept .",),
}
MOST = 99
FIRST = (2, 20)
"""The numbers that a problem may begin with."""
SECOND = {"+": (2, 12), "-": (2, 12), "*": (2, 5), "/": (2, 5)}
TWO_STEPS = 0.6
"""The share of problems with two events."""
NEW = 0.5
"""The share of sentences of which the base policy does not know what they stand for."""

PAD, END, BEGIN = "PAD", "END", ":"
_FORMS = (BEGINNING, QUESTION, *(form for table in (CLEAR, OPEN) for forms in table.values() for form in forms))
_WORDS = sorted({word for form in _FORMS for word in form.split() if not word.startswith("{")})
TOKENS = (PAD, END, BEGIN, "#", "=", ";", *CLEAR, *(str(n) for n in range(MOST + 1)), *NAMES, *THINGS, *_WORDS)
NUMBER_OF = {token: number for number, token in enumerate(TOKENS)}
PAD_ID, END_ID, BEGIN_ID, MARK_ID, ZERO_ID = (NUMBER_OF[token] for token in (PAD, END, BEGIN, "#", "0"))
PROMPT, ANSWER = 27, 16
"""Tokens of a problem, the colon at its end included, and the most that an answer may have; it needs 14."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in words. steps: number, operation, number and result of each event; new: has an open sentence."""

    text: str
    steps: tuple[tuple[int, str, int, int], ...]
    new: bool

    @property
    def answer(self) -> int:
        """What the last step gives."""
        return self.steps[-1][3]

    @property
    def solution(self) -> str:
        """The answer as the base policy was shown it."""
        steps = " ; ".join(f"{before} {operation} {by} = {after}" for before, operation, by, after in self.steps)
        return f"{steps} # {self.answer} {END}"


def applied(operation: str, before: int, by: int) -> int | None:
    """The result, None where it is no number from 1 to MOST."""
    if operation == "/":
        return before // by if before % by == 0 else None
    after = {"+": before + by, "-": before - by, "*": before * by}[operation]
    return after if 1 <= after <= MOST else None


def draw(rng: random.Random, shown: bool = False) -> Problem:
    """One problem. shown: to the base policy, so that its open sentences may stand for any operation."""
    name, other = rng.sample(NAMES, 2)
    things, number = rng.choice(THINGS), rng.randint(*FIRST)
    sentences, steps, met = [BEGINNING.format(name=name, number=number, things=things)], [], False
    wanted = 2 if rng.random() < TWO_STEPS else 1
    while len(steps) < wanted:
        operation = rng.choice(tuple(CLEAR))
        by = rng.randint(*SECOND[operation])
        after = applied(operation, number, by)
        if after is None:
            continue  # another operation: there is always one, since a sum below MOST can be had or a difference
        fresh = rng.random() < NEW
        meant = rng.choice(tuple(OPEN)) if fresh and shown else operation
        form = rng.choice((OPEN if fresh else CLEAR)[meant])
        sentences.append(form.format(name=name, other=other, number=by))
        steps.append((number, operation, by, after))
        number, met = after, met or fresh
    sentences.append(QUESTION.format(things=things))
    return Problem(" ".join(sentences), tuple(steps), met)


def prompts(problems: Sequence[Problem]) -> np.ndarray:
    """The tokens of problems, (N, PROMPT) int64: the words, PAD, and the colon, behind which answers stand in line."""
    rows = np.full((len(problems), PROMPT), PAD_ID, np.int64)
    for row, problem in zip(rows, problems, strict=True):
        words = [NUMBER_OF[word] for word in problem.text.split()]
        row[: len(words)] = words
    rows[:, -1] = BEGIN_ID
    return rows


def solutions(problems: Sequence[Problem]) -> np.ndarray:
    """The tokens of worked answers, (N, ANSWER) int64, PAD after their end."""
    rows = np.full((len(problems), ANSWER), PAD_ID, np.int64)
    for row, problem in zip(rows, problems, strict=True):
        words = [NUMBER_OF[word] for word in problem.solution.split()]
        row[: len(words)] = words
    return rows


def told(answers: np.ndarray) -> np.ndarray:
    """The numbers that answers (N, ANSWER) give: behind the first `#`, and then the end; −1 where there is none."""
    padded = np.pad(answers, ((0, 0), (0, 2)), constant_values=PAD_ID)
    at = (padded == MARK_ID).argmax(1)
    rows = np.arange(len(padded))
    number = padded[rows, at + 1] - ZERO_ID
    good = (padded[rows, at] == MARK_ID) & (number >= 0) & (number <= MOST) & (padded[rows, at + 2] == END_ID)
    return np.where(good, number, -1)


def words(tokens: Sequence[int]) -> str:
    """Tokens as text, without the filling."""
    return " ".join(TOKENS[token] for token in tokens if token != PAD_ID)

"""Answers of models, attempts and costs of experiments as the JSON that commands print, by plain ``sqlite3``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autoresearchd.store import figures
from autoresearchd.store.documents import iso
from autoresearchd.store.inflate import inflate

LOST = {"role": "lost", "content": "this message could not be recovered"}
"""Stands for a message that cannot be read any more."""
MOST_MESSAGES = 10_000
"""Of a conversation: an agent takes a thousand turns at most, of two messages each."""

_ANSWERS = """
SELECT attempt, at, model, form, error, finish, usd, tokens_in, tokens_out, seconds
FROM answer WHERE session_id = ? AND number = ? ORDER BY answer_index
"""
_BODIES = """
SELECT a.answer_index, b.shared, b.messages, b.completion
FROM answer a
LEFT JOIN answer_body b
    ON b.session_id = a.session_id AND b.number = a.number AND b.answer_index = a.answer_index
WHERE a.session_id = ? AND a.number = ? ORDER BY a.answer_index
"""
_ATTEMPTS = "SELECT attempt, description, hypothesis FROM proposal WHERE session_id = ? AND number = ? ORDER BY attempt"
_FAILURES = """
SELECT attempt, label, detail FROM run
WHERE session_id = ? AND number = ? AND program IS NULL AND label NOT IN ('', 'interrupted', 'host_lost', 'disk_full')
ORDER BY run_index
"""
# Of experiments with several proposals: the list itself has the price of the current one.
_COSTS_OF_ATTEMPTS = """
SELECT number, CASE WHEN COUNT(usd) = COUNT(*) THEN SUM(usd) END FROM proposal
WHERE session_id = :session AND number IN
    (SELECT number FROM proposal WHERE session_id = :session AND number BETWEEN :first AND :final AND attempt > 0)
GROUP BY number
"""
_COSTS_OF_ANSWERS = """
SELECT number, CASE WHEN COUNT(usd) = COUNT(*) THEN SUM(usd) END FROM answer
WHERE session_id = :session AND number BETWEEN :first AND :final
GROUP BY number
"""


def answers(db: sqlite3.Connection, session_id: int, number: int, *, full: bool = False) -> list[dict[str, Any]]:
    """All answers given for an experiment, oldest first; ``full``: with their messages and completions."""
    names = ("attempt", "at", "model", "form", "error", "finish", "cost_usd", "tokens_in", "tokens_out", "seconds")
    found = [dict(zip(names, row, strict=True)) for row in db.execute(_ANSWERS, (session_id, number))]
    for answer in found:
        answer["at"] = iso(answer["at"])
    if full:
        bodies = db.execute(_BODIES, (session_id, number)).fetchall()
        stored = ((i, shared, [] if new is None else json.loads(inflate(new))) for i, shared, new, _ in bodies)
        for answer, messages, (*_, completion) in zip(found, conversations(stored), bodies, strict=True):
            answer["messages"] = messages
            answer["completion"] = "" if completion is None else figures.unpack_text(completion)
    return found


def attempts(db: sqlite3.Connection, session_id: int, number: int) -> list[dict[str, Any]]:
    """Proposals of an experiment in order, each with how its run failed (empty where none did)."""
    failed = {attempt: (label, detail) for attempt, label, detail in db.execute(_FAILURES, (session_id, number))}
    found = []
    for attempt, description, hypothesis in db.execute(_ATTEMPTS, (session_id, number)):
        label, detail = failed.get(attempt, ("", ""))
        found.append({"attempt": attempt, "description": description or hypothesis, "label": label, "reason": detail})
    return found


def costs(db: sqlite3.Connection, session_id: int, first: int, final: int) -> dict[int, float | None]:
    """US dollars by experiment: of its answers where there are any, else of its proposals; None: not known in full.

    Left out are experiments with one proposal and no answer: their cost is the proposal's.
    """
    key = {"session": session_id, "first": first, "final": final}
    found: dict[int, float | None] = {}
    for query in (_COSTS_OF_ATTEMPTS, _COSTS_OF_ANSWERS):
        found.update((number, usd) for number, usd in db.execute(query, key))
    return found


def conversations(stored: Iterable[tuple[int, int | None, Sequence[Any]]]) -> Iterator[list[Any]]:
    """Messages of each answer, from (index, how many are those of the answer before it, the others).

    In the place of one that went down with a damaged database stands ``LOST``; ValueError where there are said to be
    more than any conversation has.
    """
    before: list[Any] = []
    following = 0
    for index, shared, new in stored:
        if (shared or 0) > MOST_MESSAGES:
            raise ValueError(f"a conversation is said to share {shared} messages")
        head = before[: shared or 0] if index == following else []
        lost = [LOST] * ((shared or 0) - len(head))
        before, following = [*head, *lost, *new], index + 1
        yield before

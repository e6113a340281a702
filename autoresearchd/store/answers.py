"""Answers of models in the journal: written and charged the moment that they come, read back with their messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Integer, Row, bindparam, func, insert, select

from autoresearchd.domain.proposal import Answer, Cost, Generation
from autoresearchd.store import codec, phases
from autoresearchd.store.columns import core_table
from autoresearchd.store.model_tables import AnswerBodyTable, AnswerTable
from autoresearchd.store.tables import ExperimentTable
from autoresearchd.store.transcripts import conversations

_A, _B, _E = map(core_table, (AnswerTable, AnswerBodyTable, ExperimentTable))
_OF_SESSION, _OF_NUMBER = (bindparam(name, type_=Integer) for name in ("of_session", "of_number"))
_KEYS = ("session_id", "number", "answer_index")

_INSERT, _INSERT_BODY = insert(_A), insert(_B)
_NEXT = select(func.coalesce(func.max(_A.c.answer_index), -1) + 1).where(
    _A.c.session_id == _OF_SESSION, _A.c.number == _OF_NUMBER
)
_MESSAGES = (
    select(_B.c.answer_index, _B.c.shared, _B.c.messages)
    .where(_B.c.session_id == _OF_SESSION, _B.c.number == _OF_NUMBER)
    .order_by(_B.c.answer_index)
)
_ANSWERS = (
    select(_A.c.answer_index, *(c for table in (_A, _B) for c in table.c if c.name not in _KEYS))
    .outerjoin_from(
        _A,
        _B,
        (_B.c.session_id == _A.c.session_id) & (_B.c.number == _A.c.number) & (_B.c.answer_index == _A.c.answer_index),
    )
    .where(_A.c.session_id == _OF_SESSION, _A.c.number == _OF_NUMBER)
    .order_by(_A.c.answer_index)
)
_THERE = select(_E.c.number).where(_E.c.session_id == _OF_SESSION, _E.c.number == _OF_NUMBER)
_SPENT = select(func.coalesce(func.sum(_A.c.usd), 0.0)).where(_A.c.at >= bindparam("since", type_=_A.c.at.type))

_CHARGES = select(_A.c.at, _A.c.usd).where(_A.c.at >= bindparam("since", type_=_A.c.at.type), _A.c.usd > 0)


def record(c: Connection, session_id: int, number: int, answer: Answer, at: datetime) -> None:
    """Store an answer, in whatever phase the experiment is, and charge its cost. KeyError where there is none."""
    phases.locked(c, session_id, number)
    of = {"of_session": session_id, "of_number": number}
    index = c.execute(_NEXT, of).scalar_one()
    messages = codec.jsonable(answer.generation.messages)
    shared = _shared(_last_messages(c, of), messages) if index else 0
    key = dict(zip(_KEYS, (session_id, number, index), strict=True))
    c.execute(_INSERT, key | _values(answer, at))
    c.execute(_INSERT_BODY, key | _body(answer.generation, messages[shared:]) | {"shared": shared})
    phases.charge(c, session_id, answer.cost)


def of_experiment(c: Connection, session_id: int, number: int) -> list[Answer]:
    """All answers given for an experiment, oldest first. KeyError when there is none of that number."""
    of = {"of_session": session_id, "of_number": number}
    found = c.execute(_ANSWERS, of).all()
    if not found and c.execute(_THERE, of).first() is None:
        raise KeyError(f"session {session_id} has no experiment {number}")
    said = conversations((row.answer_index, row.shared, _unpacked(row.messages)) for row in found)
    return [_answer(row, messages) for row, messages in zip(found, said, strict=True)]


def spent_since(c: Connection, at: datetime) -> float:
    """Sum of the known prices of all answers since then."""
    return float(c.execute(_SPENT, {"since": at}).scalar_one())


def charges_since(c: Connection, at: datetime) -> list[tuple[datetime, float]]:
    """When each answer since then came and what it cost, oldest first."""
    return [(when, usd) for when, usd in c.execute(_CHARGES.order_by(_A.c.at), {"since": at})]


def _values(answer: Answer, at: datetime) -> dict[str, Any]:
    cost, g = answer.cost, answer.generation
    return {
        "attempt": answer.attempt,
        "at": at,
        "usd": codec.finite(cost.usd),
        "tokens_in": cost.tokens_in,
        "tokens_out": cost.tokens_out,
        "seconds": codec.finite(cost.seconds) or 0.0,
        "model": answer.model,
        "form": answer.form,
        "finish": answer.finish,
        "model_hash": g.model_hash,
        "tokenizer_hash": g.tokenizer_hash,
        "template_hash": g.template_hash,
        "adapter": g.adapter,
        "sampling": codec.or_null(g.sampling),
        "error": answer.error,
    }


def _body(g: Generation, messages: Sequence[Any]) -> dict[str, bytes | None]:
    return {
        "messages": codec.pack_json(messages) if messages else None,
        "completion": codec.pack_text(g.completion) if g.completion else None,
        "token_ids": None if g.token_ids is None else codec.pack_numbers(g.token_ids, "q"),
        "logprobs": None if g.logprobs is None else codec.pack_numbers(g.logprobs, "d"),
    }


def _answer(row: Row[*tuple[Any, ...]], messages: Sequence[Any]) -> Answer:
    generation = Generation(
        messages=tuple(messages),
        completion="" if row.completion is None else codec.unpack_text(row.completion),
        token_ids=None if row.token_ids is None else codec.unpack_numbers(row.token_ids, "q"),
        logprobs=None if row.logprobs is None else codec.unpack_numbers(row.logprobs, "d"),
        sampling=row.sampling or {},
        model_hash=row.model_hash,
        tokenizer_hash=row.tokenizer_hash,
        template_hash=row.template_hash,
        adapter=row.adapter,
    )
    cost = Cost(row.usd, row.tokens_in, row.tokens_out, row.seconds)
    return Answer(row.model, cost, generation, row.error, row.form, row.finish, row.attempt)


def _last_messages(c: Connection, of: dict[str, int]) -> list[Any]:
    """Messages of the latest answer, put together again."""
    stored = ((index, shared, _unpacked(new)) for index, shared, new in c.execute(_MESSAGES, of))
    return [[], *conversations(stored)][-1]


def _unpacked(blob: bytes | None) -> list[Any]:
    return [] if blob is None else list(codec.unpack_json(blob))


def _shared(before: Sequence[Any], now: Sequence[Any]) -> int:
    """How many messages at the beginning are the same."""
    pairs = zip(before, now, strict=False)
    return next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(before), len(now)))

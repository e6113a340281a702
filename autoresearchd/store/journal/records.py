"""From rows to what the rest of the house talks about, and back: one place for each kind of row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, func, insert, select

from autoresearchd.domain.experiment import Decision, Experiment, Limits, Measurement, Run, RunResult, Session
from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.tables import HASHES

AnyRow = Row[*tuple[Any, ...]]
LOST = {"role": "lost", "content": "this message could not be recovered"}
"""Stands for a message that cannot be read any more."""
_MOST_PARAMETERS = 10_000  # of a statement: SQLite takes 32,766, psycopg 65,535
_MOST_MESSAGES = 10_000
"""Of a conversation: an agent takes a thousand turns at most, of two messages each."""

_KEY = ("session_id", "number", "attempt")
_LONG = ("messages", "completion", "token_ids", "logprobs")
_COST = tuple(field.name for field in fields(Cost))
_SESSION = tuple(field.name for field in fields(Session) if field.name != "limits")
_EXPERIMENT = (
    "session_id", "number", "segment", "phase", "parent", "started_at", "finished_at", "overhead_ms", "confirmed",
)  # fmt: skip
_PROPOSAL = (
    "hypothesis", "policy", "description", "expected_delta", "changes", "role", "adapter", "state_id", "round_id",
    "parent",
)  # fmt: skip
DECISION = ("status", "label", "value", "delta", "metrics", "confidence", "sigma", "reward", "reason", "shift")
e, p, b, a, r, n = t.experiments, t.proposals, t.proposal_bodies, t.asi, t.runs, t.answers

CURRENT = and_(p.c.session_id == e.c.session_id, p.c.number == e.c.number, p.c.attempt == e.c.attempt)
"""Joins an experiment and its current proposal."""
BODY = and_(*(b.c[name] == p.c[name] for name in _KEY))
"""Joins a proposal and its long parts."""


def _experiments(*more: Any) -> Select[*tuple[Any, ...]]:
    without = (*_KEY, *HASHES, "generation_adapter", "sampling", "reward", "censored")
    proposal = [c.label(f"p_{c.name}") for c in t.columns(p, *without)]
    side = [c.label(f"a_{c.name}") for c in t.columns(a, *_KEY)]
    joined = select(*e.c, *proposal, *side, *more).outerjoin_from(e, p, CURRENT).outerjoin(b, BODY)
    return joined.outerjoin(a, and_(a.c.session_id == e.c.session_id, a.c.number == e.c.number))


LISTED = _experiments()
"""Experiments with their current proposals, without the texts of files."""
EXPERIMENTS = _experiments(b.c.files)
FULL_EXPERIMENTS = _experiments(
    b.c.files, *(b.c[name] for name in _LONG), *(p.c[name] for name in (*HASHES, "generation_adapter", "sampling"))
)
"""With files and generations."""
THIS = (e.c.session_id == bindparam("of_session"), e.c.number == bindparam("of_number"))
"""One experiment, in a statement that is made once: to make one takes longer than to carry it out."""
ONE, ONE_LISTED, ONE_FULL = (many.where(*THIS) for many in (EXPERIMENTS, LISTED, FULL_EXPERIMENTS))
_renamed = {"experiment": "number", "index": "run_index", "of": "program"}
RUNS = select(*(r.c[_renamed.get(field.name, field.name)].label(field.name) for field in fields(Run)))
_RUNS_FROM_TO = RUNS.where(
    r.c.session_id == bindparam("of_session"), r.c.number.between(bindparam("first"), bindparam("last"))
).order_by(r.c.run_index)
_answer = ("session_id", "number", "answer_index")
ANSWERS = select(*n.c, *t.columns(t.answer_bodies, *_answer)).outerjoin_from(
    n, t.answer_bodies, and_(*(n.c[name] == t.answer_bodies.c[name] for name in _answer))
)


def require(row: AnyRow | None, what: str) -> AnyRow:
    """The row; KeyError, which says what is missing, where there is none."""
    if row is None:
        raise KeyError(what)
    return row


def pick(source: Any, names: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """Attributes by name; ``prefix``: what their names begin with at the source."""
    return {name: getattr(source, prefix + name) for name in names}


# ---------------------------------------------------------------------- experiments
def load_experiment(c: Connection, session_id: int, number: int, one: Select[Any] = ONE) -> Experiment:
    """One experiment; KeyError when there is none."""
    found = load_experiments(c, session_id, one, of_session=session_id, of_number=number)
    if not found:
        raise KeyError(f"session {session_id} has no experiment {number}")
    return found[0]


def load_experiments(c: Connection, session_id: int, selection: Select[Any], **values: int) -> list[Experiment]:
    """The experiments of a selection (values: of its parameters), with their runs, in its order."""
    rows = c.execute(selection, values).all()
    if not rows:
        return []
    numbers = [row.number for row in rows]
    first, last = min(numbers), max(numbers)
    if last - first >= len(numbers) and len(numbers) < _MOST_PARAMETERS:
        found = c.execute(RUNS.where(r.c.session_id == session_id, r.c.number.in_(numbers)).order_by(r.c.run_index))
    else:
        found = c.execute(_RUNS_FROM_TO, {"of_session": session_id, "first": first, "last": last})
    runs: dict[int, list[Run]] = {}
    for row in found:
        runs.setdefault(row.experiment, []).append(Run(**row._mapping))
    return [_experiment_of(row, runs.get(row.number, ())) for row in rows]


def _experiment_of(row: AnyRow, runs: Iterable[Run]) -> Experiment:
    decision, asi = None, ASI()
    if row.status is not None:
        parts = {"reward_parts": row.p_reward_parts, "reward_formula": row.p_reward_formula}
        decision = Decision(**{**pick(row, DECISION), "reason": row.reason or ""}, **parts)
    if row.a_hypothesis is not None:
        asi = ASI(**pick(row, ASI.__slots__, "a_"))
    return Experiment(
        **pick(row, _EXPERIMENT),
        commit=row.commit_sha,
        proposal=None if row.attempt is None else proposal_of(row, row.attempt),
        runs=tuple(runs),
        decision=decision,
        asi=asi,
        attempt=row.attempt or 0,
    )


def proposal_of(row: AnyRow, attempt: int) -> Proposal:
    """A proposal from its columns, which begin with ``p_``; with files and generation where the row has them."""
    there = row._fields
    return Proposal(
        files=row.files if "files" in there else {},
        **pick(row, _PROPOSAL, "p_"),
        asi=ASI(**row.p_asi),
        cost=Cost(**pick(row, _COST, "p_")),
        generation=_generation_of(row, row.generation_adapter, row.messages) if "completion" in there else Generation(),
        attempt=attempt,
    )


def _generation_of(row: AnyRow, adapter: str | None, messages: Sequence[Any] | None) -> Generation:
    known = pick(row, ("token_ids", "logprobs", "sampling", *HASHES))
    return Generation(tuple(messages or ()), row.completion or "", **known, adapter=adapter)


def session_of(row: AnyRow) -> Session:
    """A session from its row."""
    return Session(**pick(row, _SESSION), limits=Limits(row.max_experiments, row.max_seconds, row.max_usd))


# ---------------------------------------------------------------------- answers
def answers_of(rows: Sequence[AnyRow | None]) -> list[Answer | None]:
    """The answers of an experiment, in the order of their rows; None for a row that is None."""
    there = [row for row in rows if row is not None]
    said = conversations((row.answer_index, row.shared, row.messages or ()) for row in there)
    return [None if row is None else _answer_of(row, next(said)) for row in rows]


def _answer_of(row: AnyRow, messages: Sequence[Any]) -> Answer:
    generation = _generation_of(row, row.adapter, messages)
    return Answer(row.model, Cost(**pick(row, _COST)), generation, row.error, row.form, row.finish, row.attempt)


def conversations(stored: Iterable[tuple[int, int | None, Sequence[Any]]]) -> Iterator[list[Any]]:
    """Messages of each answer, from (index, how many are those of the one before, the others); see ``LOST``."""
    before: list[Any] = []
    following = 0
    for index, shared, new in stored:
        if not 0 <= (shared or 0) <= _MOST_MESSAGES:
            raise ValueError(f"a conversation is said to share {shared} messages")
        head = before[: shared or 0] if index == following else []
        lost = [LOST] * ((shared or 0) - len(head))
        before, following = [*head, *lost, *new], index + 1
        yield before


def generation_values(g: Generation) -> dict[str, Any]:
    """The long parts of a generation. Tokens of a completion with a secret in it are left out: they would spell it."""
    if t.redacted(g.completion) != g.completion:
        g = replace(g, token_ids=None, logprobs=None)
    return {**pick(g, _LONG), "messages": g.messages or None, "completion": g.completion or None}


def cost_values(cost: Cost) -> dict[str, Any]:
    """Columns of a cost."""
    return {**asdict(cost), "seconds": codec.finite(cost.seconds) or 0.0}


def insert_proposal(c: Connection, key: Mapping[str, Any], proposal: Proposal, diff: str, code_hash: str) -> None:
    """Write a proposal with its long parts. key: of its row."""
    g, asi = proposal.generation, pick(proposal.asi, ASI.__slots__)
    more = {"generation_adapter": g.adapter, "code_hash": code_hash, "censored": False}
    values = {**pick(proposal, _PROPOSAL), **cost_values(proposal.cost), **pick(g, (*HASHES, "sampling")), **more}
    known = {name: value for name, value in asi.items() if value}
    c.execute(insert(p).values(**key, **values, asi=known))
    c.execute(insert(b).values(**key, diff=diff, files=proposal.files, **generation_values(g)))


def insert_run(
    c: Connection, session_id: int, number: int, seed: int, at: datetime, *, attempt: int, of: int | None = None
) -> Run:
    """Write down that a run is about to start; it takes the experiment's next index, which names its folder."""
    following = func.coalesce(func.max(r.c.run_index) + 1, 0)  # after a repair some before it may be missing
    index = c.execute(select(following).filter_by(session_id=session_id, number=number)).scalar_one()
    values = {"session_id": session_id, "number": number, "run_index": index, "seed": seed, "program": of}
    empty = {"label": Label.NONE, "duration_s": 0.0, "tier": "", "host": "", "device": "cpu", "detail": ""}
    new = insert(r).values(**values, attempt=attempt, started_at=at, **empty).returning(r.c.id)
    return Run(c.execute(new).scalar_one(), number, index, seed, at, of=of, attempt=attempt)


def run_values(m: Measurement, result: RunResult | None) -> dict[str, Any]:
    """Columns of a run that has ended, without those of its beginning."""
    values = {**pick(m, ("label", "value", "metrics", "detail")), "curve": m.curve or None}
    if result is not None:
        # The exit code of the stage that went wrong, else of the last one.
        failed = next((s for s in result.stages if s.outcome != "ok"), result.stages[-1] if result.stages else None)
        values |= pick(result, ("duration_s", "tier", "host", "device"))
        values |= {"exit_code": failed.exit_code if failed else None, "stages": [asdict(s) for s in result.stages]}
    return values

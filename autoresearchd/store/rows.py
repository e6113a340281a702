"""From rows to what the rest of the house talks about: the selections, and the domain objects made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, Row, Select, and_, bindparam, select

from autoresearchd.domain.events import Event, EventKind
from autoresearchd.domain.experiment import (
    Decision,
    Experiment,
    Limits,
    Note,
    Run,
    Segment,
    Session,
    StageResult,
    Totals,
    Trial,
)
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.proposal import ASI, Cost, Generation, Proposal
from autoresearchd.store import codec
from autoresearchd.store.tables import (
    AsiTable,
    EventTable,
    ExperimentTable,
    NoteTable,
    ProposalBodyTable,
    ProposalTable,
    RunTable,
    SegmentTable,
    SessionTable,
    TotalsTable,
)

_E, _P, _B, _A = ExperimentTable, ProposalTable, ProposalBodyTable, AsiTable
_GENERATION = ("model_hash", "tokenizer_hash", "template_hash", "generation_adapter", "sampling")
_P_COLUMNS = [
    c.label(f"p_{c.name}")
    for c in _P.__table__.columns
    if c.name not in ("session_id", "number", "attempt", "reward", "reward_parts", "reward_formula", "censored")
    and c.name not in _GENERATION
]
_A_COLUMNS = [c.label(f"a_{c.name}") for c in _A.__table__.columns if c.name not in ("session_id", "number")]


def _experiments(*more: Any) -> Select[*tuple[Any, ...]]:
    proposal = and_(_P.session_id == _E.session_id, _P.number == _E.number, _P.attempt == _E.attempt)
    body = and_(_B.session_id == _P.session_id, _B.number == _P.number, _B.attempt == _P.attempt)
    asi = and_(_A.session_id == _E.session_id, _A.number == _E.number)
    columns = [*_E.__table__.columns, *_P_COLUMNS, *_A_COLUMNS, _B.files, *more]
    return select(*columns).outerjoin_from(_E, _P, proposal).outerjoin(_B, body).outerjoin(_A, asi)


EXPERIMENTS = _experiments()
"""Experiments with their current proposals, without generations."""
FULL_EXPERIMENTS = _experiments(
    _B.messages, _B.completion, _B.token_ids, _B.logprobs, *(_P.__table__.columns[name] for name in _GENERATION)
)
RUNS = select(*(c for c in RunTable.__table__.columns if c.name not in ("stages", "curve", "host")))


# Statements that do not change are made once: building one of sixty columns takes longer than running it.
_KEY = {"session_id": bindparam("session_id", type_=Integer), "number": bindparam("number", type_=Integer)}
_ONE, _ONE_FULL = (
    selection.where(_E.session_id == _KEY["session_id"], _E.number == _KEY["number"])
    for selection in (EXPERIMENTS, FULL_EXPERIMENTS)
)
_RUNS_OF_ONE = RUNS.where(RunTable.session_id == _KEY["session_id"], RunTable.number == _KEY["number"]).order_by(
    RunTable.run_index
)
_RUNS_BETWEEN = RUNS.where(
    RunTable.session_id == _KEY["session_id"],
    RunTable.number.between(bindparam("first", type_=Integer), bindparam("final", type_=Integer)),
).order_by(RunTable.number, RunTable.run_index)

_RUNS_OF_SOME = RUNS.where(
    RunTable.session_id == _KEY["session_id"], RunTable.number.in_(bindparam("numbers", expanding=True))
).order_by(RunTable.run_index)


def load_one(connection: Connection, session_id: int, number: int, *, full: bool = False) -> Experiment:
    """One experiment; KeyError when there is none. full: with its generation."""
    key = {"session_id": session_id, "number": number}
    row = connection.execute(_ONE_FULL if full else _ONE, key).one_or_none()
    if row is None:
        raise KeyError(f"session {session_id} has no experiment {number}")
    return experiment(row, [run(r) for r in connection.execute(_RUNS_OF_ONE, key)], full=full)


def load_many(
    connection: Connection,
    session_id: int,
    selection: Select[*tuple[Any, ...]],
    parameters: Mapping[str, Any] | None = None,
) -> list[Experiment]:
    """The experiments of a selection, with their runs, in its order. parameters: what the selection leaves open."""
    found = connection.execute(selection, parameters).all()
    if not found:
        return []
    numbers = [row.number for row in found]
    runs: dict[int, list[Run]] = {}
    if max(numbers) - min(numbers) < len(numbers):
        key = {"session_id": session_id, "first": min(numbers), "final": max(numbers)}
        found_runs = connection.execute(_RUNS_BETWEEN, key)
    else:
        found_runs = connection.execute(_RUNS_OF_SOME, {"session_id": session_id, "numbers": numbers})
    for row in found_runs:
        runs.setdefault(row.number, []).append(run(row))
    return [experiment(row, runs.get(row.number, ())) for row in found]


def experiment(row: Row[*tuple[Any, ...]], runs: Iterable[Run], *, full: bool = False) -> Experiment:
    """An experiment from its row and its runs."""
    return Experiment(
        session_id=row.session_id,
        number=row.number,
        segment=row.segment,
        phase=Phase(row.phase),
        parent=row.parent,
        started_at=row.started_at,
        commit=row.commit_sha,
        proposal=None if row.attempt is None else _proposal(row, _generation(row) if full else Generation()),
        runs=tuple(runs),
        decision=None if row.status is None else _decision(row),
        asi=_asi(row),
        finished_at=row.finished_at,
        overhead_ms=row.overhead_ms,
        attempt=row.attempt or 0,
    )


def _proposal(row: Row[*tuple[Any, ...]], generation: Generation) -> Proposal:
    return Proposal(
        files=codec.PackedFiles(row.files),
        hypothesis=row.p_hypothesis,
        policy=row.p_policy,
        description=row.p_description,
        expected_delta=row.p_expected_delta,
        changes=row.p_changes or {},
        role=row.p_role,
        adapter=row.p_adapter,
        asi=asi_of(row.p_asi),
        cost=Cost(row.p_usd, row.p_tokens_in, row.p_tokens_out, row.p_seconds),
        generation=generation,
        state_id=row.p_state_id,
        round_id=row.p_round_id,
        attempt=row.attempt,
        parent=row.p_parent,
    )


def _generation(row: Row[*tuple[Any, ...]]) -> Generation:
    return Generation(
        messages=() if row.messages is None else tuple(codec.unpack_json(row.messages)),
        completion="" if row.completion is None else codec.unpack_text(row.completion),
        token_ids=None if row.token_ids is None else codec.unpack_numbers(row.token_ids, "q"),
        logprobs=None if row.logprobs is None else codec.unpack_numbers(row.logprobs, "d"),
        sampling=row.sampling or {},
        model_hash=row.model_hash,
        tokenizer_hash=row.tokenizer_hash,
        template_hash=row.template_hash,
        adapter=row.generation_adapter,
    )


def _decision(row: Row[*tuple[Any, ...]]) -> Decision:
    return Decision(
        status=Status(row.status),
        label=Label(row.label),
        value=row.value,
        delta=row.delta,
        metrics=codec.metrics(row.metrics),
        confidence=row.confidence,
        sigma=row.sigma,
        reward=row.reward,
        reason=row.reason,
    )


def _asi(row: Row[*tuple[Any, ...]]) -> ASI:
    if row.a_hypothesis is None:
        return ASI()
    return ASI(row.a_hypothesis, row.a_arch_change, row.a_result, row.a_next_action_hint, row.a_extra or {})


def asi_of(stored: Mapping[str, Any] | None) -> ASI:
    """ASI from the column of a proposal."""
    return ASI(**stored) if stored else ASI()


def asi_column(asi: ASI) -> dict[str, Any] | None:
    """ASI for the column of a proposal: its fields by name, empty ones left out; None when all are."""
    return {name: value for name in ASI.__slots__ if (value := getattr(asi, name))} or None


def run(row: Row[*tuple[Any, ...]]) -> Run:
    """A run from its row."""
    return Run(
        id=row.id,
        experiment=row.number,
        index=row.run_index,
        seed=row.seed,
        started_at=row.started_at,
        finished_at=row.finished_at,
        label=Label(row.label),
        value=row.value,
        metrics=codec.metrics(row.metrics),
        duration_s=row.duration_s,
        exit_code=row.exit_code,
        tier=row.tier,
        device=row.device,
        detail=row.detail,
        of=row.program,
        attempt=row.attempt,
    )


TRIALS = (
    select(_E.number, _E.parent, _E.commit_sha, _P.changes, _E.status, _E.label, _E.value, _E.delta, _E.reason)
    .join_from(_E, _P, and_(_P.session_id == _E.session_id, _P.number == _E.number, _P.attempt == _E.attempt))
    .where(_E.status.is_not(None), _P.changes.is_not(None))
    .order_by(_E.number)
)


def stages_of(stored: Sequence[Mapping[str, Any]] | None) -> tuple[StageResult, ...]:
    """The stages of a run; fields that this version does not know are left out."""
    known = StageResult.__dataclass_fields__.keys()
    return tuple(StageResult(**{name: one[name] for name in known & one.keys()}) for one in stored or ())


def trials(found: Sequence[Row[*tuple[Any, ...]]]) -> list[Trial]:
    """Trials from rows of ``TRIALS``."""
    return [
        Trial(n, parent, sha, changes, Status(status), Label(label), value, delta, reason or "")
        for n, parent, sha, changes, status, label, value, delta, reason in found
    ]


def session(row: Row[*tuple[Any, ...]]) -> Session:
    """A session from its row."""
    return Session(
        id=row.id,
        tag=row.tag,
        branch=row.branch,
        task_json=row.task_json,
        policy=row.policy,
        executor=row.executor,
        base_commit=row.base_commit,
        incumbent=row.incumbent,
        incumbent_experiment=row.incumbent_experiment,
        state=SessionState(row.state),
        started_at=row.started_at,
        seed=row.seed,
        limits=Limits(row.max_experiments, row.max_seconds, row.max_usd),
        pid=row.pid,
        heartbeat_at=row.heartbeat_at,
        reason=row.reason,
        active_seconds=row.active_seconds,
        folder=row.folder,
    )


SESSIONS = select(*SessionTable.__table__.columns).order_by(SessionTable.id)
SEGMENTS = select(*SegmentTable.__table__.columns)
NOTES = select(NoteTable.id, NoteTable.text, NoteTable.created_at, NoteTable.seen_in).order_by(NoteTable.id)
TOTALS = select(*(c for c in TotalsTable.__table__.columns if c.name not in ("session_id", "opened", "aborted")))
EVENTS = select(EventTable.kind, EventTable.at, EventTable.message, EventTable.experiment, EventTable.data)


def segment(row: Row[*tuple[Any, ...]]) -> Segment:
    """A segment from its row."""
    return Segment(row.number, row.first, row.fingerprint, row.reason, row.hardware, row.started_at)


def note(row: Row[*tuple[Any, ...]]) -> Note:
    """A note from its row."""
    return Note(row.id, row.text, row.created_at, row.seen_in)


def totals(row: Row[*tuple[Any, ...]]) -> Totals:
    """Totals from their row."""
    return Totals(**row._mapping)


def event(row: Row[*tuple[Any, ...]]) -> Event:
    """An event from its row."""
    return Event(EventKind(row.kind), row.at, row.message, row.experiment, row.data or {})

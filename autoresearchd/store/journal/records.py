"""From rows to what the rest of the house talks about, and back: one place for each kind of row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, select

from autoresearchd.domain.experiment import (
    Decision,
    Experiment,
    Limits,
    Measurement,
    Run,
    RunResult,
    Session,
    StageResult,
)
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t

AnyRow = Row[*tuple[Any, ...]]
LOST = {"role": "lost", "content": "this message could not be recovered"}
"""Stands for a message that cannot be read any more."""
_MOST_MESSAGES = 10_000
"""Of a conversation: an agent takes a thousand turns at most, of two messages each."""

_KEY = ("session_id", "number", "attempt")
_HASHES = ("model_hash", "tokenizer_hash", "template_hash")
_GENERATION = (*_HASHES, "generation_adapter", "sampling")
e, p, b, a = t.experiments, t.proposals, t.proposal_bodies, t.asi

CURRENT = and_(p.c.session_id == e.c.session_id, p.c.number == e.c.number, p.c.attempt == e.c.attempt)
"""Joins an experiment and its current proposal."""
BODY = and_(b.c.session_id == p.c.session_id, b.c.number == p.c.number, b.c.attempt == p.c.attempt)
"""Joins a proposal and its long parts."""


def _experiments(*more: Any) -> Select[*tuple[Any, ...]]:
    proposal = [c.label(f"p_{c.name}") for c in t.columns(p, *_KEY, *_GENERATION, "reward", "censored")]
    side = [c.label(f"a_{c.name}") for c in t.columns(a, *_KEY)]
    asi = and_(a.c.session_id == e.c.session_id, a.c.number == e.c.number)
    joined = select(*e.c, *proposal, *side, *more).outerjoin_from(e, p, CURRENT)
    return joined.outerjoin(b, BODY).outerjoin(a, asi)


LISTED = _experiments()
"""Experiments with their current proposals, without the texts of files."""
EXPERIMENTS = _experiments(b.c.files)
"""With the texts of files."""
FULL_EXPERIMENTS = _experiments(b.c.files, *(b.c[n] for n in ("messages", "completion", "token_ids", "logprobs")),
                                *(p.c[name] for name in _GENERATION))  # fmt: skip
"""With files and generations."""
RUNS = select(*t.columns(t.runs, "stages", "curve", "host"))
ANSWERS = select(*t.answers.c, *t.columns(t.answer_bodies, "session_id", "number", "answer_index")).outerjoin_from(
    t.answers,
    t.answer_bodies,
    and_(*(t.answers.c[name] == t.answer_bodies.c[name] for name in ("session_id", "number", "answer_index"))),
)


# ---------------------------------------------------------------------- experiments
def load_experiment(c: Connection, session_id: int, number: int, selection: Select[Any] = EXPERIMENTS) -> Experiment:
    """One experiment; KeyError when there is none."""
    row = c.execute(selection.where(e.c.session_id == session_id, e.c.number == number)).one_or_none()
    if row is None:
        raise KeyError(f"session {session_id} has no experiment {number}")
    of_it = RUNS.where(t.runs.c.session_id == session_id, t.runs.c.number == number).order_by(t.runs.c.run_index)
    return experiment_of(row, map(run_of, c.execute(of_it)))


def load_experiments(c: Connection, session_id: int, selection: Select[Any]) -> list[Experiment]:
    """The experiments of a selection, with their runs, in its order."""
    rows = c.execute(selection).all()
    if not rows:
        return []
    numbers = [row.number for row in rows]
    few = max(numbers) - min(numbers) >= len(numbers)
    wanted = t.runs.c.number.in_(numbers) if few else t.runs.c.number.between(min(numbers), max(numbers))
    runs: dict[int, list[Run]] = {}
    for row in c.execute(RUNS.where(t.runs.c.session_id == session_id, wanted).order_by(t.runs.c.run_index)):
        runs.setdefault(row.number, []).append(run_of(row))
    return [experiment_of(row, runs.get(row.number, ())) for row in rows]


def experiment_of(row: AnyRow, runs: Iterable[Run]) -> Experiment:
    """An experiment from its row and its runs."""
    return Experiment(
        session_id=row.session_id,
        number=row.number,
        segment=row.segment,
        phase=Phase(row.phase),
        parent=row.parent,
        started_at=row.started_at,
        commit=row.commit_sha,
        proposal=None if row.attempt is None else proposal_of(row, row.attempt),
        runs=tuple(runs),
        decision=None if row.status is None else _decision_of(row),
        asi=ASI()
        if row.a_hypothesis is None
        else ASI(row.a_hypothesis, row.a_arch_change, row.a_result, row.a_next_action_hint, row.a_extra or {}),
        finished_at=row.finished_at,
        overhead_ms=row.overhead_ms,
        attempt=row.attempt or 0,
    )


def proposal_of(row: AnyRow, attempt: int) -> Proposal:
    """A proposal from its columns, which begin with ``p_``; with files and generation where the row has them."""
    there = row._fields
    return Proposal(
        files=row.files if "files" in there else {},
        hypothesis=row.p_hypothesis,
        policy=row.p_policy,
        description=row.p_description,
        expected_delta=row.p_expected_delta,
        changes=row.p_changes or {},
        role=row.p_role,
        adapter=row.p_adapter,
        asi=ASI(**row.p_asi) if row.p_asi else ASI(),
        cost=Cost(row.p_usd, row.p_tokens_in, row.p_tokens_out, row.p_seconds),
        generation=_generation_of(row, row.generation_adapter) if "completion" in there else Generation(),
        state_id=row.p_state_id,
        round_id=row.p_round_id,
        attempt=attempt,
        parent=row.p_parent,
    )


def _generation_of(row: AnyRow, adapter: str | None, messages: Sequence[Any] | None = None) -> Generation:
    return Generation(
        messages=tuple(row.messages or () if messages is None else messages),
        completion=row.completion or "",
        token_ids=row.token_ids,
        logprobs=row.logprobs,
        sampling=row.sampling or {},
        model_hash=row.model_hash,
        tokenizer_hash=row.tokenizer_hash,
        template_hash=row.template_hash,
        adapter=adapter,
    )


def _decision_of(row: AnyRow) -> Decision:
    return Decision(
        status=Status(row.status),
        label=Label(row.label),
        value=row.value,
        delta=row.delta,
        metrics=codec.metrics(row.metrics),
        confidence=row.confidence,
        sigma=row.sigma,
        reward=row.reward,
        reason=row.reason or "",
        reward_parts=row.p_reward_parts or {},
        reward_formula=row.p_reward_formula,
    )


def run_of(row: AnyRow) -> Run:
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


def stages_of(stored: Sequence[Mapping[str, Any]] | None) -> tuple[StageResult, ...]:
    """The stages of a run; fields that this version does not know are left out."""
    known = StageResult.__dataclass_fields__.keys()
    return tuple(StageResult(**{name: one[name] for name in known & one.keys()}) for one in stored or ())


def session_of(row: AnyRow) -> Session:
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


# ---------------------------------------------------------------------- answers
def answers_of(rows: Sequence[AnyRow | None]) -> list[Answer | None]:
    """The answers of an experiment, in the order of their rows; None for a row that is None."""
    there = [row for row in rows if row is not None]
    said = conversations((row.answer_index, row.shared, row.messages or ()) for row in there)
    return [None if row is None else _answer_of(row, next(said)) for row in rows]


def _answer_of(row: AnyRow, messages: Sequence[Any]) -> Answer:
    generation = _generation_of(row, row.adapter, messages)
    cost = Cost(row.usd, row.tokens_in, row.tokens_out, row.seconds)
    return Answer(row.model, cost, generation, row.error, row.form, row.finish, row.attempt)


def conversations(stored: Iterable[tuple[int, int | None, Sequence[Any]]]) -> Iterator[list[Any]]:
    """Messages of each answer, from (index, how many are those of the answer before it, the others).

    In the place of one that went down with a damaged database stands ``LOST``; ValueError where there are said to be
    more than any conversation has.
    """
    before: list[Any] = []
    following = 0
    for index, shared, new in stored:
        if not 0 <= (shared or 0) <= _MOST_MESSAGES:
            raise ValueError(f"a conversation is said to share {shared} messages")
        head = before[: shared or 0] if index == following else []
        lost = [LOST] * ((shared or 0) - len(head))
        before, following = [*head, *lost, *new], index + 1
        yield before


def answer_values(answer: Answer, at: datetime) -> dict[str, Any]:
    """Columns of an answer, without its key and its long parts."""
    cost, g = answer.cost, answer.generation
    return {
        "attempt": answer.attempt,
        "at": at,
        "usd": cost.usd,
        "tokens_in": cost.tokens_in,
        "tokens_out": cost.tokens_out,
        "seconds": codec.finite(cost.seconds) or 0.0,
        "model": answer.model,
        "form": answer.form,
        "finish": answer.finish,
        **{name: getattr(g, name) for name in _HASHES},
        "adapter": g.adapter,
        "sampling": g.sampling,
        "error": answer.error,
    }


def generation_values(g: Generation) -> dict[str, Any]:
    """The long parts of a generation. Tokens of a completion with a secret in it are left out: they would spell it."""
    if t.redacted(g.completion) != g.completion:
        g = replace(g, token_ids=None, logprobs=None)
    return {
        "messages": g.messages or None,
        "completion": g.completion or None,
        "token_ids": g.token_ids,
        "logprobs": g.logprobs,
    }


# ---------------------------------------------------------------------- columns of an experiment
def proposal_values(proposal: Proposal, code_hash: str) -> dict[str, Any]:
    """Columns of a proposal, without its key."""
    g, cost = proposal.generation, proposal.cost
    names = ("policy", "role", "adapter", "parent", "expected_delta", "state_id", "round_id", "changes", "hypothesis")
    return {
        **{name: getattr(proposal, name) for name in (*names, "description")},
        "code_hash": code_hash,
        "usd": cost.usd,
        "tokens_in": cost.tokens_in,
        "tokens_out": cost.tokens_out,
        "seconds": cost.seconds,
        "censored": False,
        **{name: getattr(g, name) for name in _HASHES},
        "generation_adapter": g.adapter,
        "sampling": g.sampling,
        "asi": {name: value for name in ASI.__slots__ if (value := getattr(proposal.asi, name))},
    }


def body_values(proposal: Proposal, diff: str) -> dict[str, Any]:
    """Columns of the long parts of a proposal, without its key."""
    return {"diff": diff, "files": proposal.files, **generation_values(proposal.generation)}


def run_values(m: Measurement, result: RunResult | None) -> dict[str, Any]:
    """Columns of a run that has ended, without those of its beginning."""
    values: dict[str, Any] = {
        "label": m.label, "value": m.value, "metrics": m.metrics, "detail": m.detail, "curve": m.curve or None,
    }  # fmt: skip
    if result is not None:
        # The exit code of the stage that went wrong, else of the last one.
        told = next((s for s in result.stages if s.outcome != "ok"), result.stages[-1] if result.stages else None)
        values |= {
            "duration_s": result.duration_s,
            "exit_code": told.exit_code if told else None,
            "tier": result.tier,
            "host": result.host,
            "device": result.device,
            "stages": [asdict(s) for s in result.stages],
        }
    return values


def decision_values(decision: Decision) -> dict[str, Any]:
    """Columns of an experiment that its decision sets."""
    names = ("status", "label", "value", "delta", "metrics", "confidence", "sigma", "reward", "reason")
    return {name: getattr(decision, name) for name in names}


def asi_values(asi: ASI) -> dict[str, Any]:
    """Columns of side information, without its key."""
    return {name: getattr(asi, name) for name in ASI.__slots__}


def limit_values(limits: Limits) -> dict[str, float | None]:
    """Columns of a session's limits."""
    return asdict(limits)

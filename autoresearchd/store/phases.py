"""The steps of one experiment as the journal takes them, each inside a transaction that the repository holds.

An experiment goes ``proposing → proposed → committed → running → measured → decided``; ``running`` goes back to
``committed`` while more runs follow, and a repair takes it from ``measured`` back to ``proposed``. A step out of order
raises StoreError. The same step with the same data may be repeated: recovery does not know whether the daemon died
before or after it.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, func, insert, select, update
from sqlalchemy.orm import DeclarativeBase

from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.errors import StoreError
from autoresearchd.store import codec, rows
from autoresearchd.store.tables import (
    AsiTable,
    ExperimentTable,
    ProposalBodyTable,
    ProposalTable,
    RunTable,
    SessionTable,
    TotalsTable,
)

_COUNTERS = {
    Status.KEEP: "keeps",
    Status.DISCARD: "discards",
    Status.CRASH: "crashes",
    Status.CHECKS_FAILED: "checks_failed",
}


def open_experiment(c: Connection, session_id: int, parent: str, segment: int, at: datetime) -> Experiment:
    """Allocate the next number; the counter and the row change together, so there is never a gap."""
    opened = c.execute(
        update(TotalsTable)
        .where(TotalsTable.session_id == session_id)
        .values(opened=TotalsTable.opened + 1)
        .returning(TotalsTable.opened)
    ).scalar_one_or_none()
    if opened is None:
        raise KeyError(f"no session {session_id}")
    number = opened - 1
    c.execute(
        insert(ExperimentTable).values(
            session_id=session_id,
            number=number,
            segment=segment,
            phase=Phase.PROPOSING,
            parent=parent,
            started_at=at,
            gpu_s=0.0,
        )
    )
    return Experiment(session_id, number, segment, Phase.PROPOSING, parent, at)


def record_proposal(
    c: Connection, session_id: int, number: int, proposal: Proposal, diff: str, code_hash: str
) -> Experiment:
    """Store a proposal, or one more attempt (a repair), and charge its cost."""
    row = _locked(c, session_id, number)
    if row.attempt is not None and proposal.attempt <= row.attempt:
        if row.phase == Phase.PROPOSED and _same_proposal(c, row, proposal, code_hash):
            return rows.load_one(c, session_id, number)
        raise _out_of_order(row, f"attempt {proposal.attempt} of a proposal", f"an attempt after {row.attempt}")
    _expect(row, "a proposal", Phase.PROPOSING, Phase.PROPOSED, Phase.MEASURED)
    key = {"session_id": session_id, "number": number, "attempt": proposal.attempt}
    c.execute(insert(ProposalTable).values(**key, **_proposal_values(proposal, code_hash)))
    c.execute(insert(ProposalBodyTable).values(**key, **_body_values(proposal, diff)))
    _change(
        c,
        row,
        phase=Phase.PROPOSED,
        attempt=proposal.attempt,
        commit_sha=None,
        **({} if proposal.parent is None else {"parent": proposal.parent}),
    )
    _count(
        c,
        session_id,
        usd=proposal.cost.usd or 0.0,
        tokens_in=proposal.cost.tokens_in,
        tokens_out=proposal.cost.tokens_out,
    )
    return rows.load_one(c, session_id, number)


def record_commit(c: Connection, session_id: int, number: int, commit: str) -> Experiment:
    """The proposal is in git as ``commit``."""
    row = _locked(c, session_id, number)
    if row.commit_sha != commit or row.phase == Phase.PROPOSED:
        _expect(row, f"commit {commit[:10]}", Phase.PROPOSED)
        _change(c, row, phase=Phase.COMMITTED, commit_sha=commit)
    return rows.load_one(c, session_id, number)


def open_run(c: Connection, session_id: int, number: int, seed: int, at: datetime) -> Run:
    """Announce a run."""
    row = _locked(c, session_id, number)
    _expect(row, "a run", Phase.COMMITTED)
    index = c.execute(
        select(func.count()).where(RunTable.session_id == session_id, RunTable.number == number)
    ).scalar_one()
    run_id = c.execute(
        insert(RunTable)
        .values(
            session_id=session_id,
            number=number,
            run_index=index,
            seed=seed,
            started_at=at,
            label=Label.NONE,
            duration_s=0.0,
            tier="",
            host="",
            device="cpu",
            detail="",
        )
        .returning(RunTable.id)
    ).scalar_one()
    _change(c, row, phase=Phase.RUNNING)
    return Run(run_id, number, index, seed, at)


def close_run(
    c: Connection, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, last: bool
) -> Experiment:
    """Store what a run gave; one that does not count (interrupted, host lost, disk full) is never the last."""
    run = c.execute(
        select(RunTable.session_id, RunTable.number, RunTable.finished_at, RunTable.label, RunTable.value).where(
            RunTable.id == run_id
        )
    ).one_or_none()
    if run is None:
        raise KeyError(f"no run {run_id}")
    row = _locked(c, run.session_id, run.number)
    if run.finished_at is not None:
        if (run.label, run.value) == (measurement.label, codec.finite(measurement.value)):
            return rows.load_one(c, run.session_id, run.number)
        raise StoreError(
            f"run {run_id} of experiment {run.number} has ended already, with {_outcome(run.label, run.value)}, "
            f"not {_outcome(measurement.label, measurement.value)}"
        )
    _expect(row, "the result of a run", Phase.RUNNING)
    c.execute(update(RunTable).where(RunTable.id == run_id).values(finished_at=at, **_run_values(measurement, result)))
    gpu_s = 0.0 if result is None or result.device.lower().startswith("cpu") else result.duration_s
    counts = RULES[measurement.label].status is not None
    _change(
        c,
        row,
        phase=Phase.MEASURED if last and counts else Phase.COMMITTED,
        **({"gpu_s": ExperimentTable.gpu_s + gpu_s} if gpu_s else {}),
    )
    if gpu_s:
        _count(c, run.session_id, gpu_s=gpu_s)
    return rows.load_one(c, run.session_id, run.number)


def record_decision(
    c: Connection, session_id: int, number: int, decision: Decision, asi: ASI, at: datetime, incumbent: str | None
) -> Experiment:
    """Store the decision. A new incumbent is the experiment's commit too: the tested tree with its result."""
    row = _locked(c, session_id, number)
    if row.phase == Phase.DECIDED:
        if (row.status, row.label, row.value) == (decision.status, decision.label, codec.finite(decision.value)):
            return rows.load_one(c, session_id, number)
        raise StoreError(
            f"experiment {number} is decided already: {row.status} {_outcome(row.label, row.value)}, "
            f"not {decision.status} {_outcome(decision.label, decision.value)}"
        )
    if RULES[decision.label].status is None:
        raise StoreError(f"experiment {number}: the label {decision.label} leaves it open, it cannot be decided by it")
    _expect(row, "a decision", Phase.PROPOSING, Phase.PROPOSED, Phase.COMMITTED, Phase.MEASURED)
    _change(
        c,
        row,
        phase=Phase.DECIDED,
        finished_at=at,
        **_decision_values(decision),
        **({} if incumbent is None else {"commit_sha": incumbent}),
    )
    if asi.as_dict():
        c.execute(insert(AsiTable).values(session_id=session_id, number=number, **_asi_values(asi)))
    _reward(c, row, decision)
    aborted = int(decision.label is Label.ABORTED_EARLY)
    _count(c, session_id, experiments=1, aborted=aborted, **{_COUNTERS[decision.status]: 1})
    if incumbent is not None:
        c.execute(
            update(SessionTable)
            .where(SessionTable.id == session_id)
            .values(incumbent=incumbent, incumbent_experiment=number)
        )
    return rows.load_one(c, session_id, number)


# ---------------------------------------------------------------------- values of rows
def _proposal_values(p: Proposal, code_hash: str) -> dict[str, Any]:
    g = p.generation
    return {
        "policy": p.policy,
        "role": p.role,
        "adapter": p.adapter,
        "parent": p.parent,
        "code_hash": code_hash,
        "expected_delta": codec.finite(p.expected_delta),
        "usd": codec.finite(p.cost.usd),
        "tokens_in": p.cost.tokens_in,
        "tokens_out": p.cost.tokens_out,
        "seconds": p.cost.seconds,
        "state_id": p.state_id,
        "round_id": p.round_id,
        "censored": False,
        "model_hash": g.model_hash,
        "tokenizer_hash": g.tokenizer_hash,
        "template_hash": g.template_hash,
        "generation_adapter": g.adapter,
        "sampling": codec.or_null(g.sampling),
        "changes": codec.or_null(p.changes),
        "asi": rows.asi_column(p.asi),
        "hypothesis": p.hypothesis,
        "description": p.description,
    }


def _body_values(p: Proposal, diff: str) -> dict[str, bytes | None]:
    g = p.generation
    return {
        "diff": codec.pack_text(diff),
        "files": codec.pack_json(p.files),
        "messages": codec.pack_json(g.messages) if g.messages else None,
        "completion": codec.pack_text(g.completion) if g.completion else None,
        "token_ids": None if g.token_ids is None else codec.pack_numbers(g.token_ids, "q"),
        "logprobs": None if g.logprobs is None else codec.pack_numbers(g.logprobs, "d"),
    }


def _run_values(m: Measurement, result: RunResult | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "label": m.label,
        "value": codec.finite(m.value),
        "metrics": codec.or_null(m.metrics),
        "detail": m.detail,
        "curve": codec.pack_curve(m.curve),
    }
    if result is not None:
        # The exit code of the stage that went wrong, else of the last one.
        told = next((s for s in result.stages if s.outcome != "ok"), result.stages[-1] if result.stages else None)
        values |= {
            "duration_s": result.duration_s,
            "exit_code": told.exit_code if told else None,
            "tier": result.tier,
            "host": result.host,
            "device": result.device,
            "stages": [asdict(s) for s in result.stages] or None,
        }
    return values


def _decision_values(d: Decision) -> dict[str, Any]:
    return {
        "status": d.status,
        "label": d.label,
        "value": codec.finite(d.value),
        "delta": codec.finite(d.delta),
        "metrics": codec.or_null(d.metrics),
        "confidence": codec.finite(d.confidence),
        "sigma": codec.finite(d.sigma),
        "reward": codec.finite(d.reward),
        "reason": d.reason,
    }


def _asi_values(asi: ASI) -> dict[str, Any]:
    return {
        "hypothesis": asi.hypothesis,
        "arch_change": asi.arch_change,
        "result": asi.result,
        "next_action_hint": asi.next_action_hint,
        "extra": codec.or_null(asi.extra),
    }


# ---------------------------------------------------------------------- statements that several steps need
def _locked(c: Connection, session_id: int, number: int) -> Row[*tuple[Any, ...]]:
    """Where the experiment stands; nobody else can change it before the transaction ends."""
    e = ExperimentTable
    row = c.execute(
        select(e.session_id, e.number, e.phase, e.attempt, e.commit_sha, e.status, e.label, e.value)
        .where(e.session_id == session_id, e.number == number)
        .with_for_update()
    ).one_or_none()
    if row is None:
        raise KeyError(f"session {session_id} has no experiment {number}")
    return row


def _same_proposal(c: Connection, row: Row[*tuple[Any, ...]], proposal: Proposal, code_hash: str) -> bool:
    p = ProposalTable
    stored = c.execute(
        select(p.code_hash, p.hypothesis, p.policy).where(
            p.session_id == row.session_id, p.number == row.number, p.attempt == proposal.attempt
        )
    ).one_or_none()
    told = (code_hash, codec.text(proposal.hypothesis), codec.text(proposal.policy))
    return stored is not None and tuple(stored) == told


def _change(c: Connection, row: Row[*tuple[Any, ...]], **values: Any) -> None:
    e = ExperimentTable
    c.execute(update(e).where(e.session_id == row.session_id, e.number == row.number).values(**values))


def _count(c: Connection, session_id: int, **more: float) -> None:
    counters = _table(TotalsTable).columns
    added = {name: counters[name] + value for name, value in more.items() if value}
    if added:
        c.execute(update(TotalsTable).where(TotalsTable.session_id == session_id).values(**added))


def _reward(c: Connection, row: Row[*tuple[Any, ...]], decision: Decision) -> None:
    """The learner finds the reward with the attempt that earned it; an aborted run's rests on a forecast."""
    censored = decision.label is Label.ABORTED_EARLY
    if row.attempt is None or (decision.reward is None and not censored):
        return
    p = ProposalTable
    c.execute(
        update(p)
        .where(p.session_id == row.session_id, p.number == row.number, p.attempt == row.attempt)
        .values(reward=codec.finite(decision.reward), censored=censored)
    )


def _table(table: type[DeclarativeBase]) -> Table:
    found = table.__table__
    assert isinstance(found, Table)
    return found


def _expect(row: Row[*tuple[Any, ...]], step: str, *phases: Phase) -> None:
    if row.phase not in phases:
        raise _out_of_order(row, step, " or ".join(phases))


def _out_of_order(row: Row[*tuple[Any, ...]], step: str, expected: str) -> StoreError:
    return StoreError(f"experiment {row.number} is in phase {row.phase}; for {step}, {expected} was expected")


def _outcome(label: str, value: float | None) -> str:
    return f"({label or 'no label'}, value {value})"

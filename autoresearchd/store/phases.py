"""The steps of one experiment as the journal takes them, each inside a transaction that the repository holds.

An experiment goes ``proposing → proposed → committed → running → measured → decided``; ``running`` goes back to
``committed`` while more runs follow, and a repair takes it from ``measured`` back to ``proposed``. A step out of order
raises StoreError. The same step with the same data may be repeated: recovery does not know whether the daemon died
before or after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Float, Integer, Row, bindparam, func, insert, select, update

from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Cost, Proposal
from autoresearchd.errors import StoreError
from autoresearchd.store import codec, rows, sums
from autoresearchd.store.columns import core_table
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


# ---------------------------------------------------------------------- statements
# Made once, like those of ``rows``: building a statement takes longer than running it. Values and keys come with each
# execution; the keys have names of their own, since the names of columns stand for the values that an update sets.
_E, _P, _B, _A, _R, _S, _T = map(
    core_table, (ExperimentTable, ProposalTable, ProposalBodyTable, AsiTable, RunTable, SessionTable, TotalsTable)
)
_OF_SESSION, _OF_NUMBER, _OF_ATTEMPT, _OF_RUN = (
    bindparam(name, type_=Integer) for name in ("of_session", "of_number", "of_attempt", "of_run")
)
_ONE_EXPERIMENT = (_E.c.session_id == _OF_SESSION) & (_E.c.number == _OF_NUMBER)
_ONE_PROPOSAL = (_P.c.session_id == _OF_SESSION) & (_P.c.number == _OF_NUMBER) & (_P.c.attempt == _OF_ATTEMPT)

_INSERT_EXPERIMENT, _INSERT_PROPOSAL, _INSERT_BODY, _INSERT_ASI = map(insert, (_E, _P, _B, _A))
_INSERT_RUN = insert(_R).returning(_R.c.id)
_CHANGE_EXPERIMENT = update(_E).where(_ONE_EXPERIMENT)
_CHANGE_PROPOSAL = update(_P).where(_ONE_PROPOSAL)
_CHANGE_RUN = update(_R).where(_R.c.id == _OF_RUN)
_CHANGE_SESSION = update(_S).where(_S.c.id == _OF_SESSION)
_ADD_GPU_S = update(_E).where(_ONE_EXPERIMENT).values(gpu_s=_E.c.gpu_s + bindparam("more", type_=Float))
_TAKE_NUMBER = update(_T).where(_T.c.session_id == _OF_SESSION).values(opened=_T.c.opened + 1).returning(_T.c.opened)
_COUNTED = [column for column in _T.c if column.name not in ("session_id", "opened")]
_COUNT = (
    update(_T)
    .where(_T.c.session_id == _OF_SESSION)
    .values({column: column + bindparam(f"more_{column.name}", type_=column.type) for column in _COUNTED})
)
_NOTHING_MORE = {f"more_{column.name}": 0 for column in _COUNTED}
_LOCK = (
    select(
        *(_E.c[name] for name in ("session_id", "number", "phase", "attempt", "commit_sha", "status", "label", "value"))
    )
    .where(_ONE_EXPERIMENT)
    .with_for_update()
)
_RUN = select(_R.c.session_id, _R.c.number, _R.c.finished_at, _R.c.label, _R.c.value).where(_R.c.id == _OF_RUN)
_COUNT_RUNS = select(func.count()).where(_R.c.session_id == _OF_SESSION, _R.c.number == _OF_NUMBER)
_LAST_KEPT = (
    select(_E.c.number, _E.c.commit_sha)
    .where(_E.c.session_id == _OF_SESSION, _E.c.status == Status.KEEP, _E.c.commit_sha.is_not(None))
    .order_by(_E.c.number.desc())
    .limit(1)
)
_STORED_PROPOSAL = select(_P.c.code_hash, _P.c.hypothesis, _P.c.policy).where(_ONE_PROPOSAL)


# ---------------------------------------------------------------------- steps


def open_experiment(c: Connection, session_id: int, parent: str, segment: int, at: datetime) -> Experiment:
    """Allocate the next number; the counter and the row change together, so there is never a gap."""
    opened = c.execute(_TAKE_NUMBER, {"of_session": session_id}).scalar_one_or_none()
    if opened is None:
        raise KeyError(f"no session {session_id}")
    number = opened - 1
    c.execute(
        _INSERT_EXPERIMENT,
        {
            "session_id": session_id,
            "number": number,
            "segment": segment,
            "phase": Phase.PROPOSING,
            "parent": parent,
            "started_at": at,
            "gpu_s": 0.0,
        },
    )
    return Experiment(session_id, number, segment, Phase.PROPOSING, parent, at)


def record_proposal(
    c: Connection, session_id: int, number: int, proposal: Proposal, diff: str, code_hash: str
) -> Experiment:
    """Store a proposal, or one more attempt (a repair), and charge its cost where its answers have not been charged."""
    row = locked(c, session_id, number)
    if row.attempt is not None and proposal.attempt <= row.attempt:
        again = proposal.attempt == row.attempt and row.phase == Phase.PROPOSED
        if again and _same_proposal(c, row, proposal, code_hash):
            return rows.load_one(c, session_id, number)
        raise _out_of_order(row, f"attempt {proposal.attempt} of a proposal", f"an attempt after {row.attempt}")
    _expect(row, "a proposal", Phase.PROPOSING, Phase.PROPOSED, Phase.MEASURED)
    key = {"session_id": session_id, "number": number, "attempt": proposal.attempt}
    c.execute(_INSERT_PROPOSAL, key | proposal_values(proposal, code_hash))
    c.execute(_INSERT_BODY, key | body_values(proposal, diff))
    _change(
        c,
        row,
        phase=Phase.PROPOSED,
        attempt=proposal.attempt,
        commit_sha=None,
        **({} if proposal.parent is None else {"parent": proposal.parent}),
    )
    if not proposal.charged:
        charge(c, session_id, proposal.cost)
    return rows.load_one(c, session_id, number)


def record_commit(c: Connection, session_id: int, number: int, commit: str) -> Experiment:
    """The proposal is in git as ``commit``."""
    row = locked(c, session_id, number)
    if row.commit_sha != commit or row.phase == Phase.PROPOSED:
        _expect(row, f"commit {commit[:10]}", Phase.PROPOSED)
        _change(c, row, phase=Phase.COMMITTED, commit_sha=commit)
    return rows.load_one(c, session_id, number)


def open_run(c: Connection, session_id: int, number: int, seed: int, at: datetime, of: int | None = None) -> Run:
    """Announce a run; ``of``: of the program of another experiment."""
    row = locked(c, session_id, number)
    _expect(row, "a run", Phase.COMMITTED)
    index = c.execute(_COUNT_RUNS, {"of_session": session_id, "of_number": number}).scalar_one()
    run_id = c.execute(
        _INSERT_RUN,
        {
            "session_id": session_id,
            "number": number,
            "run_index": index,
            "seed": seed,
            "program": of,
            "attempt": row.attempt or 0,
            "started_at": at,
            "label": Label.NONE,
            "duration_s": 0.0,
            "tier": "",
            "host": "",
            "device": "cpu",
            "detail": "",
        },
    ).scalar_one()
    _change(c, row, phase=Phase.RUNNING)
    return Run(run_id, number, index, seed, at, of=of, attempt=row.attempt or 0)


def close_run(
    c: Connection, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, last: bool
) -> Experiment:
    """Store what a run gave; one that does not count (interrupted, host lost, disk full) is never the last."""
    run = c.execute(_RUN, {"of_run": run_id}).one_or_none()
    if run is None:
        raise KeyError(f"no run {run_id}")
    row = locked(c, run.session_id, run.number)
    if run.finished_at is not None:
        if (run.label, run.value) == (measurement.label, codec.finite(measurement.value)):
            return rows.load_one(c, run.session_id, run.number)
        raise StoreError(
            f"run {run_id} of experiment {run.number} has ended already, with {_outcome(run.label, run.value)}, "
            f"not {_outcome(measurement.label, measurement.value)}"
        )
    _expect(row, "the result of a run", Phase.RUNNING)
    c.execute(_CHANGE_RUN, {"of_run": run_id, "finished_at": at, **run_values(measurement, result)})
    gpu_s = 0.0 if result is None or result.device.lower().startswith("cpu") else result.duration_s
    counts = RULES[measurement.label].status is not None
    _change(c, row, phase=Phase.MEASURED if last and counts else Phase.COMMITTED)
    if gpu_s:
        c.execute(_ADD_GPU_S, {"of_session": run.session_id, "of_number": run.number, "more": gpu_s})
        _count(c, run.session_id, gpu_s=gpu_s)
    return rows.load_one(c, run.session_id, run.number)


def record_decision(
    c: Connection,
    session_id: int,
    number: int,
    decision: Decision,
    asi: ASI,
    at: datetime,
    incumbent: str | None,
    fallen: Mapping[int, Decision],
) -> Experiment:
    """Store the decision. A new incumbent is the experiment's commit too: the tested tree with its result."""
    row = locked(c, session_id, number)
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
        **decision_values(decision),
        **({} if incumbent is None else {"commit_sha": incumbent}),
    )
    if asi.as_dict():
        c.execute(_INSERT_ASI, {"session_id": session_id, "number": number, **asi_values(asi)})
    _reward(c, row, decision)
    aborted = int(decision.label is Label.ABORTED_EARLY)
    _count(c, session_id, experiments=1, aborted=aborted, **{_COUNTERS[decision.status]: 1})
    sums.add_decision(c, session_id, number, row.attempt, decision)
    for kept, after in fallen.items():
        _lose_place(c, session_id, kept, after)
    if fallen:
        sums.recount(c, session_id)
    holder = (number, incumbent) if incumbent is not None else last_kept(c, session_id) if fallen else None
    if holder is not None:
        changed = {"incumbent": holder[1], "incumbent_experiment": holder[0]}
        c.execute(_CHANGE_SESSION, {"of_session": session_id, **changed})
    return rows.load_one(c, session_id, number)


def last_kept(c: Connection, session_id: int) -> tuple[int, str] | None:
    """Number and commit of the latest keep, which is the session's incumbent."""
    row = c.execute(_LAST_KEPT, {"of_session": session_id}).first()
    return None if row is None else (row.number, row.commit_sha)


def _lose_place(c: Connection, session_id: int, number: int, after: Decision) -> None:
    """A keep is none any more. Its commit and its runs stay: they are what happened."""
    row = locked(c, session_id, number)
    if row.status != Status.KEEP:
        raise StoreError(f"experiment {number} cannot lose its place: it is {row.status or row.phase}, not kept")
    _change(c, row, **decision_values(after))
    _reward(c, row, after)
    _count(c, session_id, keeps=-1, **{_COUNTERS[after.status]: 1})


# ---------------------------------------------------------------------- values of rows
def proposal_values(p: Proposal, code_hash: str) -> dict[str, Any]:
    """Columns of a proposal, without its key."""
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


def body_values(p: Proposal, diff: str) -> dict[str, bytes | None]:
    """Columns of the long parts of a proposal, without its key."""
    g = p.generation
    return {
        "diff": codec.pack_text(diff),
        "files": codec.pack_json(p.files),
        "messages": codec.pack_json(g.messages) if g.messages else None,
        "completion": codec.pack_text(g.completion) if g.completion else None,
        "token_ids": None if g.token_ids is None else codec.pack_numbers(g.token_ids, "q"),
        "logprobs": None if g.logprobs is None else codec.pack_numbers(g.logprobs, "d"),
    }


def run_values(m: Measurement, result: RunResult | None) -> dict[str, Any]:
    """Columns of a run that has ended, without those of its beginning."""
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


def decision_values(d: Decision) -> dict[str, Any]:
    """Columns of an experiment that its decision sets."""
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


def asi_values(asi: ASI) -> dict[str, Any]:
    """Columns of side information, without its key."""
    return {
        "hypothesis": asi.hypothesis,
        "arch_change": asi.arch_change,
        "result": asi.result,
        "next_action_hint": asi.next_action_hint,
        "extra": codec.or_null(asi.extra),
    }


# ---------------------------------------------------------------------- parts of steps
def locked(c: Connection, session_id: int, number: int) -> Row[*tuple[Any, ...]]:
    """Where the experiment stands; nobody else can change it before the transaction ends."""
    row = c.execute(_LOCK, {"of_session": session_id, "of_number": number}).one_or_none()
    if row is None:
        raise KeyError(f"session {session_id} has no experiment {number}")
    return row


def _same_proposal(c: Connection, row: Row[*tuple[Any, ...]], proposal: Proposal, code_hash: str) -> bool:
    key = {"of_session": row.session_id, "of_number": row.number, "of_attempt": proposal.attempt}
    stored = c.execute(_STORED_PROPOSAL, key).one_or_none()
    told = (code_hash, codec.text(proposal.hypothesis), codec.text(proposal.policy))
    return stored is not None and tuple(stored) == told


def _change(c: Connection, row: Row[*tuple[Any, ...]], **values: Any) -> None:
    c.execute(_CHANGE_EXPERIMENT, {"of_session": row.session_id, "of_number": row.number, **values})


def _count(c: Connection, session_id: int, **more: float) -> None:
    if any(more.values()):
        added = {f"more_{name}": value for name, value in more.items()}
        c.execute(_COUNT, {"of_session": session_id, **_NOTHING_MORE, **added})


def charge(c: Connection, session_id: int, cost: Cost) -> None:
    """Add a cost to the sums of the session; an unknown price adds nothing to them."""
    usd = codec.finite(cost.usd) or 0.0
    _count(c, session_id, usd=usd, tokens_in=cost.tokens_in, tokens_out=cost.tokens_out)


def _reward(c: Connection, row: Row[*tuple[Any, ...]], decision: Decision) -> None:
    """The learner finds the reward with the attempt that earned it; an aborted run's rests on a forecast."""
    censored = decision.label is Label.ABORTED_EARLY
    if row.attempt is None or (decision.reward is None and not censored):
        return
    key = {"of_session": row.session_id, "of_number": row.number, "of_attempt": row.attempt}
    parts = {
        "reward": codec.finite(decision.reward),
        "reward_parts": codec.or_null(decision.reward_parts),
        "reward_formula": decision.reward_formula,
    }
    c.execute(_CHANGE_PROPOSAL, {**key, **parts, "censored": censored})


def _expect(row: Row[*tuple[Any, ...]], step: str, *phases: Phase) -> None:
    if row.phase not in phases:
        raise _out_of_order(row, step, " or ".join(phases))


def _out_of_order(row: Row[*tuple[Any, ...]], step: str, expected: str) -> StoreError:
    return StoreError(f"experiment {row.number} is in phase {row.phase}; for {step}, {expected} was expected")


def _outcome(label: str, value: float | None) -> str:
    return f"({label or 'no label'}, value {value})"

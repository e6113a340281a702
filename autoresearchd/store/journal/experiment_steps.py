"""The steps of one experiment as the journal takes them, each one transaction.

An experiment goes ``proposing → proposed → committed → running → measured → decided``; ``running`` goes back to
``committed`` while more runs follow, and a repair takes it from ``measured`` back to ``proposed``. A step out of order
raises StoreError. The same step with the same data may be repeated: recovery does not know whether the daemon died
before or after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, update

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Answer, Cost, Proposal
from autoresearchd.store.journal import records
from autoresearchd.store.journal.records import AnyRow, load_experiment
from autoresearchd.store.journal.session_records import change_session
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

_COUNTERS = {
    Status.KEEP: "keeps",
    Status.DISCARD: "discards",
    Status.CRASH: "crashes",
    Status.CHECKS_FAILED: "checks_failed",
}
e, p, r, n, y = t.experiments, t.proposals, t.runs, t.answers, t.tallies
_STANDING = ("session_id", "number", "phase", "attempt", "commit_sha", "status", "label", "value")


class StepRecords:
    """The part of the store that writes experiments down, and what models answered for them."""

    _db: Database

    def open_experiment(self, session_id: int, *, parent: str, segment: int, at: datetime) -> Experiment:
        """Allocate the next number; the counter and the row change together, so there is never a gap."""
        opened = t.totals.c.opened
        take = update(t.totals).where(t.totals.c.session_id == session_id).values(opened=opened + 1).returning(opened)
        with self._db.write_lazily() as c:
            (count,) = records.require(c.execute(take).one_or_none(), f"no session {session_id}")
            values = {"session_id": session_id, "number": count - 1, "segment": segment, "phase": Phase.PROPOSING}
            c.execute(insert(e).values(**values, parent=parent, started_at=at, gpu_s=0.0))
        return Experiment(session_id, count - 1, segment, Phase.PROPOSING, parent, at)

    def record_proposal(
        self, session_id: int, number: int, proposal: Proposal, *, diff: str, code_hash: str
    ) -> Experiment:
        """Store a proposal, or one more attempt (a repair); its cost is charged where its answers have not been."""
        with self._db.write() as c:
            row = _locked(c, session_id, number)
            if row.attempt is not None and proposal.attempt <= row.attempt:
                again = proposal.attempt == row.attempt and row.phase == Phase.PROPOSED
                if again and _same_proposal(c, row, proposal, code_hash):
                    return load_experiment(c, session_id, number)
                raise _out_of_order(row, f"attempt {proposal.attempt} of a proposal", f"an attempt after {row.attempt}")
            _expect(row, "a proposal", Phase.PROPOSING, Phase.PROPOSED, Phase.MEASURED)
            key = {"session_id": session_id, "number": number, "attempt": proposal.attempt}
            c.execute(insert(p).values(**key, **records.proposal_values(proposal, code_hash)))
            c.execute(insert(t.proposal_bodies).values(**key, **records.body_values(proposal, diff)))
            parent = {} if proposal.parent is None else {"parent": proposal.parent}
            change(c, session_id, number, phase=Phase.PROPOSED, attempt=proposal.attempt, commit_sha=None, **parent)
            if not proposal.charged:
                _charge(c, session_id, proposal.cost)
            return load_experiment(c, session_id, number)

    def record_commit(self, session_id: int, number: int, commit: str) -> Experiment:
        with self._db.write_lazily() as c:
            row = _locked(c, session_id, number)
            if row.commit_sha != commit or row.phase == Phase.PROPOSED:
                _expect(row, f"commit {commit[:10]}", Phase.PROPOSED)
                change(c, session_id, number, phase=Phase.COMMITTED, commit_sha=commit)
            return load_experiment(c, session_id, number)

    def open_run(self, session_id: int, number: int, seed: int, at: datetime, *, of: int | None = None) -> Run:
        with self._db.write_lazily() as c:
            row = _locked(c, session_id, number)
            _expect(row, "a run", Phase.COMMITTED)
            of_it = select(func.count()).where(r.c.session_id == session_id, r.c.number == number)
            index, attempt = c.execute(of_it).scalar_one(), row.attempt or 0
            values = {"session_id": session_id, "number": number, "run_index": index, "seed": seed, "program": of}
            empty = {"label": Label.NONE, "duration_s": 0.0, "tier": "", "host": "", "device": "cpu", "detail": ""}
            new = insert(r).values(**values, attempt=attempt, started_at=at, **empty)
            run_id = c.execute(new.returning(r.c.id)).scalar_one()
            change(c, session_id, number, phase=Phase.RUNNING)
        return Run(run_id, number, index, seed, at, of=of, attempt=attempt)

    def close_run(
        self, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, *, last: bool
    ) -> Experiment:
        """Store what a run gave; one that does not count (interrupted, host lost, disk full) is never the last."""
        with self._db.write() as c:
            stands = select(r.c.session_id, r.c.number, r.c.finished_at, r.c.label, r.c.value).where(r.c.id == run_id)
            run = records.require(c.execute(stands).one_or_none(), f"no run {run_id}")
            key = (run.session_id, run.number)
            row = _locked(c, *key)
            if run.finished_at is not None:
                if (run.label, run.value) == (measurement.label, codec.finite(measurement.value)):
                    return load_experiment(c, *key)
                raise StoreError(
                    f"run {run_id} of experiment {run.number} has ended already, with "
                    f"{_outcome(run.label, run.value)}, not {_outcome(measurement.label, measurement.value)}"
                )
            _expect(row, "the result of a run", Phase.RUNNING)
            values = records.run_values(measurement, result)
            c.execute(update(r).where(r.c.id == run_id).values(finished_at=at, **values))
            gpu_s = 0.0 if result is None or result.device.lower().startswith("cpu") else result.duration_s
            ended = last and RULES[measurement.label].status is not None
            more: dict[str, Any] = {"gpu_s": e.c.gpu_s + gpu_s} if gpu_s else {}
            change(c, *key, phase=Phase.MEASURED if ended else Phase.COMMITTED, **more)
            _count(c, run.session_id, gpu_s=gpu_s)
            return load_experiment(c, *key)

    def record_decision(
        self,
        session_id: int,
        number: int,
        decision: Decision,
        asi: ASI,
        at: datetime,
        *,
        incumbent: str | None,
        fallen: Mapping[int, Decision] | None = None,
    ) -> Experiment:
        """Store the decision. A new incumbent is the experiment's commit too: the tested tree with its result."""
        with self._db.write() as c:
            row = _locked(c, session_id, number)
            if row.phase == Phase.DECIDED:
                same = (decision.status, decision.label, codec.finite(decision.value))
                if (row.status, row.label, row.value) == same:
                    return load_experiment(c, session_id, number)
                raise StoreError(
                    f"experiment {number} is decided already: {row.status} {_outcome(row.label, row.value)}, "
                    f"not {decision.status} {_outcome(decision.label, decision.value)}"
                )
            if RULES[decision.label].status is None:
                raise StoreError(f"experiment {number}: the label {decision.label} leaves it open and decides nothing")
            _expect(row, "a decision", Phase.PROPOSING, Phase.PROPOSED, Phase.COMMITTED, Phase.MEASURED)
            values = records.decision_values(decision) | ({} if incumbent is None else {"commit_sha": incumbent})
            change(c, session_id, number, phase=Phase.DECIDED, finished_at=at, **values)
            if asi.as_dict():
                c.execute(insert(t.asi).values(session_id=session_id, number=number, **records.asi_values(asi)))
            _reward(c, row, decision)
            aborted = int(decision.label is Label.ABORTED_EARLY)
            _count(c, session_id, experiments=1, aborted=aborted, **{_COUNTERS[decision.status]: 1})
            _tally(c, row, decision)
            for kept, after in (fallen or {}).items():
                _lose_place(c, session_id, kept, after)
            if fallen:
                recount(c, session_id)
            holder = (number, incumbent) if incumbent is not None else last_kept(c, session_id) if fallen else None
            if holder is not None:
                change_session(c, session_id, incumbent=holder[1], incumbent_experiment=holder[0])
            return load_experiment(c, session_id, number)

    def record_overhead(self, session_id: int, number: int, overhead_ms: float) -> None:
        with self._db.write_lazily() as c:
            change(c, session_id, number, overhead_ms=overhead_ms)

    # -- answers
    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime) -> None:
        """Store an answer, in whatever phase the experiment is, and charge its cost."""
        with self._db.write() as c:
            _locked(c, session_id, number)
            b = t.answer_bodies.c
            said = select(b.answer_index, b.shared, b.messages).where(b.session_id == session_id, b.number == number)
            stored = c.execute(said.order_by(b.answer_index)).all()
            body = records.generation_values(answer.generation)
            messages = codec.jsonable(t.redacted(answer.generation.messages))
            before = [[], *records.conversations((i, same, new or ()) for i, same, new in stored)][-1]
            shared = _shared(before, messages)
            index = stored[-1].answer_index + 1 if stored else 0
            key = {"session_id": session_id, "number": number, "answer_index": index}
            c.execute(insert(n).values(**key, **records.answer_values(answer, at)))
            body["messages"] = messages[shared:] or None
            c.execute(insert(t.answer_bodies).values(**key, shared=shared, **body))
            _charge(c, session_id, answer.cost)

    def answers(self, session_id: int, number: int) -> Sequence[Answer]:
        with self._db.read() as c:
            rows = c.execute(of_experiment(session_id, number)).all()
            if not rows:
                _locked(c, session_id, number)
            return [answer for answer in records.answers_of(rows) if answer is not None]

    def spent_since(self, at: datetime) -> float:
        usd: float | None = self._db.row(select(func.sum(n.c.usd)).where(n.c.at >= at))[0]
        return usd or 0.0

    def charges_since(self, at: datetime) -> Sequence[tuple[datetime, float]]:
        charges = select(n.c.at, n.c.usd).where(n.c.at >= at, n.c.usd > 0).order_by(n.c.at)
        return [(when, usd) for when, usd in self._db.rows(charges)]


def of_experiment(session_id: int, number: int) -> Any:
    """The answers for an experiment, with their long parts, oldest first."""
    wanted = (n.c.session_id == session_id, n.c.number == number)
    return records.ANSWERS.where(*wanted).order_by(n.c.answer_index)


def change(c: Connection, session_id: int, number: int, **values: Any) -> None:
    """Change columns of an experiment. KeyError when there is none."""
    if c.execute(update(e).where(e.c.session_id == session_id, e.c.number == number).values(**values)).rowcount == 0:
        raise KeyError(f"session {session_id} has no experiment {number}")


def last_kept(c: Connection, session_id: int) -> tuple[int, str] | None:
    """Number and commit of the latest keep, which is the session's incumbent."""
    kept = (e.c.session_id == session_id, e.c.status == Status.KEEP, e.c.commit_sha.is_not(None))
    row = c.execute(select(e.c.number, e.c.commit_sha).where(*kept).order_by(e.c.number.desc()).limit(1)).first()
    return None if row is None else (row.number, row.commit_sha)


def recount(c: Connection, session_id: int) -> None:
    """Make the tallies of a session anew from its rows."""
    role, kept = func.coalesce(p.c.role, ""), func.sum(case((e.c.status == Status.KEEP, 1), else_=0))
    reward = func.coalesce(func.sum(e.c.reward), 0.0)
    rows = (
        select(e.c.session_id, role, e.c.label, func.count(), kept, reward)
        .outerjoin_from(e, p, records.CURRENT)
        .where(e.c.session_id == session_id, e.c.status.is_not(None), e.c.label.is_not(None))
        .group_by(e.c.session_id, role, e.c.label)
    )
    c.execute(delete(y).where(y.c.session_id == session_id))
    c.execute(insert(y).from_select(["session_id", "role", "label", "decided", "keeps", "reward"], rows))


# ---------------------------------------------------------------------- parts of steps
def _locked(c: Connection, session_id: int, number: int) -> AnyRow:
    """Where the experiment stands; nobody else can change it before the transaction ends."""
    of_it = select(*(e.c[name] for name in _STANDING)).where(e.c.session_id == session_id, e.c.number == number)
    row = c.execute(of_it.with_for_update()).one_or_none()
    return records.require(row, f"session {session_id} has no experiment {number}")


def _same_proposal(c: Connection, row: AnyRow, proposal: Proposal, code_hash: str) -> bool:
    of_it = (p.c.session_id == row.session_id, p.c.number == row.number, p.c.attempt == proposal.attempt)
    stored = c.execute(select(p.c.code_hash, p.c.hypothesis, p.c.policy).where(*of_it)).one_or_none()
    given = (code_hash, t.clean(proposal.hypothesis), t.clean(proposal.policy))
    return stored is not None and tuple(stored) == given


def _lose_place(c: Connection, session_id: int, number: int, after: Decision) -> None:
    """A keep is none any more. Its commit and its runs stay: they are what happened."""
    row = _locked(c, session_id, number)
    if row.status != Status.KEEP:
        raise StoreError(f"experiment {number} cannot lose its place: it is {row.status or row.phase}, not kept")
    change(c, session_id, number, **records.decision_values(after))
    _reward(c, row, after)
    _count(c, session_id, keeps=-1, **{_COUNTERS[after.status]: 1})


def _count(c: Connection, session_id: int, **more: float) -> None:
    added = {name: t.totals.c[name] + value for name, value in more.items() if value}
    if added:
        c.execute(update(t.totals).where(t.totals.c.session_id == session_id).values(**added))


def _charge(c: Connection, session_id: int, cost: Cost) -> None:
    """Add a cost to the sums of the session; an unknown price adds nothing to them."""
    usd = codec.finite(cost.usd) or 0.0
    _count(c, session_id, usd=usd, tokens_in=cost.tokens_in, tokens_out=cost.tokens_out)


def _tally(c: Connection, row: AnyRow, decision: Decision) -> None:
    """Count a decision by role and label; the session's totals are held, so nobody else begins the same tally."""
    of_it = (p.c.session_id == row.session_id, p.c.number == row.number, p.c.attempt == row.attempt)
    role = c.execute(select(p.c.role).where(*of_it)).scalar() or ""
    reward, kept = codec.finite(decision.reward) or 0.0, int(decision.status is Status.KEEP)
    same = (y.c.session_id == row.session_id, y.c.role == role, y.c.label == decision.label)
    more = {"decided": y.c.decided + 1, "keeps": y.c.keeps + kept, "reward": y.c.reward + reward}
    if c.execute(update(y).where(*same).values(**more)).rowcount == 0:
        key = {"session_id": row.session_id, "role": role, "label": decision.label}
        c.execute(insert(y).values(**key, decided=1, keeps=kept, reward=reward))


def _reward(c: Connection, row: AnyRow, decision: Decision) -> None:
    """The learner finds the reward with the attempt that earned it; an aborted run's rests on a forecast."""
    censored = decision.label is Label.ABORTED_EARLY
    if row.attempt is None or (decision.reward is None and not censored):
        return
    of_it = (p.c.session_id == row.session_id, p.c.number == row.number, p.c.attempt == row.attempt)
    parts = {name: getattr(decision, name) for name in ("reward", "reward_parts", "reward_formula")}
    c.execute(update(p).where(*of_it).values(**parts, censored=censored))


def _shared(before: Sequence[Any], now: Sequence[Any]) -> int:
    """How many messages at the beginning are the same."""
    pairs = zip(before, now, strict=False)
    return next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(before), len(now)))


def _expect(row: AnyRow, step: str, *phases: Phase) -> None:
    if row.phase not in phases:
        raise _out_of_order(row, step, " or ".join(phases))


def _out_of_order(row: AnyRow, step: str, expected: str) -> StoreError:
    return StoreError(f"experiment {row.number} is in phase {row.phase}; for {step}, {expected} was expected")


def _outcome(label: str, value: float | None) -> str:
    return f"({label or 'no label'}, value {value})"

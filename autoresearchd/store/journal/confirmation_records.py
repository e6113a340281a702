"""Confirmations in the journal: opened, run by run, and decided, each one transaction that may be repeated.

Their runs are rows like those of experiments, under the number of the tip and with a negative attempt, which keeps
them out of all that is read of an experiment's own runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, update

from autoresearchd.domain.confirmation import Confirmation, Verdict, ablates
from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Measurement, Run, RunResult
from autoresearchd.domain.labels import Outcome, Phase, Status
from autoresearchd.store.journal import records
from autoresearchd.store.journal.experiment_records import end_run, find_run, has_ended, locked
from autoresearchd.store.journal.records import AnyRow, pick
from autoresearchd.store.journal.session_records import change_session, let_chain_fall
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

_OWN = tuple(name for name in Confirmation.__dataclass_fields__ if name not in ("runs", "verdict"))
_VERDICT = tuple(Verdict.__dataclass_fields__)
k, e, r, s = t.confirmations, t.experiments, t.runs, t.sessions


class ConfirmationRecords:
    """The part of the store about confirmations."""

    _db: Database

    def open_confirmation(
        self,
        session_id: int,
        *,
        experiment: int,
        against: int,
        why: str,
        at: datetime,
        pairs: int | None = None,
        budget: float | None = None,
    ) -> Confirmation:
        """A test of an experiment against the confirmed one begins; pairs, budget: see there. StoreError: another is.

        Both must have been measured in one segment, but for ablations, of which both programs run now.
        """
        with self._db.write() as c:
            if (unfinished := c.execute(_newest_unfinished(session_id)).first()) is not None:
                raise StoreError(
                    f"confirmation {unfinished.number} of experiment {unfinished.experiment} is still open"
                )
            tip, before = locked(c, session_id, experiment), locked(c, session_id, against)
            for row in (tip, before):
                if row.phase != Phase.DECIDED or row.commit_sha is None:
                    raise StoreError(
                        f"experiment {row.number} is {row.phase} and has no program that could be compared"
                    )
            if tip.segment != before.segment and not ablates(why):
                raise StoreError(f"experiments {experiment} and {against} were measured under different conditions")
            of_session = k.c.session_id == session_id
            number = c.execute(select(func.coalesce(func.max(k.c.number) + 1, 0)).where(of_session)).scalar_one()
            newest = c.execute(select(func.max(e.c.number)).filter_by(session_id=session_id)).scalar_one()
            begun = Confirmation(
                session_id, number, before.segment, experiment, against, newest, why, at, pairs, budget
            )
            c.execute(insert(k).values(**pick(begun, _OWN)))
            return begun

    def open_confirmation_run(self, session_id: int, number: int, seed: int, at: datetime, *, of: int | None) -> Run:
        """A run of the tip (``of`` is None) or of the confirmed program is about to start. Lazily."""
        with self._db.write_lazily() as c:
            found = _load(c, session_id, number)
            if not found.open or any(run.open for run in found.runs):
                raise StoreError(
                    f"confirmation {number} {'has a run under way' if found.open else 'is decided already'}"
                )
            if of not in (None, found.against):
                raise StoreError(f"confirmation {number} is against experiment {found.against}, not {of}")
            return records.insert_run(c, session_id, found.experiment, seed, at, of=of, attempt=-1 - number)

    def close_confirmation_run(
        self, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime
    ) -> Confirmation:
        """Store what a run gave."""
        with self._db.write() as c:
            run = find_run(c, run_id)
            if run.attempt >= 0:
                raise StoreError(f"run {run_id} is one of experiment {run.number} itself, not of a confirmation")
            if not has_ended(run, measurement):
                end_run(c, run, measurement, result, at)
            return _load(c, run.session_id, -1 - run.attempt)

    def decide_confirmation(self, session_id: int, number: int, verdict: Verdict, at: datetime) -> Confirmation:
        """Store the verdict and, where the experiment's chain is open, what follows; refs are moved after.

        Confirmed: its chain up to it is, and it is the session's confirmed program. Fell: all that is not confirmed
        falls back, and the confirmed program is the tip; without a run, what was kept since ``against`` does; nothing,
        where other keeps on top of it were not tested. An experiment that is in no open chain (one that was not kept,
        or is confirmed already), or that ran beside another program or for another time, was compared only.
        """
        with self._db.write() as c:
            found = _load(c, session_id, number)
            if found.verdict is not None:
                if found.verdict.outcome is verdict.outcome:
                    return found
                raise StoreError(f"confirmation {number} is decided already: {found.verdict.outcome}")
            if any(run.open for run in found.runs):
                raise StoreError(f"confirmation {number} has a run under way and cannot be decided")
            this = (k.c.session_id == session_id, k.c.number == number)
            row = locked(c, session_id, found.experiment)
            ends = select(s.c.incumbent_experiment, s.c.confirmed_experiment).where(s.c.id == session_id)
            tip, confirmed = c.execute(ends).one()
            decided = verdict.outcome is Outcome.CONFIRMED or (verdict.outcome is Outcome.FELL and tip == row.number)
            back = not found.runs and verdict.outcome is Outcome.FELL
            tests = decided and found.budget is None and (back or found.against == confirmed)
            moves = tests and row.status == Status.KEEP and row.confirmed is None
            # By now: with several slots experiments were decided meanwhile.
            newest = (
                select(func.max(e.c.number)).filter_by(session_id=session_id, phase=Phase.DECIDED).scalar_subquery()
            )
            c.execute(
                update(k).where(*this).values(finished_at=at, moved=moves, after=newest, **pick(verdict, _VERDICT))
            )
            if moves:
                _settle(c, row, verdict.outcome, locked(c, session_id, found.against))
            return _load(c, session_id, number)

    def confirmations(self, session_id: int, segment: int | None = None) -> Sequence[Confirmation]:
        """With their runs; ``segment``: only those of it."""
        wanted = _CONFIRMATIONS.where(k.c.session_id == session_id).order_by(k.c.number)
        with self._db.read() as c:
            return load_confirmations(c, session_id, wanted if segment is None else wanted.filter_by(segment=segment))

    def open_confirmation_of(self, session_id: int) -> Confirmation | None:
        """The one that is not decided yet."""
        with self._db.read() as c:
            return next(iter(load_confirmations(c, session_id, _newest_unfinished(session_id))), None)


_CONFIRMATIONS = select(*k.c)


def load_confirmations(c: Connection, session_id: int, selection: Select[Any]) -> list[Confirmation]:
    """The confirmations of a selection of rows, with their runs, in its order."""
    rows = c.execute(selection).all()
    if not rows:
        return []
    theirs = (r.c.number.in_({row.experiment for row in rows}), r.c.attempt.in_([-1 - row.number for row in rows]))
    runs: dict[int, list[Run]] = {}
    for row in c.execute(records.RUNS.where(r.c.session_id == session_id, *theirs).order_by(r.c.number, r.c.run_index)):
        runs.setdefault(-1 - row.attempt, []).append(Run(**row._mapping))
    return [_confirmation_of(row, runs.get(row.number, ())) for row in rows]


def _confirmation_of(row: AnyRow, runs: Sequence[Run]) -> Confirmation:
    verdict = None if row.outcome is None else Verdict(**{**pick(row, _VERDICT), "reason": row.reason or ""})
    return Confirmation(**pick(row, _OWN), runs=tuple(runs), verdict=verdict)


def _load(c: Connection, session_id: int, number: int) -> Confirmation:
    this = _CONFIRMATIONS.where(k.c.session_id == session_id, k.c.number == number)
    found = load_confirmations(c, session_id, this)
    if not found:
        raise KeyError(f"session {session_id} has no confirmation {number}")
    return found[0]


def _newest_unfinished(session_id: int) -> Select[Any]:
    unfinished = _CONFIRMATIONS.where(k.c.session_id == session_id, k.c.finished_at.is_(None))
    return unfinished.order_by(k.c.number.desc()).limit(1)


def _settle(c: Connection, tip: AnyRow, outcome: Outcome, against: AnyRow) -> None:
    """What a verdict on the tip, or on a keep of its chain, makes of the chain."""
    if outcome is Outcome.CONFIRMED:
        chain = update(e).where(e.c.session_id == tip.session_id, e.c.status == Status.KEEP, e.c.confirmed.is_(None))
        c.execute(chain.where(e.c.segment == tip.segment, e.c.number <= tip.number).values(confirmed=True))
        change_session(c, tip.session_id, confirmed=tip.commit_sha, confirmed_experiment=tip.number)
    elif outcome is Outcome.FELL:
        let_chain_fall(c, tip.session_id, against)

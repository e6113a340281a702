"""Learner runs and versions of the local policy in the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.policy_versions import (
    BaseModel,
    LearnerRun,
    LearnerStatus,
    PolicyVersion,
    Rewarded,
    VersionStatus,
)  # fmt: skip
from autoresearchd.store.journal.records import CURRENT, pick, require
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

v, r, e, p = t.policy_versions, t.learner_runs, t.experiments, t.proposals
_parent = v.alias("parent")


def select_versions(*more: Any) -> Select[*tuple[Any, ...]]:
    """Versions as ``PolicyVersion`` has them, with the names of their parents and their algorithms."""
    own = t.columns(v, "id", "parent_id", "adapter_path", "adapter_hash")
    named = (v.c.adapter_path.label("folder"), v.c.adapter_hash.label("digest"), _parent.c.version.label("parent"))
    joined = select(*own, *named, func.coalesce(r.c.algo, "").label("algo"), *more)
    return joined.outerjoin_from(v, _parent, _parent.c.id == v.c.parent_id).outerjoin(r, r.c.id == v.c.learner_run_id)


class VersionRecords:
    """The part of the store about the local policy."""

    _db: Database

    # -- learner runs
    def open_learner_run(
        self, algo: str, mode: str, trajectories: int, at: datetime, config: Mapping[str, Any] | None = None
    ) -> LearnerRun:
        begins = {"status": LearnerStatus.RUNNING, "started_at": at, "steps": 0, "detail": ""}
        new = insert(r).values(algo=algo, mode=mode, trajectories=trajectories, config=config, **begins)
        with self._db.write() as c:
            return _run(c, c.execute(new.returning(r.c.id)).scalar_one())

    def record_learner_run(
        self,
        run_id: int,
        status: LearnerStatus,
        at: datetime,
        *,
        steps: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        detail: str | None = None,
    ) -> LearnerRun:
        """How a run stands now; what is None stays as it was. ``at`` is when it ended, unless it is running."""
        ended = None if status is LearnerStatus.RUNNING else at
        given = {"steps": steps, "metrics": metrics, "detail": detail}
        values = {name: value for name, value in given.items() if value is not None}
        with self._db.write() as c:
            c.execute(update(r).where(r.c.id == run_id).values(status=status, finished_at=ended, **values))
            return _run(c, run_id)

    def learner_runs(self) -> Sequence[LearnerRun]:
        return [LearnerRun(**row._mapping) for row in self._db.rows(select(r).order_by(r.c.id))]

    # -- versions
    def add_version(
        self, version: str, digest: str, base: BaseModel, at: datetime, *, parent: str | None = None,
        learner_run_id: int | None = None, metrics: Mapping[str, Any] | None = None, reason: str = "",
    ) -> PolicyVersion:  # fmt: skip
        """A version whose files are in a folder of its name. digest: over all of them; parent: trained from."""
        with self._db.write() as c:
            values = {
                "version": version,
                "adapter_path": version,
                "adapter_hash": digest,
                **pick(base, t.HASHES),
                "learner_run_id": c.execute(select(r.c.id).filter_by(id=learner_run_id)).scalar(),
                "parent_id": c.execute(select(v.c.id).filter_by(version=parent)).scalar(),
                "status": VersionStatus.CANDIDATE,
                "metrics": metrics,
                "reason": reason,
                "created_at": at,
            }
            try:
                c.execute(insert(v).values(**values))
            except IntegrityError as error:
                raise StoreError(f"a version {version!r} is there already") from error
            return _version(c, version)

    def versions(self) -> Sequence[PolicyVersion]:
        return [PolicyVersion(**row._mapping) for row in self._db.rows(select_versions().order_by(v.c.id))]

    def promoted_versions(self) -> Sequence[PolicyVersion]:
        """Those in use, at most one for each base model, promoted last first."""
        promoted = select_versions().where(v.c.status == VersionStatus.PROMOTED)
        rows = self._db.rows(promoted.order_by(v.c.promoted_at.desc(), v.c.id.desc()))
        return [PolicyVersion(**row._mapping) for row in rows]

    def promote_version(
        self, version: str, at: datetime, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        """Put a version to use, ``metrics`` laid over its own; the one for the same base model is retired."""
        with self._db.write() as c:
            found = _version(c, version)
            if found.status is VersionStatus.PROMOTED:
                return found
            same_base = v.c.model_hash.is_not_distinct_from(found.model_hash)
            in_use = (v.c.status == VersionStatus.PROMOTED) & same_base
            c.execute(update(v).where(in_use).values(status=VersionStatus.RETIRED, reason=f"{version} took its place"))
            return _decide(c, found, VersionStatus.PROMOTED, reason, metrics, promoted_at=at)

    def refuse_version(
        self, version: str, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        """Keep a candidate and do not use it. StoreError: it is or was in use, and is to be rolled back."""
        with self._db.write() as c:
            found = _version(c, version)
            if found.status in (VersionStatus.PROMOTED, VersionStatus.RETIRED):
                raise StoreError(f"version {version} is {found.status}: it is rolled back, not refused")
            return _decide(c, found, VersionStatus.REFUSED, reason, metrics)

    def roll_back_version(self, version: str, *, reason: str = "") -> PolicyVersion | None:
        """Refuse the version in use, and bring back the one before it, if any. StoreError: it is not in use."""
        with self._db.write() as c:
            found = _version(c, version)
            if found.status is not VersionStatus.PROMOTED:
                raise StoreError(f"version {version} is {found.status}, it is not in use")
            _decide(c, found, VersionStatus.REFUSED, reason)
            same_base = v.c.model_hash.is_not_distinct_from(found.model_hash)
            before = select_versions().where(v.c.status == VersionStatus.RETIRED, same_base)
            row = c.execute(before.order_by(v.c.promoted_at.desc(), v.c.id.desc()).limit(1)).one_or_none()
            if row is None:
                return None
            restored = PolicyVersion(**row._mapping)
            return _decide(c, restored, VersionStatus.PROMOTED, f"back in use: {version} was rolled back")

    def versions_at_work(self) -> frozenset[str]:
        """Those that proposed an undecided experiment: it may yet be given back to them to be repaired."""
        of_it = (p.c.session_id == e.c.session_id) & (p.c.number == e.c.number)
        adapters = select(p.c.adapter).distinct().join(e, of_it).where(e.c.status.is_(None), p.c.adapter != "")
        return frozenset(row.adapter for row in self._db.rows(adapters))

    # -- what they earn
    def rewards(self, session_id: int, after: int = -1) -> Sequence[Rewarded]:
        """What decided experiments after a number earned, in order; those without a reward are left out."""
        earned = select(e.c.number, p.c.policy, p.c.adapter, e.c.reward, e.c.started_at).join_from(e, p, CURRENT)
        wanted = earned.where(e.c.session_id == session_id, e.c.number > after, e.c.reward.is_not(None))
        return [Rewarded(*row) for row in self._db.rows(wanted.order_by(e.c.number))]


def _decide(
    c: Connection, found: PolicyVersion, status: VersionStatus, reason: str, metrics: Any = None, **more: Any
) -> PolicyVersion:
    """Change where a version stands, and say why."""
    values = {"status": status, "reason": reason, "metrics": {**found.metrics, **(metrics or {})}, **more}
    c.execute(update(v).where(v.c.version == found.version).values(**values))
    return _version(c, found.version)


def _run(c: Connection, run_id: int) -> LearnerRun:
    row = c.execute(select(r).filter_by(id=run_id)).one_or_none()
    return LearnerRun(**require(row, f"no learner run {run_id}")._mapping)


def _version(c: Connection, version: str) -> PolicyVersion:
    row = c.execute(select_versions().where(v.c.version == version)).one_or_none()
    return PolicyVersion(**require(row, f"no version {version!r}")._mapping)

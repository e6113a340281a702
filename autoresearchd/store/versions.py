"""Learner runs and versions of the local policy in the journal: the part of ``ports.Store`` that is ``ports.Shelf``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Integer, Row, Select, and_, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased

from autoresearchd.domain.version import (
    LearnerRun,
    LearnerStatus,
    NewLearnerRun,
    NewVersion,
    PolicyVersion,
    Rewarded,
    VersionStatus,
)
from autoresearchd.errors import StoreError
from autoresearchd.store import codec
from autoresearchd.store.database import Database
from autoresearchd.store.model_tables import LearnerRunTable, PolicyVersionTable
from autoresearchd.store.tables import ExperimentTable, ProposalTable, SessionTable

_V, _R, _E, _P = PolicyVersionTable, LearnerRunTable, ExperimentTable, ProposalTable
_PARENT = aliased(PolicyVersionTable)


def _versions(*conditions: Any) -> Select[*tuple[Any, ...]]:
    columns = (*_V.__table__.columns, _PARENT.version.label("parent"), _R.algo)
    joined = select(*columns).outerjoin_from(_V, _PARENT, _PARENT.id == _V.parent_id)
    return joined.outerjoin(_R, _R.id == _V.learner_run_id).where(*conditions)


# Asked before every proposal, so made once (see ``phases``).
_PROMOTED = _versions(_V.status == VersionStatus.PROMOTED).order_by(_V.promoted_at.desc(), _V.id.desc())
_REWARDS = (
    select(_E.number, _P.policy, _P.adapter, _E.reward, _E.started_at)
    .join(_P, and_(_P.session_id == _E.session_id, _P.number == _E.number, _P.attempt == _E.attempt))
    .where(
        _E.session_id == bindparam("of_session", type_=Integer),
        _E.number > bindparam("after", type_=Integer),
        _E.reward.is_not(None),
    )
    .order_by(_E.number)
)
_AT_WORK = (
    select(_P.adapter)
    .distinct()
    .join(_E, and_(_P.session_id == _E.session_id, _P.number == _E.number))
    .where(_E.status.is_(None), _P.adapter != "")
)


class SqlShelf:
    """The versions and learner runs of a database; ``SqlStore`` is one."""

    _db: Database

    # -- learner runs
    def open_learner_run(self, new: NewLearnerRun, at: datetime) -> LearnerRun:
        values = {
            "session_id": new.session_id,
            "algo": new.algo,
            "mode": new.mode,
            "status": LearnerStatus.RUNNING,
            "started_at": at,
            "trajectories": new.trajectories,
            "steps": 0,
            "config": codec.or_null(new.config),
            "detail": "",
        }
        with self._db.write() as c:
            if new.session_id is not None:
                _expect_session(c, new.session_id)
            run_id = c.execute(insert(_R).values(**values).returning(_R.id)).scalar_one()
            return _run(c, run_id)

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
        ended = None if status is LearnerStatus.RUNNING else at
        given = {"steps": steps, "metrics": None if metrics is None else dict(metrics), "detail": detail}
        values = {name: value for name, value in given.items() if value is not None}
        with self._db.write() as c:
            c.execute(update(_R).where(_R.id == run_id).values(status=status, finished_at=ended, **values))
            return _run(c, run_id)

    def learner_runs(self) -> Sequence[LearnerRun]:
        with self._db.read() as c:
            return [_run_of(row) for row in c.execute(select(*_R.__table__.columns).order_by(_R.id))]

    # -- versions
    def add_version(self, new: NewVersion, at: datetime) -> PolicyVersion:
        with self._db.write() as c:
            if new.session_id is not None:
                _expect_session(c, new.session_id)
            parent = select(_V.id).where(_V.version == new.parent)
            run = select(_R.id).where(_R.id == new.learner_run_id)
            values = {
                "session_id": new.session_id,
                "learner_run_id": c.execute(run).scalar_one_or_none(),
                "parent_id": c.execute(parent).scalar_one_or_none(),
                "version": new.version,
                "status": VersionStatus.CANDIDATE,
                "adapter_path": new.folder,
                "adapter_hash": new.digest,
                "model_hash": new.base.model_hash,
                "tokenizer_hash": new.base.tokenizer_hash,
                "template_hash": new.base.template_hash,
                "created_at": at,
                "metrics": codec.or_null(new.metrics),
                "reason": new.reason,
            }
            try:
                c.execute(insert(_V).values(**values))
            except IntegrityError as error:
                raise StoreError(f"a version {new.version!r} is there already") from error
            return _version(c, new.version)

    def versions(self) -> Sequence[PolicyVersion]:
        with self._db.read() as c:
            return [_version_of(row) for row in c.execute(_versions().order_by(_V.id))]

    def promoted_versions(self) -> Sequence[PolicyVersion]:
        with self._db.read() as c:
            return [_version_of(row) for row in c.execute(_PROMOTED)]

    def promote_version(
        self, version: str, at: datetime, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        with self._db.write() as c:
            _hold(c)
            found = _version(c, version)
            if found.status is VersionStatus.PROMOTED:
                return found
            same_base = _V.model_hash.is_not_distinct_from(found.model_hash)
            in_use = (_V.status == VersionStatus.PROMOTED) & same_base
            c.execute(update(_V).where(in_use).values(status=VersionStatus.RETIRED, reason=f"{version} took its place"))
            return _decide(c, found, VersionStatus.PROMOTED, reason, metrics, promoted_at=at)

    def refuse_version(
        self, version: str, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        with self._db.write() as c:
            _hold(c)
            found = _version(c, version)
            if found.status in (VersionStatus.PROMOTED, VersionStatus.RETIRED):
                raise StoreError(f"version {version} is {found.status}: it is rolled back, not refused")
            return _decide(c, found, VersionStatus.REFUSED, reason, metrics)

    def roll_back_version(self, version: str, *, reason: str = "") -> PolicyVersion | None:
        with self._db.write() as c:
            _hold(c)
            found = _version(c, version)
            if found.status is not VersionStatus.PROMOTED:
                raise StoreError(f"version {version} is {found.status}, it is not in use")
            _decide(c, found, VersionStatus.REFUSED, reason, None)
            same_base = _V.model_hash.is_not_distinct_from(found.model_hash)
            before = _versions(_V.status == VersionStatus.RETIRED, same_base)
            row = c.execute(before.order_by(_V.promoted_at.desc(), _V.id.desc()).limit(1)).one_or_none()
            if row is None:
                return None
            restored = _version_of(row)
            return _decide(c, restored, VersionStatus.PROMOTED, f"back in use: {version} was rolled back", None)

    def versions_at_work(self) -> frozenset[str]:
        """Those that proposed an undecided experiment: it may yet be given back to them to be mended."""
        with self._db.read() as c:
            return frozenset(c.execute(_AT_WORK).scalars())

    # -- what they earn
    def rewards(self, session_id: int, after: int = -1) -> Sequence[Rewarded]:
        with self._db.read() as c:
            found = c.execute(_REWARDS, {"of_session": session_id, "after": after}).all()
        return [
            Rewarded(n, policy, version, reward, at) for n, policy, version, reward, at in found if reward is not None
        ]


def _hold(c: Connection) -> None:
    """Keep others from deciding at the same time, where a database has several writers."""
    c.execute(select(_V.id).with_for_update()).all()


def _decide(
    c: Connection,
    found: PolicyVersion,
    status: VersionStatus,
    reason: str,
    metrics: Mapping[str, Any] | None,
    **more: Any,
) -> PolicyVersion:
    """Change where a version stands, and say why."""
    values = {"status": status, "reason": reason, **more}
    if metrics:
        values["metrics"] = {**found.metrics, **metrics}
    c.execute(update(_V).where(_V.version == found.version).values(**values))
    return _version(c, found.version)


def _expect_session(c: Connection, session_id: int) -> None:
    if c.execute(select(SessionTable.id).where(SessionTable.id == session_id)).first() is None:
        raise KeyError(f"no session {session_id}")


def _run(c: Connection, run_id: int) -> LearnerRun:
    row = c.execute(select(*_R.__table__.columns).where(_R.id == run_id)).one_or_none()
    if row is None:
        raise KeyError(f"no learner run {run_id}")
    return _run_of(row)


def _run_of(row: Row[*tuple[Any, ...]]) -> LearnerRun:
    return LearnerRun(
        id=row.id,
        algo=row.algo,
        mode=row.mode,
        status=LearnerStatus(row.status),
        started_at=row.started_at,
        trajectories=row.trajectories,
        session_id=row.session_id,
        finished_at=row.finished_at,
        steps=row.steps,
        config=row.config or {},
        metrics=row.metrics or {},
        detail=row.detail,
    )


def _version(c: Connection, version: str) -> PolicyVersion:
    row = c.execute(_versions(_V.version == version)).one_or_none()
    if row is None:
        raise KeyError(f"no version {version!r}")
    return _version_of(row)


def _version_of(row: Row[*tuple[Any, ...]]) -> PolicyVersion:
    return PolicyVersion(
        version=row.version,
        status=VersionStatus(row.status),
        folder=row.adapter_path,
        digest=row.adapter_hash,
        created_at=row.created_at,
        model_hash=row.model_hash,
        tokenizer_hash=row.tokenizer_hash,
        template_hash=row.template_hash,
        parent=row.parent,
        learner_run_id=row.learner_run_id,
        session_id=row.session_id,
        algo=row.algo or "",
        promoted_at=row.promoted_at,
        metrics=row.metrics or {},
        reason=row.reason,
    )

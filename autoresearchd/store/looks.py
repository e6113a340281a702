"""What early abort writes down: its looks at a running job, and its memory between experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from autoresearchd.domain.experiment import AbortMemory
from autoresearchd.store import codec
from autoresearchd.store.tables import AbortMemoryTable, LookTable

_L, _M = LookTable, AbortMemoryTable
_INSERT_LOOK = insert(_L.__table__)  # type: ignore[arg-type]
_LOOKS = select(_L.details).where(_L.run_id == bindparam("of_run", type_=Integer)).order_by(_L.id)
_MEMORY = select(_M.segment, _M.number, _M.figures, _M.state).where(
    _M.session_id == bindparam("of_session", type_=Integer)
)


def add(c: Connection, run_id: int, details: Mapping[str, Any]) -> None:
    """Write a look down. KeyError when there is no such run."""
    try:
        c.execute(
            _INSERT_LOOK,
            {
                "run_id": run_id,
                "progress": codec.finite(details.get("progress")) or 0.0,
                "forecast": codec.finite(details.get("forecast")),
                "probability": codec.finite(details.get("probability")),
                "details": dict(details),
            },
        )
    except IntegrityError as error:
        raise KeyError(f"no run {run_id}") from error


def of_run(c: Connection, run_id: int) -> Sequence[Mapping[str, Any]]:
    """The looks at a run, oldest first."""
    return [details or {} for details in c.execute(_LOOKS, {"of_run": run_id}).scalars()]


def remember(c: Connection, session_id: int, memory: AbortMemory) -> None:
    """Keep figures, and the state where there is one; a state of another segment is forgotten."""
    known = c.execute(select(_M.segment).where(_M.session_id == session_id)).scalar_one_or_none()
    values: dict[str, Any] = {"figures": dict(memory.figures)}
    if memory.state is not None or (known is not None and known != memory.segment):
        state = None if memory.state is None else codec.pack_json(memory.state)
        values |= {"segment": memory.segment, "number": memory.number, "state": state}
    if known is not None:
        c.execute(update(_M).where(_M.session_id == session_id).values(**values))
        return
    bare = {"segment": memory.segment, "number": -1, "state": None}
    try:
        c.execute(insert(_M).values(session_id=session_id, **{**bare, **values}))
    except IntegrityError as error:
        raise KeyError(f"no session {session_id}") from error


def recall(c: Connection, session_id: int) -> AbortMemory | None:
    """What was kept, None when nothing was."""
    row = c.execute(_MEMORY, {"of_session": session_id}).one_or_none()
    if row is None:
        return None
    state = None if row.state is None else codec.unpack_json(row.state)
    return AbortMemory(row.segment, row.number, row.figures or {}, state)

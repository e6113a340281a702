"""What became of the turns in which a hybrid's search might be overridden: for ``status``, the report and the page."""

from __future__ import annotations

from statistics import median
from typing import Any

from sqlalchemy import JSON, Connection, and_, case, func, or_, select, type_coerce

from autoresearchd.domain.labels import NEVER_RUN, Status
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.proposal import REBASED, REFUSED
from autoresearchd.store.journal.records import AnyRow
from autoresearchd.store.schema import tables as t

_HYBRID = "hybrid:"
_LATELY = 1000
"""Answers whose median time is told."""
e, p, n = t.experiments, t.proposals, t.answers


def hybrid_turns(c: Connection, session: AnyRow) -> dict[str, Any] | None:
    """How often the other policy of a hybrid was asked, and what became of it; None: the session is no hybrid.

    of: all turns, the search's too; away: the latest of its turns, where it could not be asked in that, and why.
    """
    if not session.policy.startswith(_HYBRID):
        return None
    said, keys = type_coerce(p.c.asi, JSON), (PASSED_BY, UNUSED, REFUSED, REBASED)
    passed_by, unused, refused, rebased = (said["extra", key].as_string() for key in keys)
    became = case(
        (and_(passed_by.is_not(None), unused.is_(None)), "passed"),
        (passed_by.is_not(None), "not_usable"),
        (unused.is_not(None), "not_asked"),
        (p.c.policy == "search", "search"),
        (or_(refused.is_not(None), e.c.label.in_(NEVER_RUN)), "not_usable"),
        else_="used",
    ).label("became")
    figures = func.count().label("turns"), func.max(p.c.number), func.count(case((e.c.status == Status.KEEP, 1)))
    its = and_(p.c.session_id == e.c.session_id, p.c.number == e.c.number, p.c.attempt == 0)  # not those of repairs
    made = (e.c.session_id == session.id, p.c.policy.not_in(("baseline", "outside")), rebased.is_(None))
    found = c.execute(select(became, *figures).join(p, its).where(*made).group_by("became")).all()
    turns = {row.became: row.turns for row in found}
    latest, last = max(((row[2], row.became) for row in found if row.became != "search"), default=(0, ""))
    why = select(unused).where(p.c.session_id == session.id, p.c.number == latest, p.c.attempt == 0)
    times = select(n.c.seconds).where(n.c.session_id == session.id, n.c.seconds > 0)  # others never came
    seconds = c.execute(times.order_by(n.c.number.desc(), n.c.answer_index.desc()).limit(_LATELY)).scalars().all()
    return {
        "name": session.policy.removeprefix(_HYBRID),
        "turns": sum(turns.values()) - turns.get("search", 0),
        "of": sum(turns.values()),
        **{name: turns.get(name, 0) for name in ("used", "passed", "not_usable", "not_asked")},
        "kept": sum(row[3] for row in found if row.became == "used"),
        "seconds": median(seconds) if seconds else None,
        "away": {"experiment": latest, "reason": c.execute(why).scalar() or ""} if last == "not_asked" else None,
    }

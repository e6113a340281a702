"""What a policy asks of a whole session, at a cost that does not grow with it: tallies, the tree, visits.

Tallies are counters by role and label that change with each decision; there are as many as kinds of ends, whatever the
number of experiments.
"""

from __future__ import annotations

from sqlalchemy import Connection, Integer, Text, bindparam, case, delete, func, insert, literal_column, select, update

from autoresearchd.domain.experiment import Decision, Node
from autoresearchd.domain.labels import FORBIDDEN, Status
from autoresearchd.store import codec
from autoresearchd.store.columns import core_table
from autoresearchd.store.tables import ExperimentTable, ProposalTable, TallyTable, VisitTable

_E, _P, _T, _V = map(core_table, (ExperimentTable, ProposalTable, TallyTable, VisitTable))
_OF_SESSION, _OF_NUMBER, _OF_ATTEMPT, _OF_SEGMENT, _AFTER = (
    bindparam(name, type_=Integer) for name in ("of_session", "of_number", "of_attempt", "of_segment", "after")
)
_NO_ROLE = literal_column("''", Text)

# ---------------------------------------------------------------------- tallies
_ONE_PROPOSAL = (_P.c.session_id == _OF_SESSION) & (_P.c.number == _OF_NUMBER) & (_P.c.attempt == _OF_ATTEMPT)
_ROLE = func.coalesce(select(_P.c.role).where(_ONE_PROPOSAL).scalar_subquery(), _NO_ROLE)
_OF_LABEL = bindparam("of_label", type_=_T.c.label.type)
_KEPT = bindparam("kept", type_=Integer)
_MORE_REWARD = bindparam("more_reward", type_=_T.c.reward.type)
_ADD_DECISION = (
    update(_T)
    .where(_T.c.session_id == _OF_SESSION, _T.c.role == _ROLE, _T.c.label == _OF_LABEL)
    .values(decided=_T.c.decided + 1, keeps=_T.c.keeps + _KEPT, reward=_T.c.reward + _MORE_REWARD)
)
_FIRST_DECISION = insert(_T).values(
    session_id=_OF_SESSION, role=_ROLE, label=_OF_LABEL, decided=1, keeps=_KEPT, reward=_MORE_REWARD
)
_LABELS = (
    select(_T.c.label, func.sum(_T.c.decided))
    .where(_T.c.session_id == _OF_SESSION)
    .group_by(_T.c.label)
    .order_by(_T.c.label)
)
_ROLES = (
    select(_T.c.role, func.sum(_T.c.decided), func.sum(_T.c.keeps), func.sum(_T.c.reward))
    .where(_T.c.session_id == _OF_SESSION)
    .group_by(_T.c.role)
    .order_by(_T.c.role)
)

_TURNS = (
    select(_E.c.number, _P.c.role, _E.c.status)
    .join(_P, (_P.c.session_id == _E.c.session_id) & (_P.c.number == _E.c.number) & (_P.c.attempt == _E.c.attempt))
    .where(_E.c.session_id == _OF_SESSION, _E.c.status.is_not(None))
    .order_by(_E.c.number.desc())
    .limit(bindparam("most", type_=Integer))
)


def add_decision(c: Connection, session_id: int, number: int, attempt: int | None, decision: Decision) -> None:
    """Count a decision; the caller holds the session's totals, so nobody else begins the same tally meanwhile."""
    values = {
        "of_session": session_id,
        "of_number": number,
        "of_attempt": attempt,
        "of_label": decision.label,
        "kept": int(decision.status is Status.KEEP),
        "more_reward": codec.finite(decision.reward) or 0.0,
    }
    if c.execute(_ADD_DECISION, values).rowcount == 0:
        c.execute(_FIRST_DECISION, values)


def label_counts(c: Connection, session_id: int) -> dict[str, int]:
    """Decided experiments by label."""
    return {label: int(decided) for label, decided in c.execute(_LABELS, {"of_session": session_id})}


def role_stats(c: Connection, session_id: int) -> dict[str, tuple[int, int, float]]:
    """Decided experiments, keeps and the sum of rewards, by role."""
    found = c.execute(_ROLES, {"of_session": session_id})
    return {role: (int(decided), int(keeps), float(reward)) for role, decided, keeps, reward in found}


def role_turns(c: Connection, session_id: int, most: int) -> list[tuple[int, str, bool]]:
    """Number and role of the latest decided experiments, and whether they were kept, oldest first."""
    found = c.execute(_TURNS, {"of_session": session_id, "most": most}).all()
    return [(number, role, status == Status.KEEP) for number, role, status in reversed(found)]


def recount(c: Connection, session_id: int) -> None:
    """Make the tallies of a session anew from its rows."""
    role = func.coalesce(_P.c.role, _NO_ROLE)
    kept = func.sum(case((_E.c.status == Status.KEEP, 1), else_=0))
    current = (_P.c.session_id == _E.c.session_id) & (_P.c.number == _E.c.number) & (_P.c.attempt == _E.c.attempt)
    rows = (
        select(_E.c.session_id, role, _E.c.label, func.count(), kept, func.coalesce(func.sum(_E.c.reward), 0.0))
        .outerjoin_from(_E, _P, current)
        .where(_E.c.session_id == session_id, _E.c.status.is_not(None), _E.c.label.is_not(None))
        .group_by(_E.c.session_id, role, _E.c.label)
    )
    c.execute(delete(_T).where(_T.c.session_id == session_id))
    c.execute(insert(_T).from_select(["session_id", "role", "label", "decided", "keeps", "reward"], rows))


# ---------------------------------------------------------------------- the tree
# A sum is no column to a planner: it keeps it from indices that would have to be walked through (that on values, for
# a maximum that on numbers), where the keys of experiments and the index on commits lead to the few rows asked for.
_PARENT = _E.alias("parent")
_PARENT_NUMBER = (
    select(func.max(_PARENT.c.number + 0))
    .where(
        _PARENT.c.session_id == _E.c.session_id,
        _PARENT.c.commit_sha == _E.c.parent,
        _PARENT.c.segment + 0 == _E.c.segment,
        _PARENT.c.number + 0 < _E.c.number,
        _PARENT.c.value.is_not(None),
    )
    .correlate(_E)
    .scalar_subquery()
)
_TREE = (
    select(_E.c.number, _PARENT_NUMBER, _E.c.commit_sha, _E.c.value, _E.c.status)
    .where(
        _E.c.session_id == _OF_SESSION,
        _E.c.number > _AFTER,
        _E.c.segment + 0 == _OF_SEGMENT,
        _E.c.commit_sha.is_not(None),
        _E.c.value.is_not(None),
        _E.c.status.is_not(None),
        _E.c.label.not_in(sorted(FORBIDDEN)),
    )
    .order_by(_E.c.number)
)


def tree(c: Connection, session_id: int, segment: int, after: int) -> list[Node]:
    """Experiments to go on from, with the numbers of their parents."""
    found = c.execute(_TREE, {"of_session": session_id, "of_segment": segment, "after": after})
    return [Node(number, parent, commit, value, Status(status)) for number, parent, commit, value, status in found]


# ---------------------------------------------------------------------- visits
_THERE = select(_E.c.number).where(_E.c.session_id == _OF_SESSION, _E.c.number == _OF_NUMBER).with_for_update()
_VISIT = (
    update(_V)
    .where(_V.c.session_id == _OF_SESSION, _V.c.number == _OF_NUMBER)
    .values(visits=_V.c.visits + 1)
    .returning(_V.c.visits)
)
_FIRST_VISIT = insert(_V)
_VISITS = select(_V.c.number, _V.c.visits).where(_V.c.session_id == _OF_SESSION).order_by(_V.c.number)


def add_visit(c: Connection, session_id: int, number: int) -> int:
    """Count that an experiment was chosen. KeyError when there is none."""
    key = {"of_session": session_id, "of_number": number}
    if c.execute(_THERE, key).first() is None:
        raise KeyError(f"session {session_id} has no experiment {number}")
    visits = c.execute(_VISIT, key).scalar_one_or_none()
    if visits is None:
        visits = 1
        c.execute(_FIRST_VISIT, {"session_id": session_id, "number": number, "visits": visits})
    return int(visits)


def visits(c: Connection, session_id: int) -> dict[int, int]:
    """How often experiments were chosen."""
    return dict(c.execute(_VISITS, {"of_session": session_id}).all())

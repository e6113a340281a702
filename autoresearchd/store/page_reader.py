"""What the live page reads beside ``StoryReader``: pages of a long list, thin rows for charts, what has changed.

Ten thousand experiments are shown in a fraction of a second: charts take columns, not whole experiments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, case, func, or_, select

from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.store.journal import records
from autoresearchd.store.reader import documents, find_session
from autoresearchd.store.schema import tables as t
from autoresearchd.store.story_reader import StoryReader

s, e, p, r, n, k = t.sessions, t.experiments, t.proposals, t.runs, t.answers, t.confirmations
_NEWEST = 64
"""Experiments and runs that may still change: more than there are slots."""
SORTS: Mapping[str, ColumnElement[Any]] = {
    "experiment": e.c.number,
    "status": e.c.status,
    "label": e.c.label,
    "metric": e.c.value,
    "gain": case((e.c.value.is_not(None), e.c.delta)),  # else it is a forecast, which is not shown
    "cost": p.c.usd,
    "reward": e.c.reward,
}
"""What a list can be sorted by."""
OPEN = "open"


class Wanted(NamedTuple):
    """Which experiments of a session, in which order. sort: a key of ``SORTS``; status: a Status, or ``OPEN``."""

    status: str = ""
    label: str = ""
    text: str = ""
    sort: str = "experiment"
    descending: bool = True


class OpenRun(NamedTuple):
    """A run under way, and what the early abort saw of it. run_index: names its folder."""

    id: int
    number: int
    run_index: int
    started_at: datetime
    looks: Sequence[Mapping[str, Any]]
    confirmation: bool


class PageReader(StoryReader):
    """Unknown session or experiment: KeyError."""

    def change_mark(self) -> str:
        """See ``Database.change_mark``."""
        return self._db.change_mark()

    def signature(self, tag: str) -> tuple[Any, ...]:
        """All that can change on the pages of a session but for logs; equal where a daemon only said that it lives.

        The first is when it was begun: another session may have got the tag of a removed one.
        """
        with self._db.read() as c:
            session = find_session(c, tag)
            of_it, looks = session.id, t.abort_checks.c
            lately = (
                select(e.c.number, e.c.phase, e.c.status, e.c.attempt).filter_by(session_id=of_it),
                select(r.c.id, r.c.finished_at).filter_by(session_id=of_it),
                select(k.c.number, k.c.outcome, k.c.moved).filter_by(session_id=of_it),
                select(t.notes.c.id, t.notes.c.seen_in).filter_by(session_id=of_it),
                select(t.policy_versions.c.id, t.policy_versions.c.status),
                select(t.learner_runs.c.id, t.learner_runs.c.status),
            )
            rows = [c.execute(one.order_by(one.selected_columns[0].desc()).limit(_NEWEST)).all() for one in lately]
            state = records.pick(session, ("state", "reason", "pid", "incumbent", "confirmed"))
            newest_look = c.execute(select(func.max(looks.id))).scalar()
            return (session.started_at, *state.values(), newest_look, *map(tuple, rows))

    # -- many experiments
    def count(self, tag: str, wanted: Wanted) -> int:
        with self._db.read() as c:
            which = _which(find_session(c, tag).id, wanted)
            joined = select(func.count()).select_from(e).outerjoin(p, records.CURRENT)
            return int(c.execute(joined.where(*which)).scalar_one())

    def page(self, tag: str, wanted: Wanted, limit: int, offset: int) -> list[dict[str, Any]]:
        """Some experiments as ``experiments --json`` lists them; those without a value in the column come last."""
        column, newest = SORTS[wanted.sort], e.c.number.desc()
        order = [column.desc() if wanted.descending else column]
        if wanted.sort != "experiment":  # each has a number: its index is enough then
            order = [column.is_(None), *order, newest]
        with self._db.read() as c:
            session_id = find_session(c, tag).id
            # First which, then all of these: to sort whole rows takes ten times as long.
            which = select(e.c.number).outerjoin_from(e, p, records.CURRENT).where(*_which(session_id, wanted))
            numbers = c.execute(which.order_by(*order).limit(limit).offset(offset)).scalars().all()
            these = records.LISTED.where(e.c.session_id == session_id, e.c.number.in_(numbers))
            listed = documents(c, session_id, records.load_experiments(c, session_id, these))
            found = {one["experiment"]: one for one in listed}
            return [found[number] for number in numbers]

    def labels(self, tag: str) -> list[str]:
        """The labels that experiments have ended with."""
        with self._db.read() as c:
            of_it = select(t.tallies.c.label).filter_by(session_id=find_session(c, tag).id).distinct()
            return sorted(label for label in c.execute(of_it).scalars() if label)

    def points(self, tag: str, start: int = 0) -> list[dict[str, Any]]:
        """The experiments from a number on, with what a chart and a tree need, named as ``experiments --json`` does."""
        names = ("number", "segment", "status", "label", "value", "confirmed", "parent", "commit_sha", "finished_at")
        with self._db.read() as c:
            of_it, since = find_session(c, tag).id, e.c.number >= start
            wanted = select(*(e.c[name] for name in names)).filter_by(session_id=of_it).where(since)
            rows = c.execute(wanted.order_by(e.c.number))
            told = select(p.c.number, p.c.description, p.c.hypothesis).join(e, records.CURRENT)
            kept = told.where(e.c.session_id == of_it, since, e.c.status == Status.KEEP)
            words = {number: description or hypothesis for number, description, hypothesis in c.execute(kept)}
            good = (r.c.session_id == of_it, r.c.number >= start, r.c.program.is_(None), r.c.label == Label.NONE)
            several = select(r.c.number, func.min(r.c.value), func.max(r.c.value)).where(*good, r.c.attempt >= 0)
            repeated = {
                number: [{"metric": low}, {"metric": high}]
                for number, low, high in c.execute(several.group_by(r.c.number).having(func.count(r.c.value) > 1))
            }
            listed = ("experiment", "segment", "status", "label", "metric", "confirmed", "parent", "commit", "ended")
            return [
                dict(zip(listed, row, strict=True))
                | {"description": words.get(row[0], ""), "runs": repeated.get(row[0], ())}
                for row in rows
            ]

    def keeps(self, tag: str) -> dict[int, bool | None]:
        """What became of each keep: all that changes of an experiment once it is decided."""
        with self._db.read() as c:
            of_it = select(e.c.number, e.c.confirmed).filter_by(session_id=find_session(c, tag).id, status=Status.KEEP)
            return dict(c.execute(of_it).all())

    def around(self, tag: str, number: int) -> dict[str, int | None]:
        """Numbers of the experiments before and after one, and of its ``parent``; None where there is none."""
        with self._db.read() as c:
            of_it = select(e.c.number).filter_by(session_id=find_session(c, tag).id)
            parent = select(e.c.parent).filter_by(session_id=find_session(c, tag).id, number=number).scalar_subquery()
            # Of several the last: the baseline of a segment is the program confirmed in the one before it.
            made_on = of_it.where(e.c.commit_sha == parent, e.c.number < number, e.c.value.is_not(None))
            wanted = {
                "previous": of_it.where(e.c.number < number).order_by(e.c.number.desc()),
                "next": of_it.where(e.c.number > number).order_by(e.c.number),
                "parent": made_on.order_by(e.c.number.desc()),
            }
            return {name: c.execute(one.limit(1)).scalar() for name, one in wanted.items()}

    # -- runs
    def open_runs(self, tag: str) -> list[OpenRun]:
        """The runs under way; of a daemon that died, those that it died in."""
        names, looks = ("id", "number", "run_index", "started_at"), t.abort_checks.c
        with self._db.read() as c:
            of_it = (r.c.session_id == find_session(c, tag).id, r.c.finished_at.is_(None))
            rows = c.execute(select(*(r.c[name] for name in names), r.c.attempt).where(*of_it).order_by(r.c.id)).all()
            seen: dict[int, list[Mapping[str, Any]]] = {row.id: [] for row in rows}
            found = select(looks.run_id, looks.details).where(looks.run_id.in_(list(seen))).order_by(looks.id)
            for run_id, details in c.execute(found):
                seen[run_id].append(details)
            return [OpenRun(*row[:4], seen[row.id], row.attempt < 0) for row in rows]

    def programs(self, tag: str, number: int) -> dict[int, tuple[int, int | None, int]]:
        """Of each run with the number of an experiment, by the name of its folder: seed, program and attempt.

        program: the experiment whose it is where that is another; attempt: −1 − n of confirmation n.
        """
        with self._db.read() as c:
            of_it = select(r.c.run_index, r.c.seed, r.c.program, r.c.attempt)
            rows = c.execute(of_it.filter_by(session_id=find_session(c, tag).id, number=number))
            return {index: (seed, program, attempt) for index, seed, program, attempt in rows}

    # -- cost and learning
    def active_seconds(self, tag: str) -> float:
        """How long its daemons have worked, without stops and pauses; 0 of an imported one."""
        with self._db.read() as c:
            return float(find_session(c, tag).active_seconds)

    def spending(self, tag: str) -> list[dict[str, Any]]:
        """What each model was asked and cost; usd: None where a price is not known."""
        sums = [func.sum(n.c[name]).label(name) for name in ("tokens_in", "tokens_out")]
        priced = [func.sum(n.c.usd).label("usd"), func.count(n.c.usd).label("priced")]
        with self._db.read() as c:
            of_it = select(n.c.model, func.count().label("answers"), *sums, *priced)
            grouped = of_it.filter_by(session_id=find_session(c, tag).id).group_by(n.c.model).order_by(n.c.model)
            return [dict(row._mapping) for row in c.execute(grouped)]

    def learner_runs(self, tag: str) -> list[dict[str, Any]]:
        """The runs of the learner for a session, and those across sessions, oldest first."""
        names = ("id", "algo", "mode", "status", "started_at", "trajectories", "steps", "detail")
        learned = t.learner_runs.c
        with self._db.read() as c:
            of_it = or_(learned.session_id == find_session(c, tag).id, learned.session_id.is_(None))
            rows = c.execute(select(*(learned[name] for name in names)).where(of_it).order_by(learned.id))
            return [dict(row._mapping) for row in rows]

    def task(self, tag: str) -> str:
        """The task as JSON."""
        with self._db.read() as c:
            return str(find_session(c, tag).task_json)


def _which(session_id: int, wanted: Wanted) -> Iterator[ColumnElement[bool]]:
    yield e.c.session_id == session_id
    if wanted.status == OPEN:
        yield e.c.phase != Phase.DECIDED
    elif wanted.status:
        yield e.c.status == Status(wanted.status)
    if wanted.label:
        yield e.c.label == Label(wanted.label)
    for word in wanted.text.split():
        its_own = word[1:] if word.startswith("#") else word
        number = [e.c.number == int(its_own)] if its_own.isascii() and its_own.isdigit() and len(its_own) < 10 else []
        names = () if number and word.startswith("#") else ("description", "hypothesis", "policy", "role")
        yield or_(*number, *(p.c[name].icontains(word, autoescape=True) for name in names))

"""Whole sessions for the learner: experiments that models answered, with all proposals and answers.

Nothing is written, and nothing that a daemon writes meanwhile is waited for. A row that cannot be read any more loses
itself alone, whatever is in it; a file whose structure is damaged is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.proposal import Answer, Proposal
from autoresearchd.store.journal import records
from autoresearchd.store.journal.records import AnyRow
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import FileReader

_UNREADABLE = (*codec.UNREADABLE, KeyError)
s, e, p, n = t.sessions, t.experiments, t.proposals, t.answers


class SessionFacts(NamedTuple):
    """A session in a line. decided: without baselines; answers: of models; identity: the same wherever it lies."""

    id: int
    tag: str
    policy: str
    task_json: str
    decided: int
    answers: int
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """An experiment, and all that models said for it.

    experiment: with its current proposal, its runs and its decision; None where it cannot be read. proposals: by
    attempt, the current one the last. None of them holds file texts or a generation. answers: oldest first, None in
    the place of one that cannot be read.
    """

    number: int
    experiment: Experiment | None
    proposals: tuple[Proposal, ...]
    answers: tuple[Answer | None, ...]


class Corpus(FileReader):
    """Reads what the learner needs of a database file."""

    def sessions(self) -> list[SessionFacts]:
        of_it = (p.c.session_id == s.c.id, p.c.number == e.c.number)
        baseline = select(p.c.number).where(*of_it, p.c.policy == "baseline")
        decided = select(func.count()).where(e.c.session_id == s.c.id, e.c.status.is_not(None), ~baseline.exists())
        answers = select(func.count()).where(n.c.session_id == s.c.id)
        facts = [s.c[name] for name in ("id", "tag", "policy", "task_json")]
        counts = [decided.scalar_subquery(), answers.scalar_subquery()]
        with self._db.read() as c:
            rows = c.execute(select(*facts, *counts, s.c.base_commit, s.c.seed).order_by(s.c.id)).all()
        # A tag alone is that of the day on which somebody began; the seed is drawn for each session.
        known = (sha256(f"{row.tag}\0{row.base_commit}\0{row.seed}".encode()).hexdigest()[:32] for row in rows)
        return [SessionFacts(*row[:6], identity) for row, identity in zip(rows, known, strict=True)]

    def transcripts(self, session_id: int) -> Iterator[Transcript]:
        """The experiments of a session that have answers, in order of number, all as of one instant."""
        numbers = select(n.c.number).where(n.c.session_id == session_id).distinct().order_by(n.c.number)
        with self._db.read() as c:
            for number in c.execute(numbers).scalars().all():
                answers = _answers(c, session_id, number)
                try:
                    experiment = records.load_experiment(c, session_id, number, records.LISTED)
                    yield Transcript(number, experiment, _proposals(c, session_id, number), answers)
                except _UNREADABLE:
                    yield Transcript(number, None, (), answers)


def _proposals(c: Connection, session_id: int, number: int) -> tuple[Proposal, ...]:
    columns = [column.label(f"p_{column.name}") for column in p.c]
    of_it = (p.c.session_id == session_id, p.c.number == number)
    rows = c.execute(select(*columns).where(*of_it).order_by(p.c.attempt)).all()
    return tuple(records.proposal_of(row, row.p_attempt) for row in rows)


def _answers(c: Connection, session_id: int, number: int) -> tuple[Answer | None, ...]:
    """The answers of an experiment; one goes with another's row where its messages are stored with that."""
    indices = select(n.c.answer_index).where(n.c.session_id == session_id, n.c.number == number)
    found = c.execute(indices.order_by(n.c.answer_index)).scalars().all()
    answers = records.answers_of([_readable(c, session_id, number, index) for index in found])
    return tuple(None if a is None or records.LOST in a.generation.messages else a for a in answers)


def _readable(c: Connection, session_id: int, number: int, index: int) -> AnyRow | None:
    """The row of an answer; None where it cannot be read."""
    key = (n.c.session_id == session_id, n.c.number == number, n.c.answer_index == index)
    try:
        row = c.execute(records.ANSWERS.where(*key)).one()
        list(records.conversations([(index, row.shared, ())]))
    except _UNREADABLE:
        return None
    return row

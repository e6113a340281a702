"""Whole sessions for the learner: experiments that models answered, with all proposals and answers, by ``sqlite3``.

Nothing is written, and nothing that a daemon writes meanwhile is waited for. A row that cannot be read any more loses
itself alone, whatever is in it; a file whose structure is damaged is an error.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.errors import StoreDamaged
from autoresearchd.store import codec
from autoresearchd.store.documents import moment
from autoresearchd.store.health import MEND
from autoresearchd.store.readonly import explain, open_readonly
from autoresearchd.store.transcripts import LOST, MOST_MESSAGES, conversations

_SESSIONS = """
SELECT s.id, s.tag, s.policy, s.task_json, s.base_commit, s.seed,
    (SELECT count(*) FROM experiment e WHERE e.session_id = s.id AND e.status IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM proposal p WHERE p.session_id = s.id AND p.number = e.number AND p.policy = 'baseline')
    ) AS decided,
    (SELECT count(*) FROM answer a WHERE a.session_id = s.id) AS answers
FROM session s ORDER BY s.id
"""
_EXPERIMENTS = """
SELECT * FROM experiment
WHERE session_id = :session AND number IN (SELECT number FROM answer WHERE session_id = :session)
"""
_PROPOSALS = """
SELECT * FROM proposal
WHERE session_id = :session AND number IN (SELECT number FROM answer WHERE session_id = :session)
ORDER BY number, attempt
"""
_RUNS = """
SELECT id, number, run_index, seed, program, attempt, started_at, finished_at, label, value, duration_s, exit_code,
    tier, device, metrics, detail
FROM run
WHERE session_id = :session AND number IN (SELECT number FROM answer WHERE session_id = :session)
ORDER BY number, run_index
"""
_ANSWERS = """
SELECT a.*, b.shared, b.messages, b.completion, b.token_ids, b.logprobs
FROM answer a
LEFT JOIN answer_body b
    ON b.session_id = a.session_id AND b.number = a.number AND b.answer_index = a.answer_index
WHERE a.session_id = :session ORDER BY a.number, a.answer_index
"""
_BROKEN = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, zlib.error, struct.error,
)  # fmt: skip
"""What reading a value may raise that was never written like that."""
_KNOWN = 64
"""So many prompts are remembered, so that those who were asked the same share one in memory."""

T = TypeVar("T")


class SessionFacts(NamedTuple):
    """A session in a line. decided: its experiments beside the baselines; answers: of models, or questions to them.

    identity: what it is known by, wherever its repository lies and whatever it is read beside.
    """

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

    experiment: with its current proposal, its runs and its decision, without side information; None where it cannot be
    read. proposals: by attempt, the current one the last. None of them holds file texts or a generation. answers:
    oldest first, None in the place of one that cannot be read.
    """

    number: int
    experiment: Experiment | None
    proposals: tuple[Proposal, ...]
    answers: tuple[Answer | None, ...]


class Corpus:
    """Reads a database file.

    Raises StoreError when there is no database, an older version wrote it, or it cannot be read; SchemaTooNew when a
    newer version wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_readonly(path)
        self._db.text_factory = _decoded

    def __enter__(self) -> Corpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def sessions(self) -> list[SessionFacts]:
        """All sessions, oldest first."""
        with self._instant():
            found = self._db.execute(_SESSIONS).fetchall()
            try:
                return [
                    SessionFacts(
                        _whole(row["id"]),
                        _text(row["tag"]),
                        _text(row["policy"]),
                        _text(row["task_json"]),
                        row["decided"],
                        row["answers"],
                        _identity(_text(row["tag"]), _text(row["base_commit"]), _whole(row["seed"])),
                    )
                    for row in found
                ]
            except _BROKEN as error:
                raise StoreDamaged(f"{self._path} holds a session that cannot be read: {error}", mend=MEND) from error

    def transcripts(self, session_id: int) -> Iterator[Transcript]:
        """The experiments of a session that have answers, in order of number, all as of one instant."""
        key = {"session": session_id}
        with self._instant():
            experiments = {row["number"]: row for row in self._db.execute(_EXPERIMENTS, key)}
            proposals, runs = self._by_number(_PROPOSALS, key), self._by_number(_RUNS, key)
            known: dict[bytes, list[Any]] = {}
            for number, rows in groupby(self._db.execute(_ANSWERS, key), key=lambda row: row["number"]):
                given = _answers(list(rows), known)
                try:
                    made = [_proposal(row) for row in proposals.get(number, ())]
                    experiment = _experiment(experiments[number], proposals.get(number, ()), made, runs.get(number, ()))
                except _BROKEN:
                    yield Transcript(number, None, (), given)
                else:
                    yield Transcript(number, experiment, tuple(made), given)

    def _by_number(self, query: str, key: Mapping[str, int]) -> dict[Any, list[sqlite3.Row]]:
        found: dict[Any, list[sqlite3.Row]] = {}
        for row in self._db.execute(query, key):
            found.setdefault(row["number"], []).append(row)
        return found

    @contextmanager
    def _instant(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.rollback()
        except sqlite3.Error as error:
            raise explain(self._path, error) from error


# ---------------------------------------------------------------------- rows
def _experiment(
    row: sqlite3.Row, stored: Sequence[sqlite3.Row], made: Sequence[Proposal], runs: Sequence[sqlite3.Row]
) -> Experiment:
    attempt = _known(_whole, row["attempt"])
    current = next((i for i, proposal in enumerate(made) if proposal.attempt == attempt), None)
    return Experiment(
        session_id=_whole(row["session_id"]),
        number=_whole(row["number"]),
        segment=_whole(row["segment"]),
        phase=Phase(row["phase"]),
        parent=_text(row["parent"]),
        started_at=_time(row["started_at"]),
        commit=_known(_text, row["commit_sha"]),
        proposal=None if current is None else made[current],
        runs=tuple(map(_run, runs)),
        decision=None if row["status"] is None else _decision(row, None if current is None else stored[current]),
        finished_at=_known(_time, row["finished_at"]),
        attempt=attempt or 0,
    )


def _decision(row: sqlite3.Row, proposal: sqlite3.Row | None) -> Decision:
    """The decision; the version of its reward's formula stands with the proposal that earned it."""
    return Decision(
        status=Status(row["status"]),
        label=Label(row["label"]),
        value=_known(_real, row["value"]),
        delta=_known(_real, row["delta"]),
        metrics=codec.metrics(_object(row["metrics"])),
        confidence=_known(_real, row["confidence"]),
        sigma=_known(_real, row["sigma"]),
        reward=_known(_real, row["reward"]),
        reason=_known(_text, row["reason"]) or "",
        reward_parts={} if proposal is None else _object(proposal["reward_parts"]),
        reward_formula=None if proposal is None else _known(_text, proposal["reward_formula"]),
    )


def _proposal(row: sqlite3.Row) -> Proposal:
    return Proposal(
        files={},
        hypothesis=_text(row["hypothesis"]),
        policy=_text(row["policy"]),
        description=_text(row["description"]),
        expected_delta=_known(_real, row["expected_delta"]),
        changes=_object(row["changes"]),
        role=_text(row["role"]),
        adapter=_text(row["adapter"]),
        state_id=_text(row["state_id"]),
        round_id=_text(row["round_id"]),
        attempt=_whole(row["attempt"]),
        parent=_known(_text, row["parent"]),
    )


def _run(row: sqlite3.Row) -> Run:
    return Run(
        id=_whole(row["id"]),
        experiment=_whole(row["number"]),
        index=_whole(row["run_index"]),
        seed=_whole(row["seed"]),
        started_at=_time(row["started_at"]),
        finished_at=_known(_time, row["finished_at"]),
        label=Label(row["label"]),
        value=_known(_real, row["value"]),
        metrics=codec.metrics(_object(row["metrics"])),
        duration_s=_real(row["duration_s"]),
        exit_code=_known(_whole, row["exit_code"]),
        tier=_text(row["tier"]),
        device=_text(row["device"]),
        detail=_text(row["detail"]),
        of=_known(_whole, row["program"]),
        attempt=_whole(row["attempt"]),
    )


def _answers(rows: Sequence[sqlite3.Row], known: dict[bytes, list[Any]]) -> tuple[Answer | None, ...]:
    """The answers of an experiment; one goes with another's row where its messages are stored with that."""
    stored: dict[int, tuple[int, int, list[Any]]] = {}
    for place, row in enumerate(rows):
        try:
            stored[place] = _whole(row["answer_index"]), _shared(row["shared"]), _messages(row["messages"], known)
        except _BROKEN:
            continue
    said = dict(zip(stored, conversations(stored.values()), strict=True))
    return tuple(_answer(row, said[place]) if place in said else None for place, row in enumerate(rows))


def _answer(row: sqlite3.Row, messages: Sequence[Any]) -> Answer | None:
    if LOST in messages:
        return None
    try:
        generation = Generation(
            messages=tuple(messages),
            completion="" if row["completion"] is None else codec.unpack_text(row["completion"]),
            token_ids=None if row["token_ids"] is None else codec.unpack_numbers(row["token_ids"], "q"),
            logprobs=None if row["logprobs"] is None else codec.unpack_numbers(row["logprobs"], "d"),
            sampling=_object(row["sampling"]),
            model_hash=_known(_text, row["model_hash"]),
            tokenizer_hash=_known(_text, row["tokenizer_hash"]),
            template_hash=_known(_text, row["template_hash"]),
            adapter=_known(_text, row["adapter"]),
        )
        usd = _known(_real, row["usd"])
        return Answer(
            model=_text(row["model"]),
            cost=Cost(usd, _whole(row["tokens_in"]), _whole(row["tokens_out"]), _real(row["seconds"])),
            generation=generation,
            error=_text(row["error"]),
            form=_text(row["form"]),
            finish=_text(row["finish"]),
            attempt=_whole(row["attempt"]),
        )
    except _BROKEN:
        return None


def _identity(tag: str, base_commit: str, seed: int) -> str:
    """A tag alone is that of the day on which somebody began; the seed is drawn for each session."""
    return hashlib.sha256(f"{tag}\0{base_commit}\0{seed}".encode()).hexdigest()[:32]


# ---------------------------------------------------------------------- values
def _decoded(raw: bytes) -> str | bytes:
    """Text of a column; bytes that are none are left as they are: of all rows, only theirs is then broken."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _known(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in the place of text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} in the place of a whole number")
    return value


def _real(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__} in the place of a number")
    return float(value)


def _time(value: Any) -> datetime:
    return moment(_whole(value))


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    found = {} if value is None else json.loads(_text(value))
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} in the place of a JSON object")
    return found


def _shared(value: Any) -> int:
    shared = 0 if value is None else _whole(value)
    if not 0 <= shared <= MOST_MESSAGES:
        raise ValueError(f"no conversation shares {shared} messages")
    return shared


def _messages(blob: Any, known: dict[bytes, list[Any]]) -> list[Any]:
    if blob is None:
        return []
    if blob not in known:
        found = codec.unpack_json(blob)
        if not isinstance(found, list) or not all(isinstance(message, dict) for message in found):
            raise TypeError("what was asked is no list of messages")
        if len(known) >= _KNOWN:
            known.clear()
        known[blob] = found
    return known[blob]

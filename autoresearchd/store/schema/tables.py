"""The tables of the journal. ``migrations/`` creates them (a test holds the two together).

Their column types are the boundary of the database: what is written is cleaned of what no database can hold and
redacted, what is read is checked, long values are compressed (``codec``). What is read often (experiment, proposal) is
kept apart from what is long (proposal_body); sums over a session are counters (``totals``, ``tally``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Dialect, Index, Table, TypeDecorator

from autoresearchd.domain.cleaning import storable
from autoresearchd.domain.labels import Label, Outcome, Phase, SessionState, Status
from autoresearchd.domain.policy_versions import LearnerStatus, VersionStatus
from autoresearchd.domain.redaction import Redactor
from autoresearchd.store.schema import codec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_redactor: ContextVar[Redactor] = ContextVar("redactor", default=Redactor())  # noqa: B039 - it never changes


@contextmanager
def redacting(redactor: Redactor) -> Iterator[None]:
    """Whatever is written within goes through this redactor, where its column does not say that it is verbatim."""
    token = _redactor.set(redactor)
    try:
        yield
    finally:
        _redactor.reset(token)


def redacted(value: Any) -> Any:
    """A value as it is written down."""
    return _redactor.get().value(value)


def clean(value: str) -> str:
    """A text as it is written down."""
    return storable(_redactor.get().text(value))


# ---------------------------------------------------------------------- types of columns
class Value(TypeDecorator[Any]):
    """What is stored as ``impl``: made by ``store``, read by ``load``. Neither sees NULL, which is read as ``empty()``.

    redacts: whether secrets are taken out before.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(
        self,
        impl: sa.types.TypeEngine[Any],
        store: Callable[[Any], Any] = lambda value: value,
        load: Callable[[Any], Any] = lambda value: value,
        *,
        empty: Callable[[], Any] = lambda: None,
        redacts: bool = False,
    ) -> None:
        super().__init__()
        self.impl = impl  # type: ignore[assignment]  # of each value its own
        self.store, self.load, self.empty, self.redacts = store, load, empty, redacts

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.store(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return self.empty() if value is None else self.load(value)


def _checked(value: Any, *kinds: type) -> Any:
    """A value of the database, which anybody may have changed. Raises TypeError."""
    if not isinstance(value, kinds):
        raise TypeError(f"{type(value).__name__} in the place of {kinds[0].__name__}")
    return value


def _microseconds(at: datetime) -> int:
    if at.tzinfo is None:
        raise ValueError(f"a time without a time zone cannot be stored: {at!r}")
    return (at - _EPOCH) // _MICROSECOND


def _json(kind: type, load: Callable[[Any], Any] = lambda value: value) -> Value:
    """A JSON object or list; an empty one is NULL."""
    return Value(
        sa.JSON(none_as_null=True),
        lambda value: redacted(kind(value)) if value else None,
        lambda value: load(_checked(value, kind)),
        empty=kind,
        redacts=True,
    )


def _packed(form: str, *, verbatim: bool = False) -> Value:
    """A long value, compressed; ``form``: how, see ``codec.FORMS``. Numbers stay what they are."""
    pack, unpack = codec.FORMS[form]
    redacts = form in ("text", "json", "messages") and not verbatim
    return Value(sa.LargeBinary(), lambda value: pack(redacted(value) if redacts else value), unpack, redacts=redacts)


def _word(kind: type[StrEnum]) -> Value:
    return Value(sa.Text(), storable, kind)


Time = Value(sa.BigInteger(), _microseconds, lambda value: _EPOCH + timedelta(microseconds=_checked(value, int)))
"""A UTC datetime, stored as integer microseconds since 1970; naive datetimes are refused."""
Words = Value(sa.Text(), clean, lambda value: _checked(value, str), redacts=True)
"""Text that people or models wrote: cleaned of what a database cannot hold, and redacted."""
Verbatim = Value(sa.Text(), storable, lambda value: _checked(value, str))
"""Text that stays what it is: names, hashes, and the task."""
Whole, Big = (
    Value(kind, load=lambda value: int(_checked(value, int, Decimal))) for kind in (sa.Integer(), sa.BigInteger())
)
Real = Value(sa.Float(53), codec.finite, lambda value: float(_checked(value, int, float)))
"""A number; one that is not finite is stored as NULL."""
Json, Stages, Metrics = _json(dict), _json(list), _json(dict, codec.metrics)


# ---------------------------------------------------------------------- keys and columns
metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *parts: Any) -> Table:
    """A table of columns, lists of columns, indices and constraints."""
    return Table(name, metadata, *chain.from_iterable(part if isinstance(part, list) else [part] for part in parts))


def _columns(kind: Any, *names: str, **options: Any) -> list[Column[Any]]:
    """Columns of a kind; those whose names end with a question mark may be NULL."""
    return [Column(name.rstrip("?"), kind, nullable=name.endswith("?"), **options) for name in names]


def _refers(name: str, table: str, ondelete: str = "CASCADE", **options: Any) -> Column[Any]:
    return Column(name, Whole, sa.ForeignKey(f"{table}.id", ondelete=ondelete), **{"nullable": False, **options})


def _key(table: str, *names: str) -> list[Any]:
    """Columns that are the key of another table's row, and go with it."""
    reference = sa.ForeignKeyConstraint(names, [f"{table}.{name}" for name in names], ondelete="CASCADE")
    return [*_columns(Whole, *names, primary_key=True), reference]


_EXPERIMENT = ("session_id", "number")
HASHES = ("model_hash", "tokenizer_hash", "template_hash")
_HASHES = tuple(f"{name}?" for name in HASHES)


def _generation() -> list[Column[Any]]:
    """The long parts of what a model said."""
    forms = {"messages": "messages", "completion": "text", "token_ids": "ids", "logprobs": "reals"}
    return [Column(name, _packed(form)) for name, form in forms.items()]


# ---------------------------------------------------------------------- sessions and experiments
sessions = _table(
    "session",
    _columns(Whole, "id", primary_key=True),
    _columns(Verbatim, "tag", unique=True),
    _columns(Verbatim, "branch", "folder", "policy", "executor", "base_commit", "incumbent", "task_json"),
    _columns(Verbatim, "confirmed", server_default=sa.text("''")),
    _columns(Whole, "confirmed_experiment", server_default=sa.text("0")),
    _columns(_word(SessionState), "state"),
    _columns(Words, "reason"),
    _columns(Whole, "pid?", "max_experiments?", "incumbent_experiment"),
    _columns(Big, "seed"),
    _columns(Time, "started_at", "heartbeat_at?"),
    _columns(Real, "active_seconds", "max_seconds?", "max_usd?"),
)

totals = _table(  # counters of a session. opened: numbers handed out; what follows: decided experiments
    "totals",
    _refers("session_id", "session", primary_key=True),
    _columns(Whole, "opened", "experiments", "keeps", "discards", "crashes", "checks_failed", "aborted"),
    _columns(Real, "usd", "gpu_s"),
    _columns(Big, "tokens_in", "tokens_out"),
)

segments = _table(  # first: number of its first experiment
    "segment",
    _refers("session_id", "session", primary_key=True),
    _columns(Whole, "number", primary_key=True),
    _columns(Whole, "first"),
    _columns(Verbatim, "fingerprint"),
    _columns(Words, "reason", "hardware"),
    _columns(Time, "started_at"),
)

# status and what follows are NULL until it is decided. attempt: of its current proposal; gpu_s: of all its runs;
# confirmed: NULL: its chain is not tested yet, or it was never kept
experiments = _table(
    "experiment",
    _refers("session_id", "session", primary_key=True),
    _columns(Whole, "number", primary_key=True),
    _columns(Whole, "segment", "attempt?"),
    _columns(_word(Phase), "phase"),
    _columns(_word(Status), "status?"),
    _columns(_word(Label), "label?"),
    _columns(Real, "value?", "delta?", "confidence?", "sigma?", "reward?", "overhead_ms?", "gpu_s"),
    _columns(Time, "started_at", "finished_at?"),
    _columns(Verbatim, "parent", "commit_sha?"),
    _columns(Metrics, "metrics?"),
    _columns(Words, "reason?"),
    _columns(sa.Boolean, "confirmed?"),
    _columns(Real, "shift?"),
    Index("ix_experiment_value", "session_id", "segment", "value", "number"),
    Index("ix_experiment_status", "session_id", "status", "number"),
    Index("ix_experiment_commit", "session_id", "commit_sha"),
)

# One for each attempt. usd: NULL when the price is unknown. censored: the reward rests on a forecast
proposals = _table(
    "proposal",
    _key("experiment", *_EXPERIMENT),
    _columns(Whole, "attempt", primary_key=True),
    _columns(Words, "policy", "role", "adapter", "hypothesis", "description", "state_id"),
    _columns(Words, "round_id", index=True),
    _columns(Verbatim, "code_hash", "parent?", "reward_formula?"),
    _columns(Real, "expected_delta?", "usd?", "reward?", "seconds"),
    _columns(Big, "tokens_in", "tokens_out"),
    _columns(sa.Boolean, "censored"),
    _columns(Words, *_HASHES, "generation_adapter?"),
    _columns(Json, "reward_parts?", "sampling?", "changes?", "asi?"),
    Index("ix_proposal_code_hash", "session_id", "code_hash", "number"),
)

proposal_bodies = _table(
    "proposal_body",
    _key("proposal", *_EXPERIMENT, "attempt"),
    _columns(_packed("text"), "diff"),
    _columns(_packed("json", verbatim=True), "files"),
    _generation(),
)

asi = _table(
    "asi",
    _key("experiment", *_EXPERIMENT),
    _columns(Words, "hypothesis", "arch_change", "result", "next_action_hint"),
    _columns(Json, "extra?"),
)

# program: number of the experiment whose commit ran, NULL: its own. attempt: of the proposal when it ran; of
# confirmation n: -1 - n
runs = _table(
    "run",
    _columns(Whole, "id", primary_key=True),
    _columns(Whole, "session_id", "number", "run_index", "program?", "exit_code?"),
    _columns(Big, "seed"),
    _columns(Whole, "attempt", server_default=sa.text("0")),
    _columns(Time, "started_at", "finished_at?"),
    _columns(_word(Label), "label"),
    _columns(Real, "value?", "duration_s"),
    _columns(Words, "tier", "host", "device", "detail"),
    _columns(Metrics, "metrics?"),
    _columns(Stages, "stages?"),
    _columns(_packed("curve"), "curve?"),
    sa.ForeignKeyConstraint(_EXPERIMENT, ["experiment.session_id", "experiment.number"], ondelete="CASCADE"),
    sa.UniqueConstraint("session_id", "number", "run_index"),
)

# outcome and what follows are NULL until it is decided. experiment, against, after: numbers of experiments; pairs,
# budget: NULL: as the rule and the task say
confirmations = _table(
    "confirmation",
    _refers("session_id", "session", primary_key=True),
    _columns(Whole, "number", primary_key=True),
    _columns(Whole, "segment", "experiment", "against", "after", "pairs?"),
    _columns(Real, "budget?"),
    _columns(Verbatim, "why"),
    _columns(sa.Boolean, "moved", server_default=sa.text("false")),
    _columns(Time, "started_at", "finished_at?"),
    _columns(_word(Outcome), "outcome?"),
    _columns(Real, "gain?", "error?", "probability?"),
    _columns(Words, "reason?"),
)

# What is believed of the tip. after: the number of an experiment, or half a number more: a verdict before the next one.
# state: what a restart goes on from, of the latest one that has it
beliefs = _table(
    "belief",
    _refers("session_id", "session", primary_key=True),
    _columns(Real, "after", primary_key=True),
    _columns(Real, "value", "error?"),
    _columns(_packed("json"), "state?"),
)

tallies = _table(  # counters of decided experiments by role and label; reward: the sum of theirs
    "tally",
    _refers("session_id", "session", primary_key=True),
    _columns(Words, "role", primary_key=True),
    _columns(_word(Label), "label", primary_key=True),
    _columns(Whole, "decided", "keeps"),
    _columns(Real, "reward"),
)

visits = _table("visit", _key("experiment", *_EXPERIMENT), _columns(Whole, "visits"))

abort_checks = _table(
    "look",
    _columns(Whole, "id", primary_key=True),
    _refers("run_id", "run", index=True),
    _columns(Real, "progress", "forecast?", "probability?"),
    _columns(Json, "details?"),
)

abort_memories = _table(  # of the latest segment; state: as of ``number``
    "abort_memory",
    _refers("session_id", "session", primary_key=True),
    _columns(Whole, "segment", "number"),
    _columns(Json, "figures?"),
    _columns(_packed("json"), "state?"),
)

notes = _table(  # seen_in: the experiment whose prompt carried it
    "note",
    _columns(Whole, "id", primary_key=True),
    _refers("session_id", "session"),
    _columns(Words, "text"),
    _columns(Time, "created_at"),
    _columns(Whole, "seen_in?"),
    Index("ix_note_unseen", "session_id", "seen_in"),
)

suggestions = _table(  # proposals from outside. taken_in: the experiment that has it, NULL while it waits for one
    "suggestion",
    _columns(Whole, "id", primary_key=True),
    _refers("session_id", "session"),
    _columns(_packed("json", verbatim=True), "files"),
    _columns(Verbatim, "parent"),
    _columns(Json, "said?"),
    _columns(Words, "proposer"),
    _columns(Time, "created_at"),
    _columns(Whole, "taken_in?"),
    Index("ix_suggestion_waiting", "session_id", "taken_in"),
)

controls = _table(
    "control_request",
    _columns(Whole, "id", primary_key=True),
    _refers("session_id", "session"),
    _columns(Verbatim, "kind"),
    _columns(Time, "created_at"),
    _columns(sa.Boolean, "taken"),
    Index("ix_control_request_pending", "session_id", "taken"),
)

events = _table(  # of earlier versions: the daemon's log has them; in a shared store, which daemons had a session
    "event",
    _columns(Whole, "id", primary_key=True),
    _refers("session_id", "session"),
    _columns(Verbatim, "kind"),
    _columns(Time, "at"),
    _columns(Whole, "experiment?"),
    _columns(Words, "message"),
    _columns(Json, "data?"),
    Index("ix_event_session", "session_id", "id"),
)

# ---------------------------------------------------------------------- what models answered and learned
answers = _table(  # usable or not, in the order of their coming. What is spent in a day is read off the index
    "answer",
    _key("experiment", *_EXPERIMENT),
    _columns(Whole, "answer_index", primary_key=True),
    _columns(Whole, "attempt"),
    _columns(Time, "at"),
    _columns(Real, "usd?", "seconds"),
    _columns(Big, "tokens_in", "tokens_out"),
    _columns(Words, "model", "form", "finish", "error", *_HASHES, "adapter?"),
    _columns(Json, "sampling?"),
    Index("ix_answer_spent", "at", "usd"),
)

# shared: so many messages are those of the answer before it (a question asked again goes on from that one)
answer_bodies = _table(
    "answer_body", _key("answer", *_EXPERIMENT, "answer_index"), _columns(Whole, "shared"), _generation()
)

learner_runs = _table(  # session_id is NULL where it learned across sessions
    "learner_run",
    _columns(Whole, "id", primary_key=True),
    _refers("session_id", "session", index=True, nullable=True),
    _columns(Verbatim, "algo", "mode"),
    _columns(_word(LearnerStatus), "status"),
    _columns(Time, "started_at", "finished_at?"),
    _columns(Whole, "trajectories", "steps"),
    _columns(Json, "config?", "metrics?"),
    _columns(Words, "detail"),
)

policy_versions = _table(  # adapter_path: name of its folder; adapter_hash: over all of its files
    "policy_version",
    _columns(Whole, "id", primary_key=True),
    _refers("session_id", "session", index=True, nullable=True),
    _refers("learner_run_id", "learner_run", "SET NULL", nullable=True),
    _refers("parent_id", "policy_version", "SET NULL", nullable=True),
    _columns(Verbatim, "version", unique=True),
    _columns(_word(VersionStatus), "status"),
    _columns(Verbatim, "adapter_path", "adapter_hash", *_HASHES),
    _columns(Time, "created_at", "promoted_at?"),
    _columns(Json, "metrics?"),
    _columns(Words, "reason", server_default=sa.text("''")),
)


def columns(table: Table, *without: str) -> Sequence[Column[Any]]:
    """The columns of a table but for some."""
    return [column for column in table.c if column.name not in without]

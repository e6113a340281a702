"""The tables of the journal. ``migrations/`` creates them (a test holds the two together).

Their column types are the boundary of the database: what is written is cleaned of what no database can hold and
redacted, what is read is checked, long values are compressed (``codec``). Times are integer microseconds of UTC since
1970, free-form values JSON. Constraints get names, so that migrations can speak of them.

Rows of an experiment carry its key (session_id, number), so that a step never looks up another id. What is read often
(experiment, proposal) is kept apart from what is long (proposal_body); sums over a session are counters (``totals``,
``tally``) that change together with what they count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Dialect, Index, Table, TypeDecorator

from autoresearchd.domain.labels import Label, Phase, SessionState, Status
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
    return codec.text(_redactor.get().text(value))


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


def _text(value: Any) -> str:
    return str(_checked(value, str))


def _whole(value: Any) -> int:
    return int(_checked(value, int, Decimal))


def _json(kind: type, load: Callable[[Any], Any] = lambda value: value) -> Value:
    """A JSON object or list; an empty one is NULL."""
    return Value(
        sa.JSON(none_as_null=True),
        lambda value: redacted(kind(value)) if value else None,
        lambda value: load(_checked(value, kind)),
        empty=kind,
        redacts=True,
    )


def _packed(form: str) -> Value:
    """A long value, compressed; ``form``: how, see ``codec.FORMS``. Numbers and files stay what they are."""
    pack, unpack = codec.FORMS[form]
    redacts = form in ("text", "json", "messages")
    return Value(sa.LargeBinary(), lambda value: pack(redacted(value) if redacts else value), unpack, redacts=redacts)


def _word(kind: type[StrEnum]) -> Value:
    """A word of ours, one of an enumeration."""
    return Value(sa.Text(), codec.text, kind)


Time = Value(sa.BigInteger(), _microseconds, lambda value: _EPOCH + timedelta(microseconds=_checked(value, int)))
"""A UTC datetime, stored as integer microseconds since 1970; naive datetimes are refused."""
Words = Value(sa.Text(), clean, _text, redacts=True)
"""Text that people or models wrote: cleaned of what a database cannot hold, and redacted."""
Verbatim = Value(sa.Text(), codec.text, _text)
"""Text that stays what it is: names, hashes, and the task."""
Whole, Big = Value(sa.Integer(), load=_whole), Value(sa.BigInteger(), load=_whole)
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


def _column(name: str, kind: Any, *more: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *more, **{"nullable": False, **options})


def _columns(kind: Any, *names: str, **options: Any) -> list[Column[Any]]:
    return [_column(name, kind, **options) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return _columns(kind, *names, nullable=True)


def _id() -> Column[Any]:
    return Column("id", Whole, primary_key=True)


def _session(**options: Any) -> Column[Any]:
    return _column("session_id", Whole, sa.ForeignKey("session.id", ondelete="CASCADE"), **options)


def _key(table: str, *names: str) -> list[Any]:
    """Columns that are the key of another table's row, and go with it."""
    reference = sa.ForeignKeyConstraint(names, [f"{table}.{name}" for name in names], ondelete="CASCADE")
    return [*_columns(Whole, *names, primary_key=True), reference]


_EXPERIMENT = ("session_id", "number")
HASHES = ("model_hash", "tokenizer_hash", "template_hash")


def _generation() -> list[Column[Any]]:
    """The long parts of what a model said."""
    forms = {"messages": "messages", "completion": "text", "token_ids": "ids", "logprobs": "reals"}
    return [_column(name, _packed(form), nullable=True) for name, form in forms.items()]


# ---------------------------------------------------------------------- sessions and experiments
sessions = Table(
    "session",
    metadata,
    _id(),
    _column("tag", Verbatim, unique=True),
    *_columns(Verbatim, "branch", "folder", "policy", "executor", "base_commit", "incumbent", "task_json"),
    _column("state", _word(SessionState)),
    _column("reason", Words),
    *_optional(Whole, "pid", "max_experiments"),
    _column("incumbent_experiment", Whole),
    _column("seed", Big),
    _column("started_at", Time),
    *_optional(Time, "heartbeat_at"),
    _column("active_seconds", Real),
    *_optional(Real, "max_seconds", "max_usd"),
)

totals = Table(  # counters of a session. opened: numbers handed out; what follows: decided experiments
    "totals",
    metadata,
    _session(primary_key=True),
    *_columns(Whole, "opened", "experiments", "keeps", "discards", "crashes", "checks_failed", "aborted"),
    *_columns(Real, "usd", "gpu_s"),
    *_columns(Big, "tokens_in", "tokens_out"),
)

segments = Table(  # first: number of its first experiment
    "segment",
    metadata,
    _session(primary_key=True),
    _column("number", Whole, primary_key=True),
    _column("first", Whole),
    _column("fingerprint", Verbatim),
    *_columns(Words, "reason", "hardware"),
    _column("started_at", Time),
)

# status and what follows are NULL until it is decided. attempt: of its current proposal; gpu_s: of all its runs
experiments = Table(
    "experiment",
    metadata,
    _session(primary_key=True),
    _column("number", Whole, primary_key=True),
    _column("segment", Whole),
    _column("phase", _word(Phase)),
    *_optional(_word(Status), "status"),
    *_optional(_word(Label), "label"),
    *_optional(Real, "value", "delta", "confidence", "sigma", "reward", "overhead_ms"),
    _column("gpu_s", Real),
    *_optional(Whole, "attempt"),
    _column("started_at", Time),
    *_optional(Time, "finished_at"),
    _column("parent", Verbatim),
    *_optional(Verbatim, "commit_sha"),
    *_optional(Metrics, "metrics"),
    *_optional(Words, "reason"),
    Index("ix_experiment_value", "session_id", "segment", "value", "number"),
    Index("ix_experiment_status", "session_id", "status", "number"),
    Index("ix_experiment_commit", "session_id", "commit_sha"),
)

# One for each attempt. usd: NULL when the price is unknown. censored: the reward rests on a forecast
proposals = Table(
    "proposal",
    metadata,
    *_key("experiment", *_EXPERIMENT),
    _column("attempt", Whole, primary_key=True),
    *_columns(Words, "policy", "role", "adapter", "hypothesis", "description", "state_id"),
    _column("round_id", Words, index=True),
    _column("code_hash", Verbatim),
    *_optional(Verbatim, "parent", "reward_formula"),
    *_optional(Real, "expected_delta", "usd", "reward"),
    *_columns(Big, "tokens_in", "tokens_out"),
    _column("seconds", Real),
    _column("censored", sa.Boolean),
    *_optional(Words, *HASHES, "generation_adapter"),
    *_optional(Json, "reward_parts", "sampling", "changes", "asi"),
    Index("ix_proposal_code_hash", "session_id", "code_hash", "number"),
)

proposal_bodies = Table(
    "proposal_body",
    metadata,
    *_key("proposal", *_EXPERIMENT, "attempt"),
    _column("diff", _packed("text")),
    _column("files", _packed("files")),
    *_generation(),
)

asi = Table(
    "asi",
    metadata,
    *_key("experiment", *_EXPERIMENT),
    *_columns(Words, "hypothesis", "arch_change", "result", "next_action_hint"),
    *_optional(Json, "extra"),
)

# program: number of the experiment whose commit ran, NULL: its own. attempt: of the proposal when it ran
runs = Table(
    "run",
    metadata,
    _id(),
    *_columns(Whole, "session_id", "number", "run_index"),
    _column("seed", Big),
    *_optional(Whole, "program", "exit_code"),
    _column("attempt", Whole, server_default=sa.text("0")),
    _column("started_at", Time),
    *_optional(Time, "finished_at"),
    _column("label", _word(Label)),
    *_optional(Real, "value"),
    _column("duration_s", Real),
    *_columns(Words, "tier", "host", "device", "detail"),
    *_optional(Metrics, "metrics"),
    *_optional(Stages, "stages"),
    *_optional(_packed("curve"), "curve"),
    sa.ForeignKeyConstraint(_EXPERIMENT, ["experiment.session_id", "experiment.number"], ondelete="CASCADE"),
    sa.UniqueConstraint("session_id", "number", "run_index"),
)

tallies = Table(  # counters of decided experiments by role and label; reward: the sum of theirs
    "tally",
    metadata,
    _session(primary_key=True),
    _column("role", Words, primary_key=True),
    _column("label", _word(Label), primary_key=True),
    *_columns(Whole, "decided", "keeps"),
    _column("reward", Real),
)

visits = Table("visit", metadata, *_key("experiment", *_EXPERIMENT), _column("visits", Whole))

abort_checks = Table(
    "look",
    metadata,
    _id(),
    _column("run_id", Whole, sa.ForeignKey("run.id", ondelete="CASCADE"), index=True),
    _column("progress", Real),
    *_optional(Real, "forecast", "probability"),
    *_optional(Json, "details"),
)

abort_memories = Table(  # of the latest segment; state: as of ``number``
    "abort_memory",
    metadata,
    _session(primary_key=True),
    *_columns(Whole, "segment", "number"),
    *_optional(Json, "figures"),
    *_optional(_packed("json"), "state"),
)

notes = Table(  # seen_in: the experiment whose prompt carried it
    "note",
    metadata,
    _id(),
    _session(),
    _column("text", Words),
    _column("created_at", Time),
    *_optional(Whole, "seen_in"),
    Index("ix_note_unseen", "session_id", "seen_in"),
)

controls = Table(
    "control_request",
    metadata,
    _id(),
    _session(),
    _column("kind", Verbatim),
    _column("created_at", Time),
    _column("taken", sa.Boolean),
    Index("ix_control_request_pending", "session_id", "taken"),
)

events = Table(
    "event",
    metadata,
    _id(),
    _session(),
    _column("kind", Verbatim),
    _column("at", Time),
    *_optional(Whole, "experiment"),
    _column("message", Words),
    *_optional(Json, "data"),
    Index("ix_event_session", "session_id", "id"),
)

# ---------------------------------------------------------------------- what models answered and learned
answers = Table(  # usable or not, in the order of their coming. What is spent in a day is read off the index
    "answer",
    metadata,
    *_key("experiment", *_EXPERIMENT),
    _column("answer_index", Whole, primary_key=True),
    _column("attempt", Whole),
    _column("at", Time),
    *_optional(Real, "usd"),
    *_columns(Big, "tokens_in", "tokens_out"),
    _column("seconds", Real),
    *_columns(Words, "model", "form", "finish", "error"),
    *_optional(Words, *HASHES, "adapter"),
    *_optional(Json, "sampling"),
    Index("ix_answer_spent", "at", "usd"),
)

# shared: so many messages are those of the answer before it (a question asked again goes on from that one)
answer_bodies = Table(
    "answer_body", metadata, *_key("answer", *_EXPERIMENT, "answer_index"), _column("shared", Whole), *_generation()
)

learner_runs = Table(  # session_id is NULL where it learned across sessions
    "learner_run",
    metadata,
    _id(),
    _session(index=True, nullable=True),
    *_columns(Verbatim, "algo", "mode"),
    _column("status", _word(LearnerStatus)),
    _column("started_at", Time),
    *_optional(Time, "finished_at"),
    *_columns(Whole, "trajectories", "steps"),
    *_optional(Json, "config", "metrics"),
    _column("detail", Words),
)

policy_versions = Table(  # adapter_path: name of its folder; adapter_hash: over all of its files
    "policy_version",
    metadata,
    _id(),
    _session(index=True, nullable=True),
    _column("learner_run_id", Whole, sa.ForeignKey("learner_run.id", ondelete="SET NULL"), nullable=True),
    _column("parent_id", Whole, sa.ForeignKey("policy_version.id", ondelete="SET NULL"), nullable=True),
    _column("version", Verbatim, unique=True),
    _column("status", _word(VersionStatus)),
    *_columns(Verbatim, "adapter_path", "adapter_hash"),
    *_optional(Verbatim, *HASHES),
    _column("created_at", Time),
    *_optional(Time, "promoted_at"),
    *_optional(Json, "metrics"),
    _column("reason", Words, server_default=sa.text("''")),
)


def columns(table: Table, *without: str) -> Sequence[Column[Any]]:
    """The columns of a table but for some."""
    return [column for column in table.c if column.name not in without]

"""The tables of the journal. ``migrations/`` creates them (a test holds the two together).

Their column types are the boundary of the database: what is written is cleaned of what no database can hold and
redacted, what is read is checked, long values are compressed (``codec``). Times are integer microseconds of UTC since
1970, free-form values JSON. Constraints get names, so that migrations can speak of them.

Rows of an experiment carry its key (session_id, number), so that a step never looks up another id. What is read often
(experiment, proposal) is kept apart from what is long (proposal_body); sums over a session are counters (``totals``,
``tally``) that change together with what they count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
class Time(TypeDecorator[datetime]):
    """A UTC datetime, stored as integer microseconds since 1970; naive datetimes are refused."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a time zone cannot be stored: {value!r}")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + timedelta(microseconds=_checked(value, int))


class Words(TypeDecorator[str]):
    """Text that people or models wrote: cleaned of what a database cannot hold, and redacted."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _checked(value, str)


class Verbatim(Words):
    """Text that stays what it is: names, hashes, and the task."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else codec.text(value)


class Word(Verbatim):
    """A word of ours, one of an enumeration."""

    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.kind(value)


class Whole(TypeDecorator[int]):
    """A whole number."""

    impl = sa.Integer
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(_checked(value, int, Decimal))


class Big(Whole):
    """A whole number of 64 bits."""

    impl = sa.BigInteger
    cache_ok = True


class Real(TypeDecorator[float]):
    """A number; one that is not finite is stored as NULL."""

    impl = sa.Float(53)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return codec.finite(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        return None if value is None else float(_checked(value, int, float))


class Json(TypeDecorator[Any]):
    """A JSON object or list (``kind``), redacted; an empty one is NULL."""

    impl = sa.JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: type = dict) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if not value:
            return None
        return redacted(dict(value) if isinstance(value, Mapping) else list(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return self.kind() if value is None else _checked(value, self.kind)


class Metrics(Json):
    """Figures by name, also those that are not finite."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return codec.metrics(super().process_result_value(value, dialect))


class Packed(TypeDecorator[Any]):
    """A long value, compressed; ``form``: how, see ``codec.FORMS``. Texts, answers and messages are redacted before."""

    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    @property
    def verbatim(self) -> bool:
        """Numbers, and the files of a proposal: they stay what is committed."""
        return self.form not in ("text", "json", "messages")

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        return codec.FORMS[self.form][0](value if self.verbatim else redacted(value))

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else codec.FORMS[self.form][1](value)


def _checked(value: Any, *kinds: type) -> Any:
    """A value of the database, which anybody may have changed. Raises TypeError."""
    if not isinstance(value, kinds):
        raise TypeError(f"{type(value).__name__} in the place of {kinds[0].__name__}")
    return value


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
    return [_column(name, Packed(form), nullable=True) for name, form in forms.items()]


# ---------------------------------------------------------------------- sessions and experiments
sessions = Table(
    "session",
    metadata,
    _id(),
    _column("tag", Verbatim, unique=True),
    *_columns(Verbatim, "branch", "folder", "policy", "executor", "base_commit", "incumbent", "task_json"),
    _column("state", Word(SessionState)),
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
    _column("phase", Word(Phase)),
    *_optional(Word(Status), "status"),
    *_optional(Word(Label), "label"),
    *_optional(Real, "value", "delta", "confidence", "sigma", "reward", "overhead_ms"),
    _column("gpu_s", Real),
    *_optional(Whole, "attempt"),
    _column("started_at", Time),
    *_optional(Time, "finished_at"),
    _column("parent", Verbatim),
    *_optional(Verbatim, "commit_sha"),
    *_optional(Metrics(), "metrics"),
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
    *_optional(Json(), "reward_parts", "sampling", "changes", "asi"),
    Index("ix_proposal_code_hash", "session_id", "code_hash", "number"),
)

proposal_bodies = Table(
    "proposal_body",
    metadata,
    *_key("proposal", *_EXPERIMENT, "attempt"),
    _column("diff", Packed("text")),
    _column("files", Packed("files")),
    *_generation(),
)

asi = Table(
    "asi",
    metadata,
    *_key("experiment", *_EXPERIMENT),
    *_columns(Words, "hypothesis", "arch_change", "result", "next_action_hint"),
    *_optional(Json(), "extra"),
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
    _column("label", Word(Label)),
    *_optional(Real, "value"),
    _column("duration_s", Real),
    *_columns(Words, "tier", "host", "device", "detail"),
    *_optional(Metrics(), "metrics"),
    *_optional(Json(list), "stages"),
    *_optional(Packed("curve"), "curve"),
    sa.ForeignKeyConstraint(_EXPERIMENT, ["experiment.session_id", "experiment.number"], ondelete="CASCADE"),
    sa.UniqueConstraint("session_id", "number", "run_index"),
)

tallies = Table(  # counters of decided experiments by role and label; reward: the sum of theirs
    "tally",
    metadata,
    _session(primary_key=True),
    _column("role", Words, primary_key=True),
    _column("label", Word(Label), primary_key=True),
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
    *_optional(Json(), "details"),
)

abort_memories = Table(  # of the latest segment; state: as of ``number``
    "abort_memory",
    metadata,
    _session(primary_key=True),
    *_columns(Whole, "segment", "number"),
    *_optional(Json(), "figures"),
    *_optional(Packed("json"), "state"),
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
    *_optional(Json(), "data"),
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
    *_optional(Json(), "sampling"),
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
    _column("status", Word(LearnerStatus)),
    _column("started_at", Time),
    *_optional(Time, "finished_at"),
    *_columns(Whole, "trajectories", "steps"),
    *_optional(Json(), "config", "metrics"),
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
    _column("status", Word(VersionStatus)),
    *_columns(Verbatim, "adapter_path", "adapter_hash"),
    *_optional(Verbatim, *HASHES),
    _column("created_at", Time),
    *_optional(Time, "promoted_at"),
    *_optional(Json(), "metrics"),
    _column("reason", Words, server_default=sa.text("''")),
)


def columns(table: Table, *without: str) -> Sequence[Column[Any]]:
    """The columns of a table but for some."""
    return [column for column in table.c if column.name not in without]

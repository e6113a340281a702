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
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)

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

    impl = BigInteger
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

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _checked(value, str)


class Verbatim(Words):
    """Text that stays what it is: names, hashes, words of ours, and the task."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else codec.text(value)


class Whole(TypeDecorator[int]):
    """A whole number."""

    impl = Integer
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(_checked(value, int, Decimal))


class Big(Whole):
    """A whole number of 64 bits."""

    impl = BigInteger
    cache_ok = True


class Real(TypeDecorator[float]):
    """A number; one that is not finite is stored as NULL."""

    impl = Float(53)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return codec.finite(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        return None if value is None else float(_checked(value, int, float))


class Json(TypeDecorator[Any]):
    """A JSON object or list, redacted; an empty one is NULL. ``kind``: what it must be."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: type = dict) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if not value:
            return None
        return redacted(dict(value) if isinstance(value, Mapping) else list(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else _checked(value, self.kind)


class Packed(TypeDecorator[Any]):
    """A long value, compressed; ``form``: how, see ``codec.FORMS``. Texts, answers and messages are redacted before."""

    impl = LargeBinary
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
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _column(name: str, kind: Any, *more: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *more, **{"nullable": False, **options})


def _optional(name: str, kind: Any, *more: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *more, nullable=True, **options)


def _id() -> Column[Any]:
    return Column("id", Whole, primary_key=True)


def _session(**options: Any) -> Column[Any]:
    return _column("session_id", Whole, ForeignKey("session.id", ondelete="CASCADE"), **options)


def _key(table: str, *names: str) -> list[Any]:
    """Columns that are the key of another table's row, and go with it."""
    columns: list[Any] = [_column(name, Whole, primary_key=True) for name in names]
    return [*columns, ForeignKeyConstraint(names, [f"{table}.{name}" for name in names], ondelete="CASCADE")]


_EXPERIMENT = ("session_id", "number")

# ---------------------------------------------------------------------- sessions and experiments
sessions = Table(
    "session",
    metadata,
    _id(),
    _column("tag", Verbatim, unique=True),
    _column("branch", Verbatim),
    _column("folder", Verbatim),
    _column("state", Verbatim),
    _column("reason", Words),
    _optional("pid", Whole),
    _column("policy", Verbatim),
    _column("executor", Verbatim),
    _column("base_commit", Verbatim),
    _column("incumbent", Verbatim),
    _column("incumbent_experiment", Whole),
    _column("seed", Big),
    _column("started_at", Time),
    _optional("heartbeat_at", Time),
    _column("active_seconds", Real),
    _optional("max_experiments", Whole),
    _optional("max_seconds", Real),
    _optional("max_usd", Real),
    _column("task_json", Verbatim),
)

totals = Table(  # counters of a session. opened: numbers handed out; what follows: decided experiments
    "totals",
    metadata,
    _session(primary_key=True),
    *(_column(n, Whole) for n in ("opened", "experiments", "keeps", "discards", "crashes", "checks_failed", "aborted")),
    _column("usd", Real),
    _column("tokens_in", Big),
    _column("tokens_out", Big),
    _column("gpu_s", Real),
)

segments = Table(  # first: number of its first experiment
    "segment",
    metadata,
    _session(primary_key=True),
    _column("number", Whole, primary_key=True),
    _column("first", Whole),
    _column("fingerprint", Verbatim),
    _column("reason", Words),
    _column("hardware", Words),
    _column("started_at", Time),
)

# status and what follows are NULL until it is decided. attempt: of its current proposal; gpu_s: of all its runs
experiments = Table(
    "experiment",
    metadata,
    _session(primary_key=True),
    _column("number", Whole, primary_key=True),
    _column("segment", Whole),
    _column("phase", Verbatim),
    _optional("status", Verbatim),
    _optional("label", Verbatim),
    *(_optional(name, Real) for name in ("value", "delta", "confidence", "sigma", "reward", "overhead_ms")),
    _column("gpu_s", Real),
    _optional("attempt", Whole),
    _column("started_at", Time),
    _optional("finished_at", Time),
    _column("parent", Verbatim),
    _optional("commit_sha", Verbatim),
    _optional("metrics", Json()),
    _optional("reason", Words),
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
    _column("policy", Words),
    _column("role", Words),
    _column("adapter", Words),
    _optional("parent", Verbatim),
    _column("code_hash", Verbatim),
    _optional("expected_delta", Real),
    _optional("usd", Real),
    _column("tokens_in", Big),
    _column("tokens_out", Big),
    _column("seconds", Real),
    _column("state_id", Words),
    _column("round_id", Words, index=True),
    _optional("reward", Real),
    _optional("reward_parts", Json()),
    _optional("reward_formula", Verbatim),
    _column("censored", Boolean),
    _optional("model_hash", Words),
    _optional("tokenizer_hash", Words),
    _optional("template_hash", Words),
    _optional("generation_adapter", Words),
    _optional("sampling", Json()),
    _optional("changes", Json()),
    _optional("asi", Json()),
    _column("hypothesis", Words),
    _column("description", Words),
    Index("ix_proposal_code_hash", "session_id", "code_hash", "number"),
)

proposal_bodies = Table(
    "proposal_body",
    metadata,
    *_key("proposal", *_EXPERIMENT, "attempt"),
    _column("diff", Packed("text")),
    _column("files", Packed("files")),
    _optional("messages", Packed("messages")),
    _optional("completion", Packed("text")),
    _optional("token_ids", Packed("ids")),
    _optional("logprobs", Packed("reals")),
)

asi = Table(
    "asi",
    metadata,
    *_key("experiment", *_EXPERIMENT),
    *(_column(name, Words) for name in ("hypothesis", "arch_change", "result", "next_action_hint")),
    _optional("extra", Json()),
)

# program: number of the experiment whose commit ran, NULL: its own. attempt: of the proposal when it ran
runs = Table(
    "run",
    metadata,
    _id(),
    _column("session_id", Whole),
    _column("number", Whole),
    _column("run_index", Whole),
    _column("seed", Big),
    _optional("program", Whole),
    _column("attempt", Whole, server_default=text("0")),
    _column("started_at", Time),
    _optional("finished_at", Time),
    _column("label", Verbatim),
    _optional("value", Real),
    _column("duration_s", Real),
    _optional("exit_code", Whole),
    _column("tier", Words),
    _column("host", Words),
    _column("device", Words),
    _optional("metrics", Json()),
    _column("detail", Words),
    _optional("stages", Json(list)),
    _optional("curve", Packed("curve")),
    ForeignKeyConstraint(_EXPERIMENT, ["experiment.session_id", "experiment.number"], ondelete="CASCADE"),
    UniqueConstraint("session_id", "number", "run_index"),
)

tallies = Table(  # counters of decided experiments by role and label; reward: the sum of theirs
    "tally",
    metadata,
    _session(primary_key=True),
    _column("role", Words, primary_key=True),
    _column("label", Verbatim, primary_key=True),
    _column("decided", Whole),
    _column("keeps", Whole),
    _column("reward", Real),
)

visits = Table("visit", metadata, *_key("experiment", *_EXPERIMENT), _column("visits", Whole))

abort_checks = Table(
    "look",
    metadata,
    _id(),
    _column("run_id", Whole, ForeignKey("run.id", ondelete="CASCADE"), index=True),
    _column("progress", Real),
    _optional("forecast", Real),
    _optional("probability", Real),
    _optional("details", Json()),
)

abort_memories = Table(  # of the latest segment; state: as of ``number``
    "abort_memory",
    metadata,
    _session(primary_key=True),
    _column("segment", Whole),
    _column("number", Whole),
    _optional("figures", Json()),
    _optional("state", Packed("json")),
)

notes = Table(  # seen_in: the experiment whose prompt carried it
    "note",
    metadata,
    _id(),
    _session(),
    _column("text", Words),
    _column("created_at", Time),
    _optional("seen_in", Whole),
    Index("ix_note_unseen", "session_id", "seen_in"),
)

controls = Table(
    "control_request",
    metadata,
    _id(),
    _session(),
    _column("kind", Verbatim),
    _column("created_at", Time),
    _column("taken", Boolean),
    Index("ix_control_request_pending", "session_id", "taken"),
)

events = Table(
    "event",
    metadata,
    _id(),
    _session(),
    _column("kind", Verbatim),
    _column("at", Time),
    _optional("experiment", Whole),
    _column("message", Words),
    _optional("data", Json()),
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
    _optional("usd", Real),
    _column("tokens_in", Big),
    _column("tokens_out", Big),
    _column("seconds", Real),
    _column("model", Words),
    _column("form", Words),
    _column("finish", Words),
    _optional("model_hash", Words),
    _optional("tokenizer_hash", Words),
    _optional("template_hash", Words),
    _optional("adapter", Words),
    _optional("sampling", Json()),
    _column("error", Words),
    Index("ix_answer_spent", "at", "usd"),
)

# shared: so many messages are those of the answer before it (a question asked again goes on from that one)
answer_bodies = Table(
    "answer_body",
    metadata,
    *_key("answer", *_EXPERIMENT, "answer_index"),
    _column("shared", Whole),
    _optional("messages", Packed("messages")),
    _optional("completion", Packed("text")),
    _optional("token_ids", Packed("ids")),
    _optional("logprobs", Packed("reals")),
)

learner_runs = Table(  # session_id is NULL where it learned across sessions
    "learner_run",
    metadata,
    _id(),
    _session(index=True, nullable=True),
    _column("algo", Verbatim),
    _column("mode", Verbatim),
    _column("status", Verbatim),
    _column("started_at", Time),
    _optional("finished_at", Time),
    _column("trajectories", Whole),
    _column("steps", Whole),
    _optional("config", Json()),
    _optional("metrics", Json()),
    _column("detail", Words),
)

policy_versions = Table(  # adapter_path: name of its folder; adapter_hash: over all of its files
    "policy_version",
    metadata,
    _id(),
    _session(index=True, nullable=True),
    _optional("learner_run_id", Whole, ForeignKey("learner_run.id", ondelete="SET NULL")),
    _optional("parent_id", Whole, ForeignKey("policy_version.id", ondelete="SET NULL")),
    _column("version", Verbatim, unique=True),
    _column("status", Verbatim),
    _column("adapter_path", Verbatim),
    _column("adapter_hash", Verbatim),
    _optional("model_hash", Verbatim),
    _optional("tokenizer_hash", Verbatim),
    _optional("template_hash", Verbatim),
    _column("created_at", Time),
    _optional("promoted_at", Time),
    _optional("metrics", Json()),
    _column("reason", Words, server_default=text("''")),
)


def columns(table: Table, *without: str) -> Sequence[Column[Any]]:
    """The columns of a table but for some."""
    return [column for column in table.c if column.name not in without]

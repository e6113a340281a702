"""Types of columns and keys that the tables share; nothing in them is peculiar to SQLite.

Times are integer microseconds of UTC since 1970, text is cleaned of what no database can hold, free-form values are
JSON. Constraints get names, so that migrations can speak of them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from autoresearchd.store import codec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class UtcMicros(TypeDecorator[datetime]):
    """A UTC datetime, stored as integer microseconds since 1970; naive datetimes are refused."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Microseconds of a timezone-aware datetime."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a time zone cannot be stored: {value!r}")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """The datetime of stored microseconds, in UTC."""
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class SafeText(TypeDecorator[str]):
    """Text without what a database cannot hold: much of it was written by models (see ``codec.text``)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text, cleaned."""
        return None if value is None else codec.text(value)


class Base(DeclarativeBase):
    """What all tables share: names of constraints (so that migrations can name them) and types of annotations."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy, not an attribute of a table
        datetime: UtcMicros,
        str: SafeText,
        int: Integer,
        float: Float(53),
        bool: Boolean,
        bytes: LargeBinary,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


def session_key(**more: Any) -> Mapped[int]:
    """A column that names a session and goes with it."""
    return mapped_column(ForeignKey("session.id", ondelete="CASCADE"), **more)


def experiment_key() -> ForeignKeyConstraint:
    """Columns ``session_id`` and ``number`` name an experiment, and the row goes with it."""
    return ForeignKeyConstraint(
        ["session_id", "number"], ["experiment.session_id", "experiment.number"], ondelete="CASCADE"
    )


def core_table(table: type[DeclarativeBase]) -> Table:
    """The table behind a class, for statements that are made once and run with values by name."""
    found = table.__table__
    assert isinstance(found, Table)
    return found

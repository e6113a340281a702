"""Reading what can still be read of a damaged SQLite file: row by row, around the pages that are broken.

The idea is that of SQLite's ``.recover`` (https://www.sqlite.org/recovery.html), with the tables known beforehand: rows
are asked for in the order of their row ids, and where a page cannot be read the next readable row is looked for behind
it. SQLite keeps no checksums, so each value is held against the type and the words of its column before it is believed.
The damaged file itself is not opened: SQLite would change it.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Boolean, Column, Float, Integer, LargeBinary, Table

from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.version import LearnerStatus, VersionStatus
from autoresearchd.store.columns import UtcMicros
from autoresearchd.store.inflate import inflate
from autoresearchd.store.tables import Base

Values = dict[str, Any]
"""A row by its columns, as SQLite holds it."""

WAL = "-wal"
_SIDE_FILES = ("", WAL)
_STEPS_ONE_BY_ONE = 256
_FARTHEST = 1 << 40
_INTERIOR = 5
_TOO_MANY = 10_000_000
_LATEST_MICROS = 4_000_000_000_000_000  # in the year 2096


@dataclass
class Salvage:
    """Rows that were read and look right, by table; and how many places could not be read, or held nonsense."""

    rows: dict[str, dict[int, Values]] = field(default_factory=dict)
    unreadable: int = 0
    rejected: int = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(len(found) for found in self.rows.values())


def salvage(database: Path, scratch: Path, sound: Path | None) -> Salvage:
    """All that can be read of a database and its WAL.

    Args:
        database: the damaged file; it may be missing.
        scratch: an empty folder for a copy to work on.
        sound: a sound database of the same revision: its table of tables, which says where each begins, takes the
            place of one that is broken.
    """
    best = Salvage()
    if not database.is_file() or database.stat().st_size == 0:
        return best
    for attempt in (_as_it_is, _without_wal, _with_schema):
        for left in scratch.iterdir():
            left.unlink()
        copy = attempt(database, scratch / "copy.db", sound)
        found = _read(copy) if copy else Salvage()
        if found.count > best.count:
            best = found
        if best.rows.get("session") and best.unreadable == 0:
            break
    return best


# ---------------------------------------------------------------------- copies to read from
def _as_it_is(database: Path, copy: Path, _sound: Path | None) -> Path:
    for suffix in _SIDE_FILES:
        source = database.with_name(database.name + suffix)
        if source.is_file():
            shutil.copyfile(source, copy.with_name(copy.name + suffix))
    return copy


def _without_wal(database: Path, copy: Path, _sound: Path | None) -> Path:
    shutil.copyfile(database, copy)
    return copy


def _with_schema(database: Path, copy: Path, sound: Path | None) -> Path | None:
    """Tables begin at the same pages in all databases of a revision: they are made in one order, and never moved."""
    if sound is None:
        return None
    data = sound.read_bytes()
    size = int.from_bytes(data[16:18], "big")
    size = 65536 if size == 1 else size
    shutil.copyfile(database, copy)
    pages = copy.stat().st_size // size
    with copy.open("r+b") as stream:
        for number in _schema_pages(data, size, 1):
            page = bytearray(data[(number - 1) * size : number * size])
            if number > pages:
                return None
            if number == 1:
                page[18:20] = b"\x01\x01"  # no WAL
                page[28:32] = pages.to_bytes(4, "big")
                page[32:40] = bytes(8)  # no free pages are known of
            stream.seek((number - 1) * size)
            stream.write(page)
    return copy


def _schema_pages(data: bytes, size: int, number: int) -> list[int]:
    """Pages of the table of tables, from its root (https://www.sqlite.org/fileformat2.html#b_tree_pages)."""
    start = (number - 1) * size
    header = start + (100 if number == 1 else 0)
    if data[header] != _INTERIOR:
        return [number]
    cells = int.from_bytes(data[header + 3 : header + 5], "big")
    children = [int.from_bytes(data[header + 8 : header + 12], "big")]
    for at in range(header + 12, header + 12 + 2 * cells, 2):
        cell = start + int.from_bytes(data[at : at + 2], "big")
        children.append(int.from_bytes(data[cell : cell + 4], "big"))
    return [number, *(page for child in children for page in _schema_pages(data, size, child))]


# ---------------------------------------------------------------------- reading around damage
def _read(copy: Path) -> Salvage:
    found = Salvage()
    with closing(sqlite3.connect(copy, timeout=5.0)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        db.row_factory = sqlite3.Row
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            db.execute("PRAGMA cell_size_check=ON")
            db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except sqlite3.Error:
            found.unreadable += 1
            return found
        for table in Base.metadata.sorted_tables:
            good = found.rows.setdefault(table.name, {})
            for rowid, values in _rows(db, table, found):
                checked = _believable(table, rowid, values)
                if checked is None:
                    found.rejected += 1
                else:
                    good[rowid] = checked
    return found


def _rows(db: sqlite3.Connection, table: Table, found: Salvage) -> Iterator[tuple[int, Values]]:
    """Rows in the order of their row ids; each gap of unreadable ones is counted."""
    # The name is one of ours, from the tables' own definition.
    query = f'SELECT rowid AS "rowid!", * FROM "{table.name}" NOT INDEXED WHERE rowid >= ? ORDER BY rowid'  # noqa: S608
    begin, read = 0, 0
    while read < _TOO_MANY:
        try:
            for row in db.execute(query, (begin,)):
                rowid, values = _split(row)
                if rowid < begin:
                    break
                begin, read = rowid + 1, read + 1
                yield rowid, values
            else:
                return
        except sqlite3.Error:
            pass
        # The driver reads one row ahead: the one before the broken place has yet to be asked for by itself.
        found.unreadable += 1
        last = _first(db, query, begin)
        if last is None:
            following = _next_readable(db, query, begin)
            last = None if following is None else _first(db, query, following)
        if last is None:
            return
        begin, read = last[0] + 1, read + 1
        yield last


def _split(row: sqlite3.Row) -> tuple[int, Values]:
    values = dict(row)
    rowid = values.pop("rowid!")
    return (rowid if isinstance(rowid, int) else -1), values


def _first(db: sqlite3.Connection, query: str, begin: int) -> tuple[int, Values] | None:
    """The first row from a row id on; None where there is none, or it cannot be reached."""
    try:
        row = db.execute(query + " LIMIT 1", (begin,)).fetchone()
    except sqlite3.Error:
        return None
    rowid, values = (-1, {}) if row is None else _split(row)
    return (rowid, values) if rowid >= begin else None


def _next_readable(db: sqlite3.Connection, query: str, begin: int) -> int | None:
    """The first row id from which on something can be read again: one by one at first, then in leaps."""
    for rowid in range(begin, begin + _STEPS_ONE_BY_ONE):
        if _first(db, query, rowid) is not None:
            return rowid
    low, step = begin + _STEPS_ONE_BY_ONE - 1, _STEPS_ONE_BY_ONE
    while _first(db, query, low + step) is None:
        low += step
        step *= 2
        if step > _FARTHEST:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _first(db, query, middle) is not None else (middle, high)
    return high


# ---------------------------------------------------------------------- believing a row
def _believable(table: Table, rowid: int, values: Mapping[str, Any]) -> Values | None:
    """The row, cut to the columns that are known here; None when a value cannot be what was written."""
    kept: Values = {}
    for column in table.columns:
        if column.name not in values:
            if column.nullable or column.server_default is not None:  # an older version wrote the file
                continue
            return None
        value = values[column.name]
        if value is None:
            if not column.nullable:
                return None
        elif not _fits(column, value):
            return None
        kept[column.name] = value
    check = _WORDS.get(table.name)
    return kept if check is None or check(kept, rowid) else None


def _fits(column: Column[Any], value: Any) -> bool:
    kind = column.type
    if isinstance(kind, UtcMicros):
        return isinstance(value, int) and 0 <= value < _LATEST_MICROS
    if isinstance(kind, Boolean):
        return value in (0, 1)
    if isinstance(kind, Integer):
        return isinstance(value, int)
    if isinstance(kind, Float):
        return isinstance(value, (int, float)) and value == value and abs(value) != float("inf")
    if isinstance(kind, LargeBinary):
        return isinstance(value, bytes) and _unpacks(value)
    if not isinstance(value, str) or not _is_text(value):
        return False
    return not isinstance(kind, JSON) or _is_json(value)


def _unpacks(blob: bytes) -> bool:
    try:
        inflate(blob)
    except (ValueError, zlib.error):
        return False
    return True


def _is_text(value: str) -> bool:
    return value.isascii() or not any(0xD800 <= ord(c) <= 0xDFFF for c in value)


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _session(row: Values, _rowid: int) -> bool:
    return bool(row["tag"]) and row["state"] in set(SessionState) and _is_json(row["task_json"])


def _totals(row: Values, _rowid: int) -> bool:
    return all(row[name] >= 0 for name in row)


def _experiment(row: Values, rowid: int) -> bool:
    """A number is never larger than the rows before it: each experiment got the next row."""
    decided = row["phase"] == Phase.DECIDED
    return (
        0 <= row["number"] < rowid
        and row["segment"] >= 0
        and row["phase"] in set(Phase)
        and (row["status"] in set(Status) and row["label"] in set(Label) if decided else row["status"] is None)
    )


def _run(row: Values, _rowid: int) -> bool:
    return row["label"] in set(Label) and row["number"] >= 0 and row["run_index"] >= 0 and row.get("attempt", 0) >= 0


def _answer(row: Values, _rowid: int) -> bool:
    names = ("number", "answer_index", "attempt", "tokens_in", "tokens_out")
    return all(row[name] >= 0 for name in names) and (row.get("usd") or 0.0) >= 0


def _visit(row: Values, _rowid: int) -> bool:
    return bool(row["visits"] > 0)


def _version(row: Values, _rowid: int) -> bool:
    return bool(row["version"]) and row["status"] in set(VersionStatus)


def _learner_run(row: Values, _rowid: int) -> bool:
    return row["status"] in set(LearnerStatus) and row["trajectories"] >= 0 and row["steps"] >= 0


_WORDS: dict[str, Callable[[Values, int], bool]] = {
    "session": _session,
    "totals": _totals,
    "experiment": _experiment,
    "run": _run,
    "answer": _answer,
    "visit": _visit,
    "policy_version": _version,
    "learner_run": _learner_run,
}

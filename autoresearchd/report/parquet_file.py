"""Rows as a Parquet file and back, through pyarrow, which need not be installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.report.output_file import whole_file

_ABOUT = b"autoresearchd"


def write_rows(
    columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], target: Path, about: Mapping[str, str] | None = None
) -> None:
    """Write rows; ``target`` is there as a whole or not at all. MissingCapability: there is no pyarrow.

    columns: with their kinds: text, whole, real, flag, time (UTC), wholes and reals (lists). about: of all rows.
    """
    pa, pq = _pyarrow("write")
    kinds = {
        "text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_(),
        "wholes": pa.list_(pa.int64()), "reals": pa.list_(pa.float64()), "time": pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    metadata = {_ABOUT: json.dumps(dict(about or {})).encode()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata=metadata)
    with whole_file(target) as part:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), part)


def read_rows(source: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """What ``write_rows`` was given. MissingCapability: there is no pyarrow; UsageError: it is no such file."""
    pa, pq = _pyarrow("read")
    try:
        table = pq.read_table(source)
        about = json.loads((table.schema.metadata or {}).get(_ABOUT, b"{}"))
        return {str(name): str(value) for name, value in about.items()}, table.to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"{source} cannot be read as Parquet: {error}", hint="export it again") from error


def _pyarrow(verb: str) -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        what = f"to {verb} Parquet needs pyarrow, which is not installed"
        raise MissingCapability(what, hint="pip install pyarrow") from error
    return pa, pq

"""Rows as a Parquet file, through pyarrow, which need not be installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import MissingCapability


def write_rows(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], target: Path) -> None:
    """Write rows; ``target`` is there as a whole or not at all. MissingCapability: there is no pyarrow.

    columns: with their kinds: text, whole, real, flag, time (UTC), wholes and reals (lists).
    """
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        what = "to write Parquet needs pyarrow, which is not installed"
        raise MissingCapability(what, hint="pip install pyarrow") from error
    kinds = {
        "text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_(),
        "wholes": pa.list_(pa.int64()), "reals": pa.list_(pa.float64()), "time": pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    part = target.with_name(f"{target.name}.part")
    try:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)

"""How values that have no column type of their own are stored: JSON that stays JSON, text, compressed blobs, curves.

What a model wrote arrives here unchecked: lone surrogates, NUL characters, NaN, objects that JSON does not know, and
nesting without end must not make a row that cannot be written, or be read, by any database.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

from autoresearchd.domain.cleaning import storable
from autoresearchd.domain.experiment import CurvePoint

MOST_BYTES = 64 * 2**20
"""The largest values are the files of a proposal: a few of at most 1 MiB each, six times as long where all is escaped.

A few bytes of a database could otherwise stand for gigabytes.
"""

UNREADABLE = (
    ValueError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error, struct.error,
)  # fmt: skip
"""What reading a value may raise that was never written like that."""

_MAX_DEPTH = 64
_MAX_INT = 1 << 63  # Python refuses to write very long integers in decimal, and other readers take 64 bits at most
_LEVEL = 6
_MOST_PARTS = MOST_BYTES // 8
"""Of a JSON value: an empty list takes two bytes there, and thirty times as much in memory."""
_CURVE_HEADER = struct.Struct("<BI")
_CURVE_VERSION = 1
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def finite(value: float | None) -> float | None:
    """``value``, or None where it is not a finite number: databases disagree about NaN and JSON has none."""
    return float(value) if value is not None and math.isfinite(value) else None


def jsonable(value: Any, depth: int = 0) -> Any:
    """``value`` as strict JSON can say it: NaN and infinities become text, unknown objects their ``str``."""
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < _MAX_INT else hex(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {storable(str(k)): jsonable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(v, depth + 1) for v in value]
    return storable(str(value))


def dumps(value: Any) -> str:
    """Strict, compact JSON of any value (see ``jsonable``)."""
    return json.dumps(jsonable(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))


def metrics(stored: Mapping[str, Any] | None) -> dict[str, float]:
    """Metrics as they were before they were stored: NaN and infinities are numbers again."""
    return {name: _NON_FINITE.get(v, math.nan) if isinstance(v, str) else v for name, v in (stored or {}).items()}


def inflate(blob: bytes) -> bytes:
    """What was compressed; ValueError or zlib.error where that is damaged, cut off, or too long to be ours."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(blob, MOST_BYTES)
    if not unpacking.eof and (unpacking.unconsumed_tail or len(data) == MOST_BYTES):
        raise ValueError(f"a compressed value is longer than {MOST_BYTES:,} bytes")
    if not unpacking.eof:
        raise ValueError("a compressed value is cut off")
    return data


def pack_text(value: str) -> bytes:
    """Text, compressed."""
    return zlib.compress(storable(value).encode("utf-8"), _LEVEL)


def unpack_text(blob: bytes) -> str:
    """What ``pack_text`` was given."""
    return inflate(blob).decode("utf-8")


def pack_json(value: Any) -> bytes:
    """A JSON value, compressed."""
    return zlib.compress(dumps(value).encode("ascii"), _LEVEL)


def unpack_json(blob: bytes) -> Any:
    """What ``pack_json`` was given, as JSON sees it; ValueError where it is none, or has more parts than we write."""
    data = inflate(blob)
    if sum(map(data.count, (b"[", b"{", b","))) > _MOST_PARTS:
        raise ValueError(f"a JSON value has more than {_MOST_PARTS:,} parts")
    return json.loads(data)


@lru_cache(maxsize=64)
def unpack_messages(blob: bytes) -> tuple[Any, ...]:
    """Messages to a model; prompts that are the same share one in memory."""
    messages = unpack_json(blob)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TypeError("what was asked is no list of messages")
    return tuple(messages)


def pack_numbers(values: Sequence[float] | Sequence[int], kind: Literal["d", "q"]) -> bytes:
    """Numbers (``d``: floats, ``q``: 64-bit integers), as this machine has them (little-endian), compressed."""
    return zlib.compress(array(kind, values).tobytes(), _LEVEL)


def unpack_numbers(blob: bytes, kind: Literal["d", "q"]) -> tuple[Any, ...]:
    """What ``pack_numbers`` was given."""
    return tuple(array(kind, inflate(blob)))


def pack_curve(points: Sequence[CurvePoint]) -> bytes | None:
    """A learning curve, column by column (neighbours resemble each other, so it compresses well); None when empty."""
    if not points:
        return None
    numbers = array("d")
    for name in ("step", "loss", "progress", "seconds"):
        column = (getattr(point, name) for point in points)
        numbers.extend(math.nan if value is None else value for value in column)
    flags = bytes(p.validation for p in points)
    return zlib.compress(_CURVE_HEADER.pack(_CURVE_VERSION, len(points)) + numbers.tobytes() + flags, _LEVEL)


def unpack_curve(blob: bytes | None) -> tuple[CurvePoint, ...]:
    """What ``pack_curve`` was given."""
    if blob is None:
        return ()
    data = inflate(blob)
    version, count = _CURVE_HEADER.unpack_from(data)
    if version != _CURVE_VERSION:
        raise ValueError(f"a learning curve of the unknown form {version}")
    body, flags = data[_CURVE_HEADER.size :][: 32 * count], data[_CURVE_HEADER.size + 32 * count :]
    numbers = array("d", body)
    step, loss, progress, seconds = (numbers[i * count : (i + 1) * count] for i in range(4))
    return tuple(
        CurvePoint(s, x, None if math.isnan(p) else p, None if math.isnan(t) else t, bool(v))
        for s, x, p, t, v in zip(step, loss, progress, seconds, flags, strict=True)
    )


FORMS: dict[str, tuple[Callable[[Any], bytes | None], Callable[[bytes], Any]]] = {
    "text": (pack_text, unpack_text),
    "json": (pack_json, unpack_json),
    "messages": (pack_json, unpack_messages),
    "ids": (partial(pack_numbers, kind="q"), partial(unpack_numbers, kind="q")),
    "reals": (partial(pack_numbers, kind="d"), partial(unpack_numbers, kind="d")),
    "curve": (pack_curve, unpack_curve),
}
"""How long values are compressed, and read again."""

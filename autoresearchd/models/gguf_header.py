"""The chat template in the header of a GGUF file, without the package ``gguf``, which takes seconds to read it.

The format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_KEY = b"tokenizer.chat_template"
_STRING, _ARRAY = 8, 9
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Of the types of a fixed size."""
_LENGTH, _TYPE = struct.Struct("<Q"), struct.Struct("<I")
_MAX = 1_000_000


def gguf_template(path: Path) -> str | None:
    """The chat template, None where the file has none. Raises ValueError: it is no GGUF file; OSError."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _template(data)
        except (struct.error, OverflowError) as error:
            raise ValueError("its GGUF header is cut off") from error


def _template(data: mmap.mmap) -> str | None:
    if data[:4] != b"GGUF" or _TYPE.unpack_from(data, 4)[0] not in (2, 3):
        raise ValueError("it is no GGUF file of version 2 or 3")
    place = 24
    for _ in range(_LENGTH.unpack_from(data, 16)[0]):
        begins, place = place + 8, _after(data, place, _STRING)
        kind, place = _TYPE.unpack_from(data, place)[0], place + 4
        if kind == _STRING and data[begins : min(place - 4, begins + len(_KEY) + 1)] == _KEY:
            length = _LENGTH.unpack_from(data, place)[0]
            if length > _MAX:
                raise ValueError(f"its chat template has {length:,} bytes")
            return data[place + 8 : place + 8 + length].decode("utf-8")
        place = _after(data, place, kind)
    return None


def _after(data: mmap.mmap, place: int, kind: int) -> int:
    """Where a value ends that begins at ``place``; struct.error beyond the end of the file."""
    if kind == _STRING:
        return place + 8 + int(_LENGTH.unpack_from(data, place)[0])
    if kind != _ARRAY:
        if kind not in _BYTES:
            raise ValueError(f"its GGUF header has a value of the unknown type {kind}")
        return place + _BYTES[kind]
    inner: int = _TYPE.unpack_from(data, place)[0]
    count: int = _LENGTH.unpack_from(data, place + 4)[0]
    place += 12
    if inner in _BYTES:
        return place + count * _BYTES[inner]
    if inner != _STRING:
        raise ValueError(f"its GGUF header has an array of the type {inner}")
    for _ in range(count):
        place = _after(data, place, _STRING)
    return place

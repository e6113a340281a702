"""Values of a database that anybody may have changed: unpacked up to a limit, and what reading them may raise."""

from __future__ import annotations

import struct
import zlib

MOST_BYTES = 64 * 2**20
"""The largest values are the files of a proposal: a few of at most 1 MiB each, six times as long where all is escaped.

A few bytes of a database could otherwise stand for gigabytes.
"""

UNREADABLE = (
    ValueError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error, struct.error,
)  # fmt: skip
"""What reading a value may raise that was never written like that."""


def inflate(blob: bytes) -> bytes:
    """What was compressed.

    Raises:
        ValueError: it is longer than any value of ours, or cut off.
        zlib.error: it is damaged.
    """
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(blob, MOST_BYTES)
    if not unpacking.eof and (unpacking.unconsumed_tail or len(found) == MOST_BYTES):
        raise ValueError(f"a compressed value is longer than {MOST_BYTES:,} bytes")
    if not unpacking.eof:
        raise ValueError("a compressed value is cut off")
    return found

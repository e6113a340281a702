"""What the bytes of a file tell: how much they hold once compressed, and whether they are a pointer of Git LFS."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping


def compressed_size(files: Mapping[str, str]) -> int:
    """Bytes of files, each compressed (DEFLATE, RFC 1951): n bytes of data stay n, however a program holds them."""
    return sum(len(zlib.compress(text.encode("utf-8", "surrogatepass"), 9)) for text in files.values())


LARGEST = 1024
"""Bytes that a pointer has at most."""
_FIRST = b"version https://git-lfs.github.com/spec/v1\n"
_CONTENT = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)


def pointed_to(data: bytes) -> str:
    """The SHA-256 of the file that a pointer stands for; empty where the bytes are no pointer."""
    found = _CONTENT.search(data) if len(data) <= LARGEST and data.startswith(_FIRST) else None
    return found[1].decode("ascii") if found else ""

"""Pointers of Git LFS: what git has in place of a large file (git-lfs, docs/spec.md)."""

from __future__ import annotations

import re

LARGEST = 1024
"""Bytes that a pointer has at most."""
_FIRST = b"version https://git-lfs.github.com/spec/v1\n"
_CONTENT = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)


def pointed_to(data: bytes) -> str:
    """The SHA-256 of the file that a pointer stands for; empty where the bytes are no pointer."""
    found = _CONTENT.search(data) if len(data) <= LARGEST and data.startswith(_FIRST) else None
    return found[1].decode("ascii") if found else ""

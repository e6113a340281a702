"""How much a program's text holds, by what is left of it once it is compressed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

_BEST = 9


def compressed_size(files: Mapping[str, str]) -> int:
    """Bytes that files have together once each is compressed (DEFLATE, RFC 1951).

    However data are written into a program, in one literal, in many or in names, n bytes of them do not become fewer.
    """
    return sum(len(zlib.compress(text.encode("utf-8", "surrogatepass"), _BEST)) for text in files.values())

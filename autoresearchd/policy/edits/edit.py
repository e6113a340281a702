"""What an answer of a model is read into, why one cannot be used, and the bounds on both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.labels import Label

MAX_ANSWER_BYTES = 2 * 1024 * 1024
MAX_ANSWER_LINES = 100_000
MAX_FILE_BYTES = 1024 * 1024
MAX_CHANGES = 500
"""Blocks, fences, line operations or hunks of one answer."""
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Edit:
    """A usable answer.

    files: new full text of each changed file. form: how it was written, ``search_replace``, ``lines``, ``diff`` or
    ``whole``. words: what the answer says of itself, bounded and cleaned: ``hypothesis``, ``description``,
    ``expected_delta``, ``arch_change``, ``next_action_hint`` and free keys.
    """

    files: Mapping[str, str]
    form: str
    words: Mapping[str, Any] = field(default_factory=dict)


class EditError(AutoresearchdError):
    """An answer that cannot be used, in words that the model can be told.

    Args:
        what: what could not be used, and where in the answer it stands.
        label: ``malformed_answer``, ``illegal_edit`` (a file that may not be edited) or ``no_op`` (nothing changes).
        fix: how to write it right.
    """

    def __init__(self, what: str, *, label: Label = Label.MALFORMED_ANSWER, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.label = label


def show(text: object, most: int = _SHOWN) -> str:
    """A text as it may stand in a message: on one line, control characters escaped, spaces kept, cut to a length."""
    line = text if isinstance(text, str) else repr(text)[: most + 1]
    cut = line if len(line) <= most else line[: most - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)

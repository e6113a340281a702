"""Hiding secrets: a text, a stream or any value goes in, and comes out with a mark where a secret was.

What is hidden: known formats of keys and passwords, and values that the caller knows to be secret in whatever form they
turn up (``secrets``). The mark is ``«redacted:kind»``; redacting again changes nothing.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from autoresearchd.domain.secrets import CLOSE, FORMATS, OPEN, find_secrets, is_secret, secret_forms

T = TypeVar("T")

MARK = OPEN + "redacted:"
"""How every mark begins."""

KNOWN = "environment"

_ROUNDS = 4
_MAX_DEPTH = 64
_HOLD_BACK = 4096
"""Characters of a line without end that a stream holds back: longer than any secret that is not a block."""

_LONGEST_LINE = 16 * _HOLD_BACK
_RETURN = re.compile(r"\r(?!\n)")
_BEGIN_BLOCK, _KEY_BLOCK, _END_BLOCK = "-----BEGIN ", "PRIVATE KEY", "-----END "

Span = tuple[int, int, str]


class Redactor:
    """Knows what is secret. Immutable, and safe to use from several threads.

    values: values known to be secret, in addition to the known formats; see ``secrets``.
    """

    __slots__ = ("_forms", "_shortest")

    def __init__(self, values: Iterable[str] = ()) -> None:
        # A value that is part of a mark ("redacted") would be found in every mark again.
        marks = {mark(kind) for kind in (KNOWN, *(form.kind for form in FORMATS), "private-key")}
        forms = secret_forms(value for value in values if is_secret(value))
        self._forms = tuple(form for form in forms if not any(form in mark or mark in form for mark in marks))
        self._shortest = min((len(form) for form in self._forms), default=0)

    def with_values(self, values: Iterable[str]) -> Redactor:
        """A redactor that knows these values too."""
        return self.joined(Redactor(values))

    def joined(self, other: Redactor) -> Redactor:
        """A redactor that knows what both know."""
        both = Redactor()
        both._forms = tuple(sorted({*self._forms, *other._forms}, key=lambda form: (-len(form), form)))
        both._shortest = min((len(form) for form in both._forms), default=0)
        return both

    def text(self, text: str) -> str:
        """The text with marks for secrets; the same object when there is none."""
        for _ in range(_ROUNDS):
            found = self._spans(text)
            if not found:
                break
            text = _replaced(text, found)
        return text

    def value(self, value: T) -> T:
        """Any value with the texts in it redacted: dataclasses, mappings (keys too), sequences.

        What holds no secret is the same object as before; the type of what changes is that of JSON or the dataclass.
        """
        return cast("T", self._value(value, 0))

    def found(self, text: str) -> tuple[tuple[str, int, str], ...]:
        """(secret, line, kind) of each secret in a text, in order; lines count from 1."""
        spans = self._spans(text)
        return tuple((text[begin:end], text.count("\n", 0, begin) + 1, kind) for begin, end, kind in spans)

    # -- parts
    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, (bool, int, float, bytes)):
            return value
        if depth > _MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            mapped = {self._value(k, depth + 1): self._value(v, depth + 1) for k, v in value.items()}
            same = len(mapped) == len(value) and all(k in mapped and mapped[k] is v for k, v in value.items())
            return value if same else mapped
        if isinstance(value, (list, tuple, set, frozenset)):
            items = [self._value(item, depth + 1) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return items if isinstance(value, list) or hasattr(value, "_fields") else type(value)(items)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            new = {name: self._value(item, depth + 1) for name, item in old.items()}
            changed = {name: item for name, item in new.items() if item is not old[name]}
            return dataclasses.replace(value, **changed) if changed else value
        return value

    def _spans(self, text: str) -> list[Span]:
        """Where the secrets are, merged and in order."""
        found = [*self._known(text), *find_secrets(text)]
        if "\r" in text:
            found += self._across_returns(text)
        return _merged([(_with_escape(text, begin), end, kind) for begin, end, kind in found])

    def _known(self, text: str) -> list[Span]:
        found: list[Span] = []
        for form in self._forms if len(text) >= self._shortest else ():
            begin = text.find(form)
            while begin >= 0:
                found.append((begin, begin + len(form), KNOWN))
                begin = text.find(form, begin + len(form))
        return found

    def _across_returns(self, text: str) -> list[Span]:
        r"""Secrets with a carriage return in them (a progress bar rewrote the line; ``\r\n`` ends one)."""
        places = [found.start() for found in _RETURN.finditer(text)]
        if not places:
            return []
        joined = _RETURN.sub("", text)
        moved = [place - i for i, place in enumerate(places)]  # where in ``joined`` each of them was
        found = []
        for begin, end, kind in (*self._known(joined), *find_secrets(joined, context=False)):
            first, last = begin + bisect_right(moved, begin), end + bisect_left(moved, end)
            if last - first > end - begin:
                found.append((first, last, kind))
        return found


class StreamRedactor:
    """Redacts a text that comes in pieces, wherever they are cut.

    Whole lines are given on; of a line without end, and of a block of a private key, as much as could belong to a
    secret is held back.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""
        self.hidden = False
        """Whether anything has been hidden so far."""

    def feed(self, piece: str) -> str:
        """Take a piece; what is certain of the text so far, redacted."""
        self._pending += piece
        safe = self._pending.rfind("\n") + 1
        begin = self._pending.rfind(_BEGIN_BLOCK, 0, safe)
        if begin >= 0 and _KEY_BLOCK in self._pending[begin : begin + 80]:
            open_block = self._pending.find(_END_BLOCK, begin, safe) < 0
            safe = begin if open_block and len(self._pending) - begin < _LONGEST_LINE else safe
        if not safe and len(self._pending) > _LONGEST_LINE:
            return self._cut()
        return self._give(safe)

    def close(self) -> str:
        """The end of the text: what was held back, redacted."""
        return self._give(len(self._pending))

    def _give(self, end: int) -> str:
        done, self._pending = self._pending[:end], self._pending[end:]
        return self._redacted(done)

    def _redacted(self, text: str) -> str:
        clean = self._redactor.text(text)
        self.hidden = self.hidden or clean is not text
        return clean

    def _cut(self) -> str:
        """Of a line that is too long to wait for, all but its end; a secret at the cut is hidden as a whole."""
        text = self._redacted(self._pending)
        end = max(0, len(text) - _HOLD_BACK)
        opened = text.rfind(OPEN, 0, end)
        if opened >= 0 and end <= text.find(CLOSE, opened):
            end = opened
        self._pending = text[end:]
        return text[:end]


def mark(kind: str) -> str:
    """What stands for a secret."""
    return f"{MARK}{kind}{CLOSE}"


def _with_escape(text: str, begin: int) -> int:
    r"""Where to begin so that no half of an escape (``\n`` of JSON) is left before the mark."""
    start = max(0, begin - 16)
    backslashes = begin - start - len(text[start:begin].rstrip("\\"))
    return begin - backslashes % 2


def _merged(found: list[Span]) -> list[Span]:
    """Overlapping spans become one; its kind is that of the first, and of the longest of those that begin there."""
    merged: list[Span] = []
    for begin, end, kind in sorted(found, key=lambda span: (span[0], -span[1])):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((begin, end, kind))
    return merged


def _replaced(text: str, spans: list[Span]) -> str:
    parts, at = [], 0
    for begin, end, kind in spans:
        parts += [text[at:begin], mark(kind)]
        at = end
    return "".join((*parts, text[at:]))

"""Lines that only say that code stays as it was (``# ... rest unchanged``): in a new file they would replace it."""

from __future__ import annotations

import re

from autoresearchd.policy.edits.model import EditError, shown

_LONGEST = 160
_COMMENTS = ("#", "//", "--", "/*", "<!--")
_BRACKETS = ("<", "[", "(", "{")
_CODE_MARKS = frozenset("\"'=:,")
_WORD = re.compile(r"[a-z]+")
_DOTS = ("...", "…")
_VOCABULARY = frozenset(
    _WORD.findall(
        "a above all and are as before below brevity class classes code content continues else everything "
        "existing file follows for function functions goes here identical import imports in is it its keep "
        "kept lines methods module my not of omitted original other part previous program remain remainder "
        "remaining remains rest same script shown stay stays still the this unchanged unmodified with your "
    )
)
_ALWAYS = frozenset({"unchanged", "unmodified", "omitted", "rest", "remainder", "existing"})
_REST = frozenset({"rest", "remainder", "remaining"})
_AS_IT_WAS = frozenset({"unchanged", "unmodified", "omitted", "same", "before", "identical"})
_AFTER_DOTS = _ALWAYS | frozenset({"remaining", "same", "previous", "original", "code", "before", "keep"})
_BEFORE_DOTS = _ALWAYS | {"remaining"}
_MOST_UNKNOWN = 2


def check_complete(text: str, old: str, file: str) -> None:
    """Raise for a line of the new text, not in the old one, that stands for code left out."""
    known = {line.strip() for line in old.split("\n")}
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith((*_COMMENTS, *_BRACKETS)) and bare not in known and _elides(bare):
            raise EditError(
                f"line {number} of the new {file} leaves code out: `{shown(bare)}`",
                mend="write all lines, or change only a part of the file with SEARCH/REPLACE blocks",
            )


def _elides(line: str) -> bool:
    if len(line) > _LONGEST:
        return False
    words = _WORD.findall(line.lower())
    comment = line.startswith(_COMMENTS)
    if not words:
        return comment and any(dots in line for dots in _DOTS)
    if not comment and (len(words) == 1 or not _CODE_MARKS.isdisjoint(line)):
        return False
    said = set(words)
    inner = line.strip("#/-*<!>[](){} \t")
    if (inner.startswith(_DOTS) and said & _AFTER_DOTS) or (inner.endswith(_DOTS) and said & _BEFORE_DOTS):
        return True
    unknown = len(said - _VOCABULARY)
    if unknown:
        return unknown <= _MOST_UNKNOWN and bool(said & _REST) and bool(said & _AS_IT_WAS)
    return bool(said & _ALWAYS) or {"same", "before"} <= said or {"remaining", "code"} <= said

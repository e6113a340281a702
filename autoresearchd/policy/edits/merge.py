"""Three-way merge of a text: an edit that was made on one version, applied to another."""

from __future__ import annotations

from autoresearchd.domain.line_changes import changed_lines


def merge(base: str, ours: str, theirs: str) -> str | None:
    """``ours`` with what ``theirs`` changed in ``base``, line by line; None: both changed the same place.

    As diff3 does it (Khanna, Kunal and Pierce 2007), but lines that touch are no conflict: constants stand together.
    """
    lines = base.splitlines(keepends=True)
    changes = sorted({*_changes(lines, ours), *_changes(lines, theirs)})
    merged, at = list[str](), 0
    for i, (start, end, text) in enumerate(changes):
        if start < at or (i and start == end == changes[i - 1][0]):
            return None
        merged += [*lines[at:start], *text]
        at = end
    return "".join([*merged, *lines[at:]])


def _changes(base: list[str], text: str) -> list[tuple[int, int, tuple[str, ...]]]:
    """What was put in place of which lines of ``base``: (first, end, lines)."""
    new = text.splitlines(keepends=True)
    return [(i, j, tuple(new[k:m])) for i, j, k, m in changed_lines(base, new)]

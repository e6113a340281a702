"""Unified diffs, parsed by unidiff and placed by their lines; the numbers in headers only decide between equals."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoresearchd.policy.edits.hunks import Hunk
from autoresearchd.policy.edits.model import EditError
from autoresearchd.policy.edits.places import Places
from autoresearchd.policy.edits.similar import most_similar
from autoresearchd.policy.edits.source import Source, Splice, spliced


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a hunk. sign: ``" "``, ``+`` or ``-``; end: its line end."""

    sign: str
    text: str
    end: str


def apply_hunks(hunks: Sequence[Hunk], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file that the hunks change."""
    files: dict[str, list[Hunk]] = {}
    for hunk in hunks:
        files.setdefault(hunk.file, []).append(hunk)
    return {file: _applied(found, code[file], file) for file, found in files.items()}


def _applied(hunks: Sequence[Hunk], text: str, file: str) -> str:
    places = Places(Source.of(text))
    splices: list[Splice] = []
    seen: set[tuple[int, tuple[_Line, ...]]] = set()
    for hunk, lines in zip(hunks, _parsed(hunks), strict=True):
        start, stated = _place(hunk, lines, places)
        if (start, lines) not in seen:  # a model that repeats itself means the same change
            seen.add((start, lines))
            splices += _splices(hunk, lines, start, stated=stated)
    return spliced(places.source, splices, file)


def _parsed(hunks: Sequence[Hunk]) -> list[tuple[_Line, ...]]:
    """The lines of each hunk. The headers are written anew, so that they name nothing and count right."""
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    repaired = "--- a\n+++ b\n" + "".join(hunk.text() for hunk in hunks)
    try:
        parsed = [hunk for patched in PatchSet(io.StringIO(repaired)) for hunk in patched]
    except UnidiffParseError as error:
        raise EditError(f"the diff cannot be parsed: {error}") from error
    if len(parsed) != len(hunks):
        raise EditError("the diff cannot be parsed: its hunks cannot be told apart")
    return [_lines([(line.line_type, line.value) for line in hunk]) for hunk in parsed]


def _lines(raw: Sequence[tuple[str, str]]) -> tuple[_Line, ...]:
    found: list[_Line] = []
    for sign, value in raw:
        if sign == "\\":
            if found:
                last = found[-1]
                # Without a line feed, a carriage return is a character of the line.
                found[-1] = _Line(last.sign, last.text + ("\r" if last.end == "\r\n" else ""), "")
            continue
        text = value.removesuffix("\n")
        if text.endswith("\r"):
            found.append(_Line(sign, text[:-1], "\r\n"))
        else:
            found.append(_Line(sign, text, "\n"))
    return tuple(found)


def _place(hunk: Hunk, lines: Sequence[_Line], places: Places) -> tuple[int, bool]:
    """First line (from 0) of the hunk in the file, and whether its line ends are to be taken as stated."""
    source = places.source
    old = [line for line in lines if line.sign != "+"]
    if not old:
        return _insertion(hunk, lines, source)
    texts, ends = [line.text for line in old], [line.end for line in old]
    exact = places.with_ends(texts, ends)
    found = exact or places.trimmed(texts)
    if not found:
        raise EditError(
            f"{hunk.what} does not apply: its unchanged and removed lines are not in {hunk.file} as they "
            f"stand{most_similar(texts, source.lines)}",
            mend="copy the unchanged and removed lines exactly from the file as it was shown, all of them, in order",
        )
    if len(found) == 1:
        return found[0], bool(exact)
    stated = (hunk.start or 0) - 1
    if _stands(texts, ends if exact else None, source, stated):
        return stated, bool(exact)
    where = ", ".join(str(place + 1) for place in found)
    raise EditError(
        f"{hunk.what} fits {hunk.file} at several places, lines {where}, and its header names none of them",
        mend="add unchanged lines around it until it fits once, or state the right line in its @@ header",
    )


def _stands(texts: Sequence[str], ends: Sequence[str] | None, source: Source, start: int) -> bool:
    """Whether the lines are exactly at ``start``; without ``ends``, white space at their ends does not count."""
    stop = start + len(texts)
    if start < 0 or stop > len(source.lines):
        return False
    if ends is not None:
        return tuple(texts) == source.lines[start:stop] and tuple(ends) == source.ends[start:stop]
    return [t.rstrip() for t in texts] == [line.rstrip() for line in source.lines[start:stop]]


def _insertion(hunk: Hunk, lines: Sequence[_Line], source: Source) -> tuple[int, bool]:
    """The place of a hunk without old lines: the end of an empty file, or the line that a right header names."""
    # An answer in line feeds does not mean to change the line ends of a file that has others.
    stated = {line.end for line in lines} <= {*source.ends, ""} or not {*source.ends} - {""}
    if not source.lines:
        return 0, stated
    if hunk.start is not None and hunk.length == 0 and hunk.start <= len(source.lines):
        return hunk.start, stated
    raise EditError(
        f"{hunk.what} has no unchanged or removed lines, so that its place in {hunk.file} cannot be told",
        mend="put two or three unchanged lines before and after the new ones",
    )


def _splices(hunk: Hunk, lines: Sequence[_Line], start: int, *, stated: bool) -> list[Splice]:
    """One splice for each run of new and removed lines: unchanged lines stay as the file has them."""
    found: list[Splice] = []
    at, begin, new = start, start, list[_Line]()
    for line in (*lines, _Line(" ", "", "")):
        if line.sign == "+":
            new.append(line)
        elif line.sign == "-":
            at += 1
        else:
            if new or at > begin:
                ends = tuple(n.end for n in new) if stated else None
                found.append(Splice(begin, at, tuple(n.text for n in new), hunk.what, ends))
            at += 1
            begin, new = at, []
    return found

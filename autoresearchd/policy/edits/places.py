"""Where lines stand in a file: exactly, but for white space at line ends, or with all of their indentation shifted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from autoresearchd.policy.edits.source import Source

_ENOUGH = 10
_MOST_CANDIDATES = 1000


class Places:
    """Finds runs of lines in one file; what it needs for that is made once."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @cached_property
    def _exact(self) -> str:
        return joined(self.source.lines)

    @cached_property
    def _trimmed(self) -> str:
        return joined([line.rstrip() for line in self.source.lines])

    @cached_property
    def _bare(self) -> str:
        return joined([line.strip() for line in self.source.lines])

    @cached_property
    def _with_ends(self) -> str:
        return joined([marked(line, end) for line, end in zip(self.source.lines, self.source.ends, strict=True)])

    def exact(self, lines: Sequence[str]) -> list[int]:
        """First lines (from 0) of the places with exactly these lines, whatever their line ends; ten at most."""
        return _found(self._exact, joined(lines))

    def trimmed(self, lines: Sequence[str]) -> list[int]:
        """The same with white space at the ends of lines left out of account."""
        return _found(self._trimmed, joined([line.rstrip() for line in lines]))

    def with_ends(self, lines: Sequence[str], ends: Sequence[str]) -> list[int]:
        """The same with line ends that have to agree as well."""
        return _found(self._with_ends, joined([marked(line, end) for line, end in zip(lines, ends, strict=True)]))

    def shifted(self, lines: Sequence[str]) -> list[tuple[int, Shift]]:
        """Places where the lines stand if all that are not blank are indented by the same white space more or less."""
        candidates = _found(self._bare, joined([line.strip() for line in lines]), _MOST_CANDIDATES)
        found: list[tuple[int, Shift]] = []
        for place in candidates:
            shift = _shift(lines, self.source.lines[place : place + len(lines)])
            if shift is not None:
                found.append((place, shift))
                if len(found) == _ENOUGH:
                    break
        return found

    def part_of(self, text: str) -> list[tuple[int, int]]:
        """Lines and columns where a text without line feed begins within a line; ten at most."""
        found: list[tuple[int, int]] = []
        at, line, counted = self._exact.find(text), -1, 0
        while at >= 0 and len(found) < _ENOUGH:
            line += self._exact.count("\n", counted, at)
            counted = at
            found.append((line, at - self._exact.rfind("\n", 0, at) - 1))
            at = self._exact.find(text, at + 1)
        return found


class Shift:
    """A change of indentation: ``more`` is put before lines of the answer, or ``less`` taken away from them."""

    def __init__(self, more: str, less: str) -> None:
        self._more, self._less = more, less

    def applied(self, lines: Sequence[str]) -> tuple[str, ...] | None:
        """The lines with their indentation changed; None where one has too little."""
        if self._less and any(line.strip() and not line.startswith(self._less) for line in lines):
            return None
        return tuple(self._more + line.removeprefix(self._less) if line.strip() else line for line in lines)


def _shift(lines: Sequence[str], there: Sequence[str]) -> Shift | None:
    """The one change of indentation that makes ``lines`` those of the file, None where there is none."""
    changes = {(_indent(theirs), _indent(own)) for own, theirs in zip(lines, there, strict=True) if own.strip()}
    more = {theirs.removesuffix(own) if theirs.endswith(own) else None for theirs, own in changes}
    less = {own.removesuffix(theirs) if own.endswith(theirs) else None for theirs, own in changes}
    if len(more) == 1 and (prefix := more.pop()) is not None:
        return Shift(prefix, "")
    if len(less) == 1 and (prefix := less.pop()) is not None:
        return Shift("", prefix)
    return None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def marked(line: str, end: str) -> str:
    """A line with a mark of its line end. A zero byte is in no file that may be edited."""
    return line + {"\n": "", "\r\n": "\r", "": "\0"}[end]


def joined(lines: Sequence[str]) -> str:
    """Lines as one text in which a search finds whole lines only."""
    return "\n" + "\n".join(lines) + "\n" if lines else "\n"


def _found(text: str, wanted: str, most: int = _ENOUGH) -> list[int]:
    found: list[int] = []
    at, line, counted = text.find(wanted), 0, 0
    while at >= 0 and len(found) < most:
        line += text.count("\n", counted, at)
        counted = at
        found.append(line)
        at = text.find(wanted, at + 1)
    return found

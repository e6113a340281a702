"""A file as lines: where other lines stand in it, what is most like them, and parts of it replaced by others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autoresearchd.policy.edits.edit import EditError, show

_MOST_PLACES = 10
_MOST_CANDIDATES = 1000
_WIDTH = 200
_MOST_LINES = 20_000
_SAMPLED = 4
_SHOWN = 8
_LEAST_ALIKE = 60.0


@dataclass(frozen=True, slots=True)
class Splice:
    """Lines ``start`` up to, not including, ``stop`` (counted from 0) are replaced by ``lines``.

    what: the part of the answer that asks for it, for messages.
    """

    start: int
    stop: int
    lines: tuple[str, ...]
    what: str


class File:
    """The text of a file, cut at its line feeds. lines: without their ends."""

    def __init__(self, text: str) -> None:
        *parts, last = text.split("\n")
        self._ends = ["\r\n" if part.endswith("\r") else "\n" for part in parts]
        self._end = "\r\n" if 2 * self._ends.count("\r\n") > len(parts) else "\n"
        lines = [part.removesuffix("\r") for part in parts]
        if last:
            lines.append(last)
            self._ends.append("")
        self.lines = tuple(lines)
        self._joined: dict[Callable[[str], str], str] = {}

    def find(self, wanted: Sequence[str], form: Callable[[str], str], most: int = _MOST_PLACES) -> list[int]:
        """First lines (from 0) of the places with these lines, both compared as ``form`` makes them; ten at most."""
        if form not in self._joined:
            self._joined[form] = _joined(map(form, self.lines))
        text, searched = self._joined[form], _joined(map(form, wanted))
        places: list[int] = []
        at, line, counted = text.find(searched), 0, 0
        while at >= 0 and len(places) < most:
            line += text.count("\n", counted, at)
            counted = at
            places.append(line)
            at = text.find(searched, at + 1)
        return places

    def find_shifted(self, wanted: Sequence[str]) -> list[tuple[int, str, str]]:
        """Places where the lines stand once all are indented alike: first line, what to add before each, what to cut.

        Either of the two is empty.
        """
        first = next((i for i, line in enumerate(wanted) if line.strip()), 0)
        own = _indent(wanted[first])
        places = []
        for place in self.find(wanted, str.strip, _MOST_CANDIDATES):
            there = _indent(self.lines[place + first])
            if not (there.endswith(own) or own.endswith(there)):
                continue
            more, less = there[: len(there) - len(own)], own[: len(own) - len(there)]
            moved = shift(wanted, more, less)
            if moved and all(a.rstrip() == b.rstrip() for a, b in zip(moved, self.lines[place:], strict=False)):
                places.append((place, more, less))
        return places[:_MOST_PLACES]

    def replace(self, splices: Iterable[Splice], file: str) -> str:
        """The text after all splices, each of which counts in the lines of this file; line ends stay as they are.

        Insertions at the same place stay in the order given.
        """
        lines: list[str] = []
        ends: list[str] = []
        at, before = 0, ""
        for splice in sorted(splices, key=lambda s: (s.start, s.stop)):
            if splice.start < at:
                raise EditError(
                    f"{before} and {splice.what} overlap in line {splice.start + 1} of {file}",
                    hint="write what changes the same lines as one edit; line numbers are those of the file as shown",
                )
            lines += (*self.lines[at : splice.start], *splice.lines)
            ends += (*self._ends[at : splice.start], *[self._end] * len(splice.lines))
            at, before = splice.stop, splice.what
        lines += self.lines[at:]
        ends = [end or self._end for end in (*ends, *self._ends[at:])]
        if ends and self._ends and not self._ends[-1]:
            ends[-1] = ""
        return "".join([part for pair in zip(lines, ends, strict=True) for part in pair])

    def most_similar(self, wanted: Sequence[str]) -> str:
        """The place that is most like ``wanted``, with its line numbers, for a message; empty where nothing is."""
        from rapidfuzz import fuzz, process  # only when an answer failed

        choices = [line[:_WIDTH].strip() for line in self.lines[:_MOST_LINES]]
        sampled = sorted(range(len(wanted)), key=lambda i: -len(wanted[i].strip()[:_WIDTH]))[:_SAMPLED]
        votes: defaultdict[int, float] = defaultdict(float)
        for offset in sampled:
            query = wanted[offset][:_WIDTH].strip()
            if query:
                near = process.extract(query, choices, scorer=fuzz.ratio, limit=5, score_cutoff=_LEAST_ALIKE)
                for _, score, index in near:
                    votes[index - offset] += score
        if not votes:
            return ""
        start = max(min(votes, key=lambda place: (-votes[place], place)), 0)
        stop = min(start + max(len(wanted), 1), start + _SHOWN, len(self.lines))
        rows = [f"    {number + 1}| {show(self.lines[number])}" for number in range(start, stop)]
        where = f"line {start + 1} is" if stop - start == 1 else f"lines {start + 1} to {stop} are"
        return f"; {where} most like it:\n" + "\n".join(rows)


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text in an answer: one line feed at its end closes the last line, and no text has no lines."""
    if not text:
        return ()
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))


def shift(lines: Sequence[str], more: str, less: str) -> tuple[str, ...] | None:
    """The lines with their indentation changed; None where one has too little."""
    if less and any(line.strip() and not line.startswith(less) for line in lines):
        return None
    return tuple(more + line.removeprefix(less) if line.strip() else line for line in lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _joined(lines: Iterable[str]) -> str:
    """Lines as one text in which a search finds whole lines only."""
    return "\n" + "".join(f"{line}\n" for line in lines)

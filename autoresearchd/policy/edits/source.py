"""A file as lines with their ends, and splices: parts of it that give way to other lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoresearchd.policy.edits.model import EditError


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a file, cut at its line feeds.

    lines: without their ends. ends: of each line, LF or CR and LF, on the last one perhaps nothing. end: the one
    that most lines have.
    """

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    end: str

    @classmethod
    def of(cls, text: str) -> Source:
        """Cut a text."""
        *parts, last = text.split("\n")
        lines = [part[:-1] if part.endswith("\r") else part for part in parts]
        ends = ["\r\n" if part.endswith("\r") else "\n" for part in parts]
        end = "\r\n" if 2 * ends.count("\r\n") > len(ends) else "\n"
        if last:
            lines.append(last)
            ends.append("")
        return cls(tuple(lines), tuple(ends), end)

    @property
    def open_end(self) -> bool:
        """Whether the last line has no line end."""
        return bool(self.ends) and self.ends[-1] == ""


@dataclass(frozen=True, slots=True)
class Splice:
    """Lines ``start`` up to, not including, ``stop`` (counted from 0) give way to ``lines``.

    ends: the line ends of the new lines where the answer states them; None: as the file has them. what: the part of the
    answer that asks for it, for messages.
    """

    start: int
    stop: int
    lines: tuple[str, ...]
    what: str
    ends: tuple[str, ...] | None = None


def spliced(source: Source, splices: Iterable[Splice], file: str) -> str:
    """The text after all splices, each of which counts in lines of the source.

    Insertions at the same place stay in the order given. The final line end stays as it was, unless a splice at the end
    of the file states its line ends.
    """
    ordered = sorted(splices, key=lambda s: (s.start, s.stop))
    lines: list[str] = []
    ends: list[str] = []
    at, before, stated = 0, "", False
    for splice in ordered:
        if splice.start < at:
            raise EditError(
                f"{before} and {splice.what} overlap in line {splice.start + 1} of {file}",
                mend="write what changes the same lines as one edit; all line numbers are those of the file as shown",
            )
        lines += source.lines[at : splice.start]
        ends += source.ends[at : splice.start]
        lines += splice.lines
        ends += splice.ends if splice.ends is not None else (source.end,) * len(splice.lines)
        stated = stated or (splice.ends is not None and splice.stop == len(source.lines))
        at, before = splice.stop, splice.what
    lines += source.lines[at:]
    ends += source.ends[at:]
    # Only the last line may be without an end: one that others now follow gets what its neighbours have.
    ends[:-1] = [end or source.end for end in ends[:-1]]
    if ends and not stated:
        ends[-1] = "" if source.open_end else ends[-1] or source.end
    return "".join([part for pair in zip(lines, ends, strict=True) for part in pair])


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text in an answer: one line feed at its end closes the last line, and no text has no lines."""
    if not text:
        return ()
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))

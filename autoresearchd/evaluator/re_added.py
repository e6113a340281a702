"""Lines that come back: what an edit adds that a keep before it had removed.

Of the lines that research agents add, three in ten are deletions re-added (arXiv:2605.20086). One rule for policies,
``show``, reports and pages, by diffs alone:

- A line is compared without its indentation, its runs of blanks and its trailing comment. It counts where it has eight
  characters and two words or numbers that are no keywords of Python: blank lines, comments, brackets and ``else:``
  stand anywhere and tell nothing; an import only follows what uses it. What an edit removes and adds has moved.
- It is brought back where the last keep that removed it left no copy in the files that it changed, and no keep has
  added it since.
  A keep that fell back has removed nothing: nobody said that those lines are bad.
- Where the edit takes a line away that differs in numbers, texts and flags alone, a constant goes back to an earlier
  value. That is counted apart and nobody is asked about it: beside other code an earlier value may well be right, and
  an edit that makes nothing but an experiment's own values again is a near duplicate of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from keyword import kwlist
from typing import Any

from autoresearchd.domain.cleaning import one_line
from autoresearchd.domain.quantities import counted

KEY = "re_added"
"""Of the side information of an experiment that brings lines back."""
MOST_LINES, MOST_LENGTH = 20_000, 500
"""Changed lines of a diff, and characters of a line, that are looked at: what a model wrote may have any length."""
TOLD_SHARE, TOLD_LINES = 0.25, 5
"""A model is told where so much of what it adds was there before, or so many lines: a line or two of a long edit are
not worth an answer."""
_LEAST, _WORDS = 8, 2
_SHOWN, _SHOWN_LENGTH, _LISTED = 3, 100, 30
_WORD = re.compile(r"[^\W\d]\w*|\d[\w.]*")
_KEYWORDS = frozenset(kwlist) - {"True", "False", "None"}
_LITERAL = re.compile(r"-?\b\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\b(?:True|False|None)\b|\"[^\"]*\"|'[^']*'")
_IMPORT = re.compile(r"import |from \S+ import ")

Texts = Callable[[int], Iterable[str]]
"""The files that an experiment changed, as they are after it."""


@dataclass(frozen=True, slots=True)
class Back:
    """added: how many different lines of code an edit adds.

    lines: those of them that a keep had removed, with its number; values: those in which only a constant goes back.
    """

    added: int = 0
    lines: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return len(self.lines) / self.added if self.added else 0.0

    @property
    def due(self) -> bool:
        """Whether a model is to be told before it is run."""
        return bool(self.lines) and (self.share >= TOLD_SHARE or len(self.lines) >= TOLD_LINES)

    @property
    def words(self) -> str:
        """What comes back, in a line; empty: nothing does."""
        of_them = f"{len(self.lines):,} of {counted(self.added, 'new line')}"
        return f"{of_them} had been removed by {_keeps(self.lines)}" if self.lines else ""

    @property
    def told(self) -> str:
        """What follows on "the edit", with the lines themselves; empty: nothing comes back."""
        if not (lines := self.lines):
            return ""
        shown = "; ".join(f"`{one_line(line, _SHOWN_LENGTH)}`" for line in list(lines)[:_SHOWN])
        more = f" and {len(lines) - _SHOWN:,} more" if len(lines) > _SHOWN else ""
        kept = "a keep" if len(set(lines.values())) == 1 else "keeps"
        return f"brings back {counted(len(lines), 'line')} that {_keeps(lines)}, {kept}, had removed: {shown}{more}"

    def as_json(self) -> dict[str, Any]:
        """As ``show --json`` prints it; some of the lines are shown."""
        return {
            "added": self.added,
            "lines": len(self.lines),
            "share": self.share,
            "values": len(self.values),
            "removed": [{"line": line, "by": by} for line, by in list(self.lines.items())[:_LISTED]],
        }


def _keeps(lines: Mapping[str, int]) -> str:
    numbers = sorted(set(lines.values()))
    shown = [str(number) for number in numbers[-_SHOWN:]]
    if len(numbers) == 1:
        return f"experiment {shown[0]}"
    others = f"{len(numbers) - _SHOWN} others, " if len(numbers) > _SHOWN else ""
    return f"experiments {others}{', '.join(shown[:-1])} and {shown[-1]}"


class Removals:
    """What the keeps of a session have removed so far. texts: asked for only where a line seems to come back."""

    def __init__(self, texts: Texts = lambda _: ()) -> None:
        self._texts = texts
        self._keeps: dict[int, tuple[Collection[str], Collection[str]]] = {}
        self._left: dict[int, frozenset[str]] = {}
        self._gone: dict[str, int] = {}
        self._last = -1

    def keep(self, number: int, diff: str) -> None:
        """Take a keep in that was not there yet; in any order."""
        removed, added = _changed(diff)
        self._keeps[number] = tuple(removed), tuple(added)
        if number > self._last:
            self._take(number)
        else:
            self._all_again()

    def stand(self, numbers: Collection[int]) -> list[int]:
        """Forget keeps that are not among those that stand; which of these are not known yet, in their order."""
        if fell := self._keeps.keys() - numbers:
            for number in fell:
                del self._keeps[number]
            self._all_again()
        return sorted(number for number in numbers if number not in self._keeps)

    def look(self, diff: str) -> Back:
        """What an edit brings back."""
        removed, added = _changed(diff)
        back = {line: self._gone[line] for line in added if line in self._gone}
        back = {line: by for line, by in back.items() if line not in self._program(by)}
        masked = {_masked(line) for line in removed} if back else set()
        values = {line: by for line, by in back.items() if _masked(line) in masked}
        return Back(len(added), {line: by for line, by in back.items() if line not in values}, values)

    def _take(self, number: int) -> None:
        self._last = number
        removed, added = self._keeps[number]
        for line in added:
            self._gone.pop(line, None)
        self._gone |= dict.fromkeys(removed, number)

    def _all_again(self) -> None:
        self._gone, self._last = {}, -1
        for number in sorted(self._keeps):
            self._take(number)

    def _program(self, number: int) -> frozenset[str]:
        """The lines that a keep left; its text does not change."""
        if number not in self._left:
            self._left[number] = frozenset(_bare(line) for text in self._texts(number) for line in text.splitlines())
        return self._left[number]


def _changed(diff: str) -> tuple[dict[str, None], dict[str, None]]:
    """The lines that a unified diff removes and adds, those that moved in neither."""
    removed, added = dict[str, None](), dict[str, None]()
    for line in islice(signed(diff), MOST_LINES):
        if _counts(text := _bare(line[1 : 1 + MOST_LENGTH])):
            (removed if line[0] == "-" else added)[text] = None
    return (
        {line: None for line in removed if line not in added},
        {line: None for line in added if line not in removed},
    )


def signed(diff: str) -> Iterator[str]:
    """The lines that a unified diff adds and removes, signs kept, without its headers and its context."""
    lines = (line for line in diff.split("\n") if line.startswith(("+", "-")))
    return (line for line in lines if not line.startswith(("+++ ", "--- ")))


def _bare(line: str) -> str:
    """The line as it is compared."""
    text = " ".join(line[:MOST_LENGTH].split())
    comment = text.find(" #", max(text.rfind('"'), text.rfind("'")) + 1)  # one with a quote in it stays
    return text if comment < 0 else text[:comment]


def _counts(text: str) -> bool:
    if len(text) < _LEAST or text[0] == "#" or text.startswith(('"""', "'''")) or _IMPORT.match(text):
        return False
    return sum(word not in _KEYWORDS for word in _WORD.findall(text)) >= _WORDS


def _masked(line: str) -> str:
    return _LITERAL.sub("0", line)

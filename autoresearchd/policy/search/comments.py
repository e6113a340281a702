"""The bytes of a file that is searched for constants: where things stand, and what the comments beside them say."""

from __future__ import annotations

import ast
import re

from autoresearchd.domain.quantities import parse_bounds

FIXED = re.compile(r"\bfixed\b|\b(?:do not|don't|never) (?:change|edit|tune|touch)\b", re.IGNORECASE)
_FIXED_ABOVE = re.compile(rf"[\s#]*(?:{FIXED.pattern})", re.IGNORECASE)  # a heading that has it in passing is none
_RANGE = re.compile(r"[\s#]*range\s*:(.*)", re.IGNORECASE)
_ONE_OF = re.compile(r"[\s#]*one of\s*:(.*)", re.IGNORECASE)
_OPENING = ("(", "[", "{")
_OPEN_BEFORE = re.compile(rb"[=,:(\[{]\s*(\()(?:\s|#[^\n]*\n)*$")
_CLOSED_AFTER = re.compile(rb"\s*\)")
_MOST_BEFORE = 300


class Source:
    """The text of a file. commented: whether files of its kind have comments."""

    def __init__(self, text: str, *, commented: bool = True) -> None:
        self.text, self.raw, self._commented = text, text.encode(), commented
        self._starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def place(self, node: ast.expr) -> tuple[int, int]:
        """The bytes of a node."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def part(self, start: int, end: int) -> str:
        """What stands between two places."""
        return self.raw[start:end].decode()

    def line(self, start: int) -> int:
        """The number of the line that a place is on."""
        return self.raw.count(b"\n", 0, start) + 1

    def beside(self, end: int) -> str:
        """The comment on the line where a literal ends."""
        stop = self.raw.find(b"\n", end)
        line = self.part(end, stop if stop >= 0 else len(self.raw))
        return line.partition("#")[2] if self._commented else ""

    def above(self, start: int) -> str:
        """The comment that is all of the line above the one where a literal begins."""
        line = self.raw.rfind(b"\n", 0, start) + 1
        above = self.part(self.raw.rfind(b"\n", 0, max(line - 1, 0)) + 1, line).strip()
        return above[1:] if self._commented and above.startswith("#") else ""

    def is_fixed(self, start: int, end: int) -> bool:
        """Whether a comment keeps a literal, or all from a key on, as it is."""
        return bool(FIXED.search(self.beside(end)) or _FIXED_ABOVE.match(self.above(start)))

    def keeps(self, node: ast.expr) -> bool:
        """Whether a comment keeps a value of several lines: above, behind its opening or closing bracket.

        A comment behind the last entry of a dictionary or call is that entry's own, behind that of a list all of it.
        """
        start, end = self.place(node)
        while (after := _CLOSED_AFTER.match(self.raw, end)) and (
            before := _OPEN_BEFORE.search(self.raw[max(0, start - _MOST_BEFORE) : start])
        ):  # parentheses around it
            start, end = max(0, start - _MOST_BEFORE) + before.start(1), after.end()
        if _FIXED_ABOVE.match(self.above(start)):
            return True
        first, several, rest = self.part(start, end).partition("\n")
        if not several:
            return False  # each literal looks at the comment of its line
        head, _, comment = first.partition("#")
        if head.rstrip().endswith(_OPENING) and FIXED.search(comment):
            return True
        closes = not rest.rpartition("\n")[2].strip(" \t)]}")
        own = closes or isinstance(node, (ast.Tuple, ast.List))
        return own and FIXED.search(self.beside(end)) is not None

    def bounds(self, start: int, end: int) -> tuple[tuple[float, float] | None, str]:
        """(range, comment with choices) that comments beside or above give. ValueError tells why a range is none."""
        for comment in (self.beside(end), self.above(start)):
            if found := _RANGE.match(comment):
                return parse_bounds(found[1]), ""
            if _ONE_OF.match(comment):
                return None, comment
        return None, ""


def listed_numbers(comment: str) -> tuple[int | float, ...] | None:
    """The numbers that ``one of: 16, 32, 64`` lists; None where something else stands there."""
    found = _ONE_OF.match(comment)
    text = re.split(r"[;(]|\.(?=\s|$)", found[1])[0] if found else ""
    numbers: list[int | float] = []
    for part in filter(str.strip, re.split(r"[,|]", text)):
        try:
            numbers.append(int(part) if re.fullmatch(r"\s*[-+]?[\d_]+\s*", part) else float(part))
        except ValueError:
            return None
    return tuple(numbers)

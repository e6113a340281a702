"""Changes of parts of a file: text that gives way to other text (SEARCH/REPLACE, hunks), or lines by their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits import file_names
from autoresearchd.policy.edits.answer_parts import Block
from autoresearchd.policy.edits.edit import MAX_CHANGES, EditError, show

_DIVIDER = re.compile(r"={5,9}\s*$")
_SHAPE = "write <<<<<<< SEARCH, the lines as they are, =======, the lines as they shall be, >>>>>>> REPLACE"
_OPERATIONS = ("replace", "insert", "delete")
_LONGEST_NUMBER = 7
_EXAMPLE = '{"file": "train.py", "op": "replace", "line": 12, "end": 14, "expect": "text of line 12", "text": "…"}'
_MOST_NAMED = 5
_SHORTEST_PART = 4
_MOST_PLACES = 10
_MOST_CANDIDATES = 1000
_WIDTH, _MOST_LINES, _SHOWN, _LEAST_ALIKE = 200, 20_000, 8, 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """Old lines, and the new ones that take their place.

    what: its name in messages. line: where a hunk says that it begins (from 1), which decides between equal places.
    """

    what: str
    file: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int | None = None


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
            self._joined[form] = _join(map(form, self.lines))
        text, searched = self._joined[form], _join(map(form, wanted))
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
        queries = [line[:_WIDTH].strip() for line in wanted]
        offset = max(range(len(queries)), key=lambda i: len(queries[i]))  # the longest line tells the most
        near = process.extractOne(queries[offset], choices, scorer=fuzz.ratio, score_cutoff=_LEAST_ALIKE)
        if near is None:
            return ""
        start = max(near[2] - offset, 0)
        stop = min(start + len(wanted), start + _SHOWN, len(self.lines))
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


def _join(lines: Iterable[str]) -> str:
    """Lines as one text in which a search finds whole lines only."""
    return "\n" + "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------------- what is asked for
def from_blocks(blocks: Sequence[Block], code: Mapping[str, str]) -> list[Change]:
    """The changes that blocks ask for; a block without a name goes on with the file of the block before it."""
    changes: list[Change] = []
    file: str | None = None
    for number, block in enumerate(blocks, 1):
        what = f"SEARCH/REPLACE block {number}"
        if not block.closed:
            raise EditError(f"{what} has no >>>>>>> REPLACE line at its end", hint=_SHAPE)
        file = _file_of_block(block, code, what) or file or file_names.only(code)
        if file is None:
            raise EditError(
                f"{what} does not say which file it is for",
                hint=f"write the file's name on the line above it, one of: {file_names.allowed(code)}",
            )
        dividers = [i for i, line in enumerate(block.lines) if line.startswith("=====") and _DIVIDER.match(line)]
        dividers = [i for i in dividers if block.lines[i].rstrip() == "======="] or dividers
        if not dividers:
            raise EditError(f"{what} has no ======= line between old and new text", hint=_SHAPE)
        if len(dividers) > 1:
            raise EditError(f"{what} has {len(dividers)} ======= lines", hint="use smaller blocks, or line operations")
        changes.append(Change(what, file, block.lines[: dividers[0]], block.lines[dividers[0] + 1 :]))
    return changes


def _file_of_block(block: Block, code: Mapping[str, str], what: str) -> str | None:
    for name in block.names:
        if file := file_names.title(name, code, what):
            return file
    return file_names.in_info(block.info, code, what) or file_names.mentioned(block.names, code, what)


def from_pairs(items: Sequence[Any], code: Mapping[str, str]) -> list[Change]:
    """The changes in a JSON list of ``{"file", "search", "replace"}``."""
    changes = []
    for number, item in enumerate(items, 1):
        what = f"edit {number}"
        if not isinstance(item, Mapping):
            raise EditError(f"{what} is not a JSON object", hint='write {"file": "…", "search": "…", "replace": "…"}')
        search, replace = item.get("search"), item.get("replace")
        if not isinstance(search, str) or not isinstance(replace, str):
            raise EditError(f'{what} needs "search" and "replace", both texts')
        changes.append(Change(what, file_names.of_item(item, code, what), lines_of(search), lines_of(replace)))
    return changes


# ---------------------------------------------------------------------- where it goes
def apply_changes(changes: Sequence[Change], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file named; every change is looked for in the file as it was shown."""
    if len(changes) > MAX_CHANGES:
        raise EditError(f"{len(changes)} changes are more than {MAX_CHANGES}")
    files = {name: File(code[name]) for name in dict.fromkeys(change.file for change in changes)}
    splices: dict[str, list[Splice]] = {name: [] for name in files}
    seen: set[tuple[object, ...]] = set()
    for change in changes:
        same = (change.file, change.old, change.new, change.line)
        if same not in seen:  # a model that repeats itself means the same change
            seen.add(same)
            splices[change.file].append(_place(change, files[change.file]))
    return {name: file.replace(splices[name], name) for name, file in files.items()}


def _place(change: Change, file: File) -> Splice:
    """Where the old text is: exactly, but for white space at line ends, with shifted indentation, in a line."""
    if not any(line.strip() for line in change.old):
        return _insertion(change, file)
    for form in (str, str.rstrip):
        if places := file.find(change.old, form):
            return _trim(_one(places, change), change.old, change.new, change.what)
    shifted = {place: (more, less) for place, more, less in file.find_shifted(change.old)}
    if not shifted:
        if within := _within(change, file):
            return within
        raise EditError(
            f"{change.what}: its old text is not in {change.file}{file.most_similar(change.old)}",
            hint="copy whole lines of the file as it was shown, with their indentation, and only as many as needed",
        )
    start = _one(list(shifted), change)
    new = shift(change.new, *shifted[start])
    if new is None:
        raise EditError(
            f"{change.what}: the old text is indented more than line {start + 1} of {change.file}, and the new "
            "text is not",
            hint="indent both exactly as the file does",
        )
    return _trim(start, shift(change.old, *shifted[start]) or change.old, new, change.what)


def _within(change: Change, file: File) -> Splice | None:
    """The old text as a part of one line (without its comment, say), there once, and no part of a longer name."""
    text = change.old[0].strip()
    found = [i for i, line in enumerate(file.lines) for _ in range(line.count(text))]
    if len(change.old) > 1 or len(change.new) > 1 or len(text) < _SHORTEST_PART or len(found) != 1:
        return None
    line = file.lines[found[0]]
    begin = r"(?<![\w.+-])" if re.match(r"[\w.]", text) else ""
    end = r"(?![\w.+-])" if re.search(r"[\w.]$", text) else ""
    match = re.search(begin + re.escape(text) + end, line)
    if match is None:
        return None
    new = line[: match.start()] + "".join(change.new).strip() + line[match.end() :]
    return Splice(found[0], found[0] + 1, (new,), change.what)


def _insertion(change: Change, file: File) -> Splice:
    """New lines where the old text is blank: at the line that a hunk names, or in an empty file."""
    if change.line is not None and not change.old and change.line <= len(file.lines):
        return Splice(change.line, change.line, change.new, change.what)
    if change.line is not None and change.line - 1 in file.find(change.old, str):
        return _trim(change.line - 1, change.old, change.new, change.what)
    if not any(line.strip() for line in file.lines):
        return Splice(0, len(file.lines), change.new, change.what)
    raise EditError(
        f"{change.what} has an empty SEARCH part or no unchanged lines, so that its place in {change.file} is unknown",
        hint="give the lines around it, too; to insert, repeat the line above in the new text",
    )


def _one(places: Sequence[int], change: Change) -> int:
    if len(places) == 1:
        return places[0]
    if change.line is not None and change.line - 1 in places:
        return change.line - 1
    raise EditError(
        f"{change.what}: its old text is in {change.file} more than once, at lines "
        + ", ".join(str(place + 1) for place in places),
        hint="add the lines around it until the text is there only once",
    )


def _trim(start: int, old: tuple[str, ...], new: tuple[str, ...], what: str) -> Splice:
    """The part that differs: the lines around it keep their white space."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    return Splice(start + head, start + len(old) - tail, new[head : len(new) - tail], what)


# ---------------------------------------------------------------------- line operations
def apply_operations(items: Sequence[Any], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file that JSON operations (replace, insert, delete) name; lines are those of it as shown."""
    if len(items) > MAX_CHANGES:
        raise EditError(f"{len(items)} line operations are more than {MAX_CHANGES}")
    files: dict[str, File] = {}
    splices: dict[str, list[Splice]] = {}
    for number, item in enumerate(items, 1):
        what = f"edit {number}"
        if not isinstance(item, Mapping):
            raise EditError(f"{what} is not a JSON object", hint=f"write it like {_EXAMPLE}")
        name = file_names.of_item(item, code, what)
        if name not in files:
            files[name] = File(code[name])
        splices.setdefault(name, []).append(_operation(item, files[name].lines, name, what))
    return {name: files[name].replace(wanted, name) for name, wanted in splices.items()}


def _operation(item: Mapping[str, Any], there: Sequence[str], file: str, what: str) -> Splice:
    operation = item.get("op")
    if operation not in _OPERATIONS:
        raise EditError(f'{what}: "op" is {show(operation)}', hint=f"it is one of {', '.join(_OPERATIONS)}")
    first = _number(item.get("line"), "line", what)
    last = first if item.get("end") is None else _number(item["end"], "end", what)
    text = item.get("text")
    if operation != "delete" and not isinstance(text, str):
        raise EditError(f'{what}: "{operation}" needs "text"', hint=f"write it like {_EXAMPLE}")
    lines = lines_of(text) if isinstance(text, str) else ()
    lowest = 0 if operation == "insert" else 1
    if not lowest <= first <= last <= len(there):
        raise EditError(
            f"{what}: there are no lines {first} to {last}: {file} has {counted(len(there), 'line')}",
            hint=f'"line" is from {lowest} to {len(there)}, and "end", the last line of the range, is not before it',
        )
    _check_expected(item.get("expect"), there, first, file, what)
    if operation == "insert":
        if last != first:
            raise EditError(f'{what}: "insert" takes no "end"', hint='it puts its text after "line" (0: at the top)')
        return Splice(first, first, lines or ("",), what)
    return Splice(first - 1, last, () if operation == "delete" else lines, what)


def _number(value: object, key: str, what: str) -> int:
    """A line number; models write it as a text now and then."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _LONGEST_NUMBER:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 10**_LONGEST_NUMBER:
        raise EditError(f'{what}: "{key}" is {show(value)}, not a line number', hint=f"write it like {_EXAMPLE}")
    return value


def _check_expected(expect: object, there: Sequence[str], first: int, file: str, what: str) -> None:
    """Raise where the lines from ``first`` on are not the expected ones, white space around them aside."""
    if expect is None or expect == "":
        return
    if not isinstance(expect, str):
        raise EditError(f'{what}: "expect" is {show(expect)}, not a text')
    wanted = [line.strip() for line in lines_of(expect)]
    if first > 0 and wanted == [line.strip() for line in there[first - 1 : first - 1 + len(wanted)]]:
        return
    own = f"line {first} of {file} is `{show(there[first - 1].strip())}`" if first else "there is no line 0"
    elsewhere = [str(n) for n, line in enumerate(there, 1) if line.strip() == wanted[0]][:_MOST_NAMED]
    where = f"; that is at line {', '.join(elsewhere)}" if elsewhere and wanted[0] else ""
    raise EditError(
        f"{what}: {own}, not `{show(wanted[0])}` as expected{where}",
        hint="count in the file as it was shown; earlier edits of the same answer do not shift its numbers",
    )

"""Changes of parts of a file: text that gives way to other text (SEARCH/REPLACE, hunks), or lines by their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits import file_names
from autoresearchd.policy.edits.answer_parts import Block
from autoresearchd.policy.edits.edit import MAX_CHANGES, EditError, show
from autoresearchd.policy.edits.file_lines import File, Splice, lines_of, shift

_DIVIDER = re.compile(r"={5,9}\s*$")
_MOST_DIVIDERS = 8
_SHORTEST_PART = 4
_SHAPE = "write <<<<<<< SEARCH, the lines as they are, =======, the lines as they shall be, >>>>>>> REPLACE"
_OPERATIONS = ("replace", "insert", "delete")
_LONGEST_NUMBER = 7
_EXAMPLE = '{"file": "train.py", "op": "replace", "line": 12, "end": 14, "expect": "text of line 12", "text": "…"}'
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """Old lines, and the new ones that take their place."""

    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One wanted replacement.

    what: its name in messages. readings: how its text can be divided into old and new; nearly always one way. line:
    where a hunk says that it begins (from 1), which decides between equal places.
    """

    what: str
    file: str
    readings: tuple[Pair, ...]
    line: int | None = None


# ---------------------------------------------------------------------- what is asked for
def from_blocks(blocks: Sequence[Block], code: Mapping[str, str]) -> list[Change]:
    """The changes that blocks ask for; a block without a name goes on with the file of the block before it."""
    changes: list[Change] = []
    file: str | None = None
    for block in blocks:
        what = f"SEARCH/REPLACE block {block.number}"
        if not block.closed:
            raise EditError(f"{what} has no >>>>>>> REPLACE line at its end", hint=_SHAPE)
        file = _file_of_block(block, code, what) or file or file_names.only(code)
        if file is None:
            raise EditError(
                f"{what} does not say which file it is for",
                hint=f"write the file's name on the line above it, one of: {file_names.allowed(code)}",
            )
        changes.append(Change(what, file, _readings(block, what)))
    return changes


def from_pairs(items: Sequence[Any], code: Mapping[str, str]) -> list[Change]:
    """The changes in a JSON list of ``{"file", "search", "replace"}``."""
    changes = []
    for number, item in enumerate(items, 1):
        what = f"search_replace item {number}"
        if not isinstance(item, Mapping):
            raise EditError(f"{what} is not a JSON object", hint='write {"file": "…", "search": "…", "replace": "…"}')
        search, replace = item.get("search"), item.get("replace")
        if not isinstance(search, str) or not isinstance(replace, str):
            raise EditError(f'{what} needs "search" and "replace", both texts')
        changes.append(Change(what, file_names.of_item(item, code, what), (Pair(lines_of(search), lines_of(replace)),)))
    return changes


def _file_of_block(block: Block, code: Mapping[str, str], what: str) -> str | None:
    for name in block.names:
        file = file_names.title(name, code, what)
        if file is not None:
            return file
    return file_names.in_info(block.info, code, what) or file_names.mentioned(block.names, code, what)


def _readings(block: Block, what: str) -> tuple[Pair, ...]:
    """Each way to divide a block, as a file may hold lines like the divider."""
    dividers = [i for i, line in enumerate(block.lines) if line.startswith("=====") and _DIVIDER.match(line)]
    dividers = [i for i in dividers if block.lines[i].rstrip() == "======="] or dividers
    if not dividers:
        raise EditError(f"{what} has no ======= line between old and new text", hint=_SHAPE)
    if len(dividers) > _MOST_DIVIDERS:
        raise EditError(f"{what} has {len(dividers)} ======= lines", hint="use smaller blocks, or line operations")
    return tuple(Pair(block.lines[:i], block.lines[i + 1 :]) for i in dividers)


# ---------------------------------------------------------------------- where it goes
def apply_changes(changes: Sequence[Change], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file named; every change is looked for in the file as it was shown."""
    if len(changes) > MAX_CHANGES:
        raise EditError(f"{len(changes)} changes are more than {MAX_CHANGES}")
    files: dict[str, File] = {}
    splices: dict[str, list[Splice]] = {}
    seen: set[tuple[object, ...]] = set()
    for change in changes:
        same = (change.file, change.readings, change.line)
        if same not in seen:  # a model that repeats itself means the same change
            seen.add(same)
            if change.file not in files:
                files[change.file] = File(code[change.file])
            splices.setdefault(change.file, []).append(_place_any(change, files[change.file]))
    return {name: files[name].replace(wanted, name) for name, wanted in splices.items()}


def _place_any(change: Change, file: File) -> Splice:
    """The longest old text that is in the file is meant: lines like the divider are hardly in it by chance."""
    for pair in reversed(change.readings[1:]):
        try:
            return _place(change, pair, file)
        except EditError:
            continue
    return _place(change, change.readings[0], file)


def _place(change: Change, pair: Pair, file: File) -> Splice:
    """Where the old text is: exactly, but for white space at line ends, with shifted indentation, within a line."""
    if not any(line.strip() for line in pair.old):
        return _insertion(change, pair, file)
    for form in (str, str.rstrip):
        places = file.find(pair.old, form)
        if places:
            return _trimmed(_one(places, change), pair, change.what)
    shifted = file.find_shifted(pair.old)
    if shifted:
        start = _one([place for place, _, _ in shifted], change)
        more, less = next((m, s) for place, m, s in shifted if place == start)
        new = shift(pair.new, more, less)
        if new is None:
            raise EditError(
                f"{change.what}: the old text is indented more than line {start + 1} of {change.file}, and the new "
                "text is not",
                hint="indent both exactly as the file does",
            )
        return _trimmed(start, Pair(shift(pair.old, more, less) or pair.old, new), change.what)
    within = _within(change, pair, file)
    if within is not None:
        return within
    raise EditError(
        f"{change.what}: its old text is not in {change.file}{file.most_similar(pair.old)}",
        hint="copy whole lines of the file as it was shown, with their indentation, and only as many as needed",
    )


def _insertion(change: Change, pair: Pair, file: File) -> Splice:
    """New lines where the old text is blank: at the line that a hunk names, or in an empty file."""
    if change.line is not None and not pair.old and change.line <= len(file.lines):
        return Splice(change.line, change.line, pair.new, change.what)
    if change.line is not None and change.line - 1 in file.find(pair.old, str):
        return _trimmed(change.line - 1, pair, change.what)
    if not any(line.strip() for line in file.lines):
        return Splice(0, len(file.lines), pair.new, change.what)
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


def _trimmed(start: int, pair: Pair, what: str) -> Splice:
    """The part that differs: the lines around it keep their white space."""
    old, new = pair.old, pair.new
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    return Splice(start + head, start + len(old) - tail, new[head : len(new) - tail], what)


def _within(change: Change, pair: Pair, file: File) -> Splice | None:
    """A part of one line that is in the file once, and is no part of a longer name or number there."""
    if len(pair.old) != 1 or len(pair.new) > 1 or len(pair.old[0].strip()) < _SHORTEST_PART:
        return None
    text, new = pair.old[0].strip(), "".join(pair.new).strip()
    lines = [i for i, line in enumerate(file.lines) for _ in range(line.count(text))]
    if not lines:
        return None
    if len(lines) > 1:
        where = ", ".join(str(line + 1) for line in lines[:_MOST_NAMED])
        raise EditError(
            f"{change.what}: its old text is in {counted(len(lines), 'place')} of {change.file}, in lines {where}",
            hint="copy the whole line, and the lines around it, so that the text is there only once",
        )
    number = lines[0]
    before, _, after = file.lines[number].partition(text)
    begins = re.match(r"[\w.]", text[0]) and re.match(r"[\w.+-]", before[-1:])
    ends = re.match(r"[\w.]", text[-1]) and re.match(r"[\w.+-]", after[:1])
    if begins or ends:
        whole = show(file.lines[number].strip())
        raise EditError(
            f"{change.what}: its old text is only a part of `{whole}`, line {number + 1} of {change.file}",
            hint="copy the whole line",
        )
    return Splice(number, number + 1, (before + new + after,), change.what)


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

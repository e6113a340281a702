"""SEARCH/REPLACE: text of a file that is there exactly once gives way to other text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits import paths
from autoresearchd.policy.edits.model import MAX_CHANGES, EditError, shown
from autoresearchd.policy.edits.places import Places
from autoresearchd.policy.edits.segments import Block
from autoresearchd.policy.edits.similar import most_similar
from autoresearchd.policy.edits.source import Source, Splice, lines_of, spliced

_DIVIDER = re.compile(r"={5,9}\s*$")
_MOST_DIVIDERS = 8
_SHORTEST_PART = 4
_WORD = re.compile(r"[\w.]")
_GOES_ON = re.compile(r"[\w.+-]")
_SHAPE = "write <<<<<<< SEARCH, the lines as they are, =======, the lines as they shall be, >>>>>>> REPLACE"


@dataclass(frozen=True, slots=True)
class _Pair:
    search: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One wanted replacement. readings: how its text can be divided into old and new; nearly always one way."""

    what: str
    file: str
    readings: tuple[_Pair, ...]


def from_blocks(blocks: Sequence[Block], code: Mapping[str, str]) -> list[Change]:
    """The changes that blocks ask for; a block without a name goes on with the file of the block before it."""
    changes: list[Change] = []
    file: str | None = None
    for block in blocks:
        what = f"SEARCH/REPLACE block {block.number}"
        if not block.closed:
            raise EditError(f"{what} has no >>>>>>> REPLACE line at its end", mend=_SHAPE)
        file = _file(block, code, what) or file or paths.only(code)
        if file is None:
            raise EditError(
                f"{what} does not say which file it is for",
                mend=f"write the file's name on the line above it, one of: {paths.allowed(code)}",
            )
        changes.append(Change(what, file, _readings(block, what)))
    return changes


def from_pairs(items: Sequence[Any], code: Mapping[str, str]) -> list[Change]:
    """The changes in a JSON list of ``{"file", "search", "replace"}``."""
    changes = []
    for number, item in enumerate(items, 1):
        what = f"search_replace item {number}"
        if not isinstance(item, Mapping):
            raise EditError(f"{what} is no JSON object", mend='write {"file": "…", "search": "…", "replace": "…"}')
        search, replace = item.get("search"), item.get("replace")
        if not isinstance(search, str) or not isinstance(replace, str):
            raise EditError(f'{what} needs "search" and "replace", both texts')
        name = item.get("file") or paths.only(code)
        if name is None:
            raise EditError(f'{what} has no "file"', mend=f"name one of: {paths.allowed(code)}")
        file = paths.known(name, code, what)
        changes.append(Change(what, file, (_Pair(lines_of(search), lines_of(replace)),)))
    return changes


def apply_changes(changes: Sequence[Change], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file named; every change is looked for in the file as it was shown."""
    if len(changes) > MAX_CHANGES:
        raise EditError(f"{len(changes)} SEARCH/REPLACE blocks are more than {MAX_CHANGES}")
    places: dict[str, Places] = {}
    splices: dict[str, list[Splice]] = {}
    seen: set[tuple[str, tuple[_Pair, ...]]] = set()
    for change in changes:
        if (change.file, change.readings) in seen:  # a model that repeats itself means the same change
            continue
        seen.add((change.file, change.readings))
        if change.file not in places:
            places[change.file] = Places(Source.of(code[change.file]))
        splices.setdefault(change.file, []).append(_placed(change, places[change.file]))
    return {file: spliced(places[file].source, found, file) for file, found in splices.items()}


def _file(block: Block, code: Mapping[str, str], what: str) -> str | None:
    for name in block.names:
        found = paths.title(name, code, what)
        if found is not None:
            return found
    return paths.in_info(block.info, code, what) or paths.mentioned(block.names, code, what)


def _readings(block: Block, what: str) -> tuple[_Pair, ...]:
    """Each way to divide a block. A file may hold lines like the divider, so the right one is told by what is there."""
    dividers = [i for i, line in enumerate(block.lines) if line.startswith("=====") and _DIVIDER.match(line)]
    exact = [i for i in dividers if block.lines[i].rstrip() == "======="]
    dividers = exact or dividers
    if not dividers:
        raise EditError(f"{what} has no ======= line between old and new text", mend=_SHAPE)
    if len(dividers) > _MOST_DIVIDERS:
        raise EditError(f"{what} has {len(dividers)} ======= lines", mend="use smaller blocks, or line operations")
    return tuple(_Pair(block.lines[:i], block.lines[i + 1 :]) for i in dividers)


def _placed(change: Change, places: Places) -> Splice:
    if len(change.readings) == 1:
        return _splice(change, change.readings[0], places)
    # What is in the file with lines like the divider in it is hardly there by chance: the longest that is, is meant.
    for pair in reversed(change.readings[1:]):
        try:
            return _splice(change, pair, places)
        except EditError:
            continue
    return _splice(change, change.readings[0], places)


def _splice(change: Change, pair: _Pair, places: Places) -> Splice:
    """Where the old text is, at the first of these degrees that finds any place: exact, trimmed, shifted, within."""
    source, what = places.source, change.what
    if not any(line.strip() for line in pair.search):
        if any(line.strip() for line in source.lines):
            raise EditError(
                f"{what} has an empty SEARCH part, but {change.file} is not empty",
                mend="put lines of the file into SEARCH; to insert, repeat the line above in REPLACE",
            )
        return Splice(0, len(source.lines), pair.replace, what)
    for look in (places.exact, places.trimmed):
        found = look(pair.search)
        if found:
            return _trimmed(_one(found, change), pair, what)
    shifted = places.shifted(pair.search)
    if shifted:
        start = _one([place for place, _ in shifted], change)
        replace = shifted[0][1].applied(pair.replace)
        if replace is None:
            raise EditError(
                f"{what}: SEARCH is indented more than line {start + 1} of {change.file}, and REPLACE is not",
                mend="indent both exactly as the file does",
            )
        return _trimmed(start, _Pair(shifted[0][1].applied(pair.search) or pair.search, replace), what)
    within = _within(change, pair, places)
    if within is not None:
        return within
    raise EditError(
        f"{what}: its SEARCH text is not in {change.file}{most_similar(pair.search, source.lines)}",
        mend="copy whole lines of the file as it was shown, with their indentation, and only as many as needed",
    )


def _one(found: Sequence[int], change: Change) -> int:
    if len(found) > 1:
        where = ", ".join(str(place + 1) for place in found)
        raise EditError(
            f"{change.what}: its SEARCH text is in {change.file} more than once, at lines {where}",
            mend="add the lines around it until the text is there only once",
        )
    return found[0]


def _trimmed(start: int, pair: _Pair, what: str) -> Splice:
    """The part that differs: the lines around it keep their white space and line ends."""
    search, replace = pair.search, pair.replace
    shorter = min(len(search), len(replace))
    head = next((i for i in range(shorter) if search[i] != replace[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if search[-1 - i] != replace[-1 - i]), rest)
    return Splice(start + head, start + len(search) - tail, replace[head : len(replace) - tail], what)


def _within(change: Change, pair: _Pair, places: Places) -> Splice | None:
    """A part of one line that is in the file once, and is no part of a longer name or number there."""
    if len(pair.search) != 1 or len(pair.replace) > 1:
        return None
    text, new = pair.search[0].strip(), "".join(pair.replace).strip()
    if len(text) < _SHORTEST_PART:
        return None
    found = places.part_of(text)
    if not found:
        return None
    if len(found) > 1:
        where = ", ".join(str(line + 1) for line, _ in found)
        raise EditError(
            f"{change.what}: its SEARCH text is part of {counted(len(found), 'place')} of {change.file}, "
            f"in lines {where}",
            mend="copy the whole line, and the lines around it, so that the text is there only once",
        )
    line, column = found[0]
    whole = places.source.lines[line]
    before, after = whole[:column], whole[column + len(text) :]
    begins = _WORD.match(text[0]) and _GOES_ON.match(before[-1:])
    ends = _WORD.match(text[-1]) and _GOES_ON.match(after[:1])
    if begins or ends:
        raise EditError(
            f"{change.what}: its SEARCH text is only a part of `{shown(whole.strip())}`, line {line + 1} of "
            f"{change.file}",
            mend="copy the whole line",
        )
    return Splice(line, line + 1, (before + new + after,), change.what)

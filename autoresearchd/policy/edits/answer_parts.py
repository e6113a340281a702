"""An answer cut into prose, fenced blocks, SEARCH/REPLACE blocks and bare diffs; and the JSON objects in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autoresearchd.policy.edits.edit import EditError, show

_SEARCH = re.compile(r"<{5,9} ?SEARCH>?(?:[ \t]+(?P<name>\S.*))?\s*$")
_REPLACE = re.compile(r">{5,9} ?REPLACE\b|>{7}\s*$")
_FENCE = re.compile(r"(?P<indent>[ \t]{0,8})(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_THINKING = re.compile(r"<(think|thinking|thought|reasoning)>")
_THOUGHT = re.compile(r"^[ \t]*</(?:think|thinking|thought|reasoning)>[ \t]*\r?$", re.MULTILINE)
_THINKING_LINE = re.compile(r"^<(?:think|thinking|thought|reasoning)>", re.MULTILINE)
_MAX_PARTS = _MAX_OBJECTS = 1000
_MAX_SCANNED = 8 * 1024 * 1024
_DEEP = 100_000
_BEGIN = re.compile(r'^[ \t]*(?=\{\s*")', re.MULTILINE)
_BARE = re.compile(r'^(?=\{\s*")', re.MULTILINE)
_EDIT_KEY = re.compile(r'"edits"\s*:')
_LANGUAGES = frozenset({"", "json", "jsonc", "json5", "jsonl"})


@dataclass(frozen=True, slots=True)
class Prose:
    """Lines outside of everything else. diff: whether a bare diff begins with the first of them."""

    lines: tuple[str, ...]
    diff: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block without SEARCH/REPLACE blocks. info: what stands after the opening fence; before: above it."""

    info: str
    lines: tuple[str, ...]
    before: str
    closed: bool = True

    @property
    def language(self) -> str:
        """The first word after the opening fence, in lower case."""
        return re.split(r"[\s:,{]", self.info[:40].strip(), maxsplit=1)[0].lower()


@dataclass(frozen=True, slots=True)
class Block:
    """The lines between a SEARCH and a REPLACE marker.

    names: texts that may name its file, nearest first. info: of the fence around it. closed: whether the REPLACE marker
    is there.
    """

    lines: tuple[str, ...]
    names: tuple[str, ...]
    info: str
    closed: bool


T = TypeVar("T", Prose, Fence, Block)


@dataclass(frozen=True, slots=True)
class Segments:
    """An answer in parts. unfinished: whether it breaks off while the model was thinking."""

    parts: tuple[Prose | Fence | Block, ...]
    unfinished: bool = False

    def of(self, kind: type[T]) -> list[T]:
        """The parts of one kind."""
        return [part for part in self.parts if isinstance(part, kind)]


def without_lost_thought(text: str) -> str:
    """The text after a thinking section whose beginning is not in it: some chat templates put it into the prompt."""
    end = _THOUGHT.search(text)
    begin = _THINKING_LINE.search(text)
    if end is None or (begin is not None and begin.start() < end.start()):
        return text
    return text[end.end() :].lstrip("\r\n")


def segments(text: str) -> Segments:
    """Cut an answer; thinking sections (``<think>…</think>``) are left out."""
    return _Scanner(text).run()


def begins_file(lines: Sequence[str], at: int) -> bool:
    """Whether the two lines of a diff that name its file stand here."""
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


class _Scanner:
    """Walks over the lines once; each method takes the lines of one kind of part."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._at = 0
        self._parts: list[Prose | Fence | Block] = []
        self._prose: list[str] = []
        self._diff = False
        self._before = ""
        self._unfinished = False

    def run(self) -> Segments:
        """All parts in order."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            first = line[:1]
            if first == "<" and (marker := _SEARCH.match(line)):
                names = self._before
                self._flush()
                self._block(marker["name"] or "", (names,), "", "")
            elif first == "<" and not self._diff and (thinking := _THINKING.match(line)):
                self._think(f"</{thinking[1]}>")
            elif first and first in "`~ \t" and (opening := self._opening(line)):
                self._fence(opening)
            else:
                self._take(line, first)
        self._flush()
        return Segments(tuple(self._parts), self._unfinished)

    def _take(self, line: str, first: str) -> None:
        if not self._diff and first and first in "d-@" and self._begins_diff(line):
            self._flush()
            self._diff = True
        self._prose.append(line)
        if line and not line.isspace():
            self._before = line
        self._at += 1

    def _begins_diff(self, line: str) -> bool:
        return line.startswith(("diff --git ", "@@ -")) or begins_file(self._lines, self._at)

    def _opening(self, line: str) -> re.Match[str] | None:
        # In a bare diff an indented fence is a line of the file that the diff changes.
        if line[0] in " \t" and (self._diff or line.lstrip(" \t")[:3] not in ("```", "~~~")):
            return None
        return _FENCE.match(line)

    def _flush(self) -> None:
        if self._prose:
            self._add(Prose(tuple(self._prose), self._diff))
        self._prose, self._diff, self._before = [], False, ""

    def _think(self, end: str) -> None:
        """Leave out the lines up to the end of the thinking."""
        while self._at < len(self._lines):
            # The last end on the line: each line is cut once, however often the tags stand on it.
            _, found, rest = self._lines[self._at].rpartition(end)
            if found:
                self._lines[self._at] = rest
                return
            self._at += 1
        self._unfinished = True

    def _block(self, name: str, names: tuple[str, ...], info: str, indent: str) -> None:
        """Take a block, from its SEARCH marker to its REPLACE marker or to the next SEARCH marker."""
        self._at += 1
        body: list[str] = []
        closed = False
        while self._at < len(self._lines):
            line = self._lines[self._at].removeprefix(indent)
            if line.startswith(">>>>>") and _REPLACE.match(line):
                closed = True
                self._at += 1
                break
            if line.startswith("<<<<<") and _SEARCH.match(line):
                break
            body.append(line.removesuffix("\r"))
            self._at += 1
        given = tuple(n for n in (name, *names) if n and not n.isspace())
        self._add(Block(tuple(body), given, info, closed))

    def _fence(self, opening: re.Match[str]) -> None:
        """Take a fenced block with all that is in it."""
        before, indent, fence, info = self._before, opening["indent"], opening["fence"], opening["info"].strip()
        self._flush()
        self._at += 1
        body: list[str] = []
        inner, blocks, closed = "", False, False
        while self._at < len(self._lines):
            line = self._lines[self._at].removeprefix(indent)
            if line.startswith("<<<<<") and (marker := _SEARCH.match(line)):
                self._block(marker["name"] or "", (inner, before), info, indent)
                # The name above the fence is that of its first block; later ones follow it unless they name another.
                inner, before, blocks = "", "", True
                continue
            self._at += 1
            if line.startswith(fence) and line.strip().strip(fence[0]) == "":
                closed = True
                break
            body.append(line)
            if line and not line.isspace():
                inner = line
        if not blocks:
            self._add(Fence(info, tuple(body), before, closed))

    def _add(self, part: Prose | Fence | Block) -> None:
        if len(self._parts) >= _MAX_PARTS:
            raise EditError(f"the answer has more than {_MAX_PARTS} parts", hint="make fewer changes at once")
        self._parts.append(part)


# ---------------------------------------------------------------------- JSON
@dataclass(frozen=True, slots=True)
class Objects:
    """The objects in order; broken: what is wrong with the first that looks like an edit and does not parse."""

    objects: tuple[Mapping[str, Any], ...]
    broken: str = ""

    @property
    def edit(self) -> Mapping[str, Any] | None:
        """The last object that holds an edit."""
        return next((o for o in reversed(self.objects) if o.get("edits")), None)


def json_objects(text: str, parts: Segments) -> Objects:
    """All objects outside of code; last the one that the answer begins with, as structured output does."""
    texts: list[tuple[str, re.Pattern[str]]] = []
    for part in parts.parts:
        if isinstance(part, Prose):
            # An indented brace in a bare diff belongs to the file that it changes.
            texts.append(("\n".join(part.lines), _BARE if part.diff else _BEGIN))
        elif isinstance(part, Fence) and part.language in _LANGUAGES:
            texts.append(("\n".join(part.lines), _BEGIN))
    found = _read(texts)
    leading = _read([(text, _BEGIN)], most=1) if text.startswith("{") else Objects(())
    return Objects((*found.objects, *leading.objects), leading.broken or found.broken)


def _read(texts: Iterable[tuple[str, re.Pattern[str]]], most: int = _MAX_OBJECTS) -> Objects:
    # Line feeds inside strings are what models write; NaN is taken for a value that is not there.
    decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
    objects: list[Mapping[str, Any]] = []
    broken, scanned, tried = "", 0, 0
    for text, begin in texts:
        at = 0
        while tried < most and scanned < _MAX_SCANNED and (start := begin.search(text, at)):
            tried += 1
            try:
                value, at = decoder.raw_decode(text, start.end())
            except json.JSONDecodeError as error:
                at = start.end() + 1
                # How far it got is what it cost: objects that break off late must not be read again and again.
                scanned += error.pos - start.end() + 1
                if not broken and _EDIT_KEY.search(text, start.end(), start.end() + _DEEP):
                    broken = f"the JSON object is broken at {_near(text, error)}: {error.msg}"
            except (ValueError, RecursionError) as error:
                at = start.end() + 1
                scanned += _DEEP
                broken = broken or f"the JSON object cannot be read: {show(str(error))}"
            else:
                objects.append(value)
    return Objects(tuple(objects), broken)


def _near(text: str, error: json.JSONDecodeError) -> str:
    line = text[: error.pos].rpartition("\n")[2][-40:]
    return f"line {error.lineno}, column {error.colno}, after `{show(line)}`"

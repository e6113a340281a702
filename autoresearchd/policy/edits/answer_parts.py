"""An answer cut into prose, fences, SEARCH/REPLACE blocks, bare diffs and JSON objects; and the files that it names."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.outlook import Value

MAX_ANSWER_LINES = 100_000
_SHOWN = 120
_LONGEST = 300
_QUOTES = "`'\"*"
_DECORATION = " \t\r*`'\"#:()[]<>"
_LEAD = re.compile(r"^(?:#{1,6}\s*|>\s*|[-*+]\s+|\d{1,3}[.)]\s+|//\s+)*")
_TITLE = re.compile(r"^(?:file(?:[ _-]?(?:name|path))?|path)\s*:\s*", re.IGNORECASE)
_KEY = re.compile(r"(?:title|file|filename|filepath|path|name)=", re.IGNORECASE)
_PATH = re.compile(
    r"(?:\.{0,2}/|~/|\.{1,2}\\|[A-Za-z]:\\|\.\w+(?:[/\\]|$))"
    r"|.*\.(?:py|pyi|pyx|ipynb|c|h|cc|cpp|hpp|cu|cuh|rs|go|js|ts|sh|ya?ml|json|toml|cfg|ini|txt|md|csv|lock|patch"
    r"|bin|pt)$"
    r"|(?:(?:gnu)?make|docker|just|proc|gem|rake)file$",
    re.IGNORECASE,
)
_SHORT = 6
"""Words of a line above a block that does nothing but say which file the block is for."""
_SEARCH = re.compile(r"<{5,9} ?SEARCH>?(?:[ \t]+(?P<name>\S.*))?\s*$")
_REPLACE = re.compile(r">{5,9} ?REPLACE\b|>{7}\s*$")
_FENCE = re.compile(r"(?P<indent>[ \t]{0,8})(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_THOUGHTS = "think|thinking|thought|reasoning"
_THINKING = re.compile(rf"<({_THOUGHTS})>")
_THOUGHT = re.compile(rf"^[ \t]*</(?:{_THOUGHTS})>[ \t]*\r?$", re.MULTILINE)
_THINKING_LINE = re.compile(rf"^[ \t]*<(?:{_THOUGHTS})>", re.MULTILINE)
_OPENS, _CLOSES = (re.compile(marker, re.MULTILINE) for marker in (r"^<{5,9} ?SEARCH", r"^>{5,9} ?REPLACE"))
_FENCES = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_THINKING_SECTION = re.compile(rf"<({_THOUGHTS})>.*?(?:</\1>|\Z)", re.DOTALL)
_THOUGHTS_END = re.compile(rf"</(?:{_THOUGHTS})>")
_EDITING = re.compile(
    r"^(?:[ \t]*(?:```|~~~)|<{5}|>{5}|@@|--- |\+\+\+ )|\"(?:edits|search_replace|diff|files)\"", re.MULTILINE
)
_MAX_PARTS = _MAX_OBJECTS = 1000
_MAX_SCANNED = 8 * 1024 * 1024
_DEEP = 100_000
_BEGIN = re.compile(r'^[ \t]*(?=\{\s*")', re.MULTILINE)
_BARE = re.compile(r'^(?=\{\s*")', re.MULTILINE)
_EDIT_KEY = re.compile(r'"edits"\s*:')
_LANGUAGES = frozenset({"", "json", "jsonc", "json5", "jsonl"})


@dataclass(frozen=True, slots=True)
class Edit:
    """A usable answer.

    files: new full text of each changed file. form: ``search_replace``, ``lines``, ``diff`` or ``whole``. words: what
    the answer says of itself, bounded and cleaned: ``hypothesis``, ``description``, ``expected_delta`` … and free keys.
    changes: the constants that it sets and nothing beside them, named as the search does; empty where it is no such.
    """

    files: Mapping[str, str]
    form: str
    words: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Value] = field(default_factory=dict)


class EditError(PolicyError):
    """An answer that cannot be used, in words that the model can be told.

    label: ``malformed_answer``, ``illegal_edit`` (a file that may not be edited) or ``no_op`` (nothing changes).
    """

    def __init__(self, what: str, *, label: Label = Label.MALFORMED_ANSWER, hint: str = "") -> None:
        super().__init__(what, label=label, hint=hint)


def show(text: object, most: int = _SHOWN) -> str:
    """A text as it may stand in a message: on one line, control characters escaped, spaces kept, cut to a length."""
    line = text if isinstance(text, str) else repr(text)[: most + 1]
    cut = line if len(line) <= most else line[: most - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def said(text: str) -> str:
    """An answer without the thoughts in it, and without those whose beginning is not in it; for all but edits of code.

    A program may hold such tags itself, so that ``AnswerParts`` takes them for tags only where no code stands.
    """
    return _THOUGHTS_END.split(_THINKING_SECTION.sub("", text))[-1].lstrip()


def means_to_edit(text: str) -> bool:
    """Whether an answer has something, outside of its thoughts, that an edit of code has."""
    return _EDITING.search(said(text)) is not None


# ---------------------------------------------------------------------- parts of an answer
@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer; a diff is a bare one with what follows it, a block stands between its two markers.

    info: what stands after the opening fence of a fence, or of the one around a block. names: texts that may name its
    file, nearest first. closed: whether its end is there. mark: what a fence begins with.
    """

    kind: Literal["prose", "diff", "fence", "block"]
    lines: tuple[str, ...]
    info: str = ""
    names: tuple[str, ...] = ()
    closed: bool = True
    mark: str = ""

    @property
    def language(self) -> str:
        return re.split(r"[\s:,{]", self.info[:40].strip(), maxsplit=1)[0].lower()


def begins_file(lines: Sequence[str], at: int) -> bool:
    """Whether the two lines that name the file of a diff begin here."""
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


class AnswerParts:
    """An answer in parts, without thinking sections (``<think>…</think>``); each line is looked at once.

    unfinished: whether it breaks off while the model was thinking. objects: the JSON objects outside of code, last the
    one that the answer begins with, as structured output does. broken: what is wrong with the first object that looks
    like an edit and does not parse.
    """

    def __init__(self, text: str) -> None:
        self.text = text = _without_lost_thought(text.lstrip("\ufeff \t\r\n"))
        self.parts: list[Part] = []
        self.unfinished = False
        self._lines, self._at = text.split("\n"), 0
        self._prose: list[str] = []
        self._in_diff, self._before = False, ""
        while self._at < len(self._lines):
            self._take(self._lines[self._at])
        self._end_prose()
        # An indented brace in a bare diff belongs to the file that it changes.
        texts = [
            ("\n".join(part.lines), _BARE if part.kind == "diff" else _BEGIN)
            for part in self.parts
            if part.kind in ("prose", "diff") or (part.kind == "fence" and part.language in _LANGUAGES)
        ]
        self.objects, self.broken = _read_objects(texts)
        if text.startswith("{"):
            leading, broken = _read_objects([(text, _BEGIN)], most=1)
            self.objects, self.broken = self.objects + leading, broken or self.broken

    def _take(self, line: str) -> None:
        first = line[:1]
        if first == "<" and (marker := _SEARCH.match(line)):
            names = (marker["name"], self._before)
            self._end_prose()
            self._block(names)
        elif first == "<" and not self._in_diff and (thinking := _THINKING.match(line)):
            self._skip_thinking(f"</{thinking[1]}>")
        elif first and first in "`~ \t" and (opening := self._opening(line)):
            self._fence(opening)
        else:
            begins = line.startswith(("diff --git ", "@@ -")) or begins_file(self._lines, self._at)
            if begins and not self._in_diff:
                self._end_prose()
                self._in_diff = True
            self._prose.append(line)
            if line and not line.isspace():
                self._before = line
            self._at += 1

    def _opening(self, line: str) -> re.Match[str] | None:
        # In a bare diff an indented fence is a line of the file that the diff changes.
        if line[0] in " \t" and (self._in_diff or line.lstrip(" \t")[:3] not in ("```", "~~~")):
            return None
        return _FENCE.match(line)

    def _end_prose(self) -> None:
        if self._prose:
            self._add(Part("diff" if self._in_diff else "prose", tuple(self._prose)))
        self._prose, self._in_diff, self._before = [], False, ""

    def _skip_thinking(self, end: str) -> None:
        while self._at < len(self._lines):
            # The last end on the line: each line is cut once, however often the tags stand on it.
            _, found, rest = self._lines[self._at].rpartition(end)
            if found:
                self._lines[self._at] = rest
                return
            self._at += 1
        self.unfinished = True

    def _block(self, names: tuple[str | None, ...], info: str = "", indent: str = "") -> None:
        """Take a block, from its SEARCH marker to its REPLACE marker or to the next SEARCH marker."""
        self._at += 1
        body: list[str] = []
        closed = False
        while self._at < len(self._lines) and not closed:
            line = self._lines[self._at].removeprefix(indent)
            if line.startswith("<<<<<") and _SEARCH.match(line):
                break
            closed = line.startswith(">>>>>") and bool(_REPLACE.match(line))
            body += [] if closed else [line.removesuffix("\r")]
            self._at += 1
        self._add(Part("block", tuple(body), info, tuple(n for n in names if n and not n.isspace()), closed))

    def _fence(self, opening: re.Match[str]) -> None:
        before, indent, fence, info = self._before, opening["indent"], opening["fence"], opening["info"].strip()
        self._end_prose()
        self._at += 1
        body: list[str] = []
        inner, blocks, closed = "", False, False
        while self._at < len(self._lines) and not closed:
            line = self._lines[self._at].removeprefix(indent)
            if line.startswith("<<<<<") and (marker := _SEARCH.match(line)):
                self._block((marker["name"], inner, before), info, indent)
                # The name above the fence is that of its first block; later ones follow it unless they name another.
                inner, before, blocks = "", "", True
                continue
            self._at += 1
            closed = line.startswith(fence) and line.strip().strip(fence[0]) == ""
            body += [] if closed else [line]
            if line and not line.isspace():
                inner = line
        if not blocks:
            self._add(Part("fence", tuple(body), info, (before,), closed, fence))

    def _add(self, part: Part) -> None:
        if len(self.parts) >= _MAX_PARTS:
            raise EditError(f"the answer has more than {_MAX_PARTS} parts", hint="make fewer changes at once")
        self.parts.append(part)


def in_code(before: str) -> bool:
    """Whether what follows this beginning of an answer stands in a block or a fence that is still open."""
    return len(_OPENS.findall(before)) > len(_CLOSES.findall(before)) or len(_FENCES.findall(before)) % 2 == 1


def _without_lost_thought(text: str) -> str:
    """The text after a thinking section whose beginning is not in it: some chat templates put it into the prompt."""
    end = _THOUGHT.search(text)
    begin = _THINKING_LINE.search(text)
    if end is None or (begin is not None and begin.start() < end.start()) or in_code(text[: end.start()]):
        return text
    return text[end.end() :].lstrip("\r\n")


def _read_objects(
    texts: Iterable[tuple[str, re.Pattern[str]]], most: int = _MAX_OBJECTS
) -> tuple[list[Mapping[str, Any]], str]:
    """The objects in texts, each with the pattern of where one begins; and what is wrong with a broken edit."""
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
                objects.append(value)
            except json.JSONDecodeError as error:
                at = start.end() + 1
                # How far it got is what it cost: objects that break off late must not be read again and again.
                scanned += error.pos - start.end() + 1
                if not broken and _EDIT_KEY.search(text, start.end(), start.end() + _DEEP):
                    after = show(text[: error.pos].rpartition("\n")[2][-40:])
                    where = f"line {error.lineno}, column {error.colno}, after `{after}`"
                    broken = f"the JSON object is broken at {where}: {error.msg}"
            except (ValueError, RecursionError) as error:
                at = start.end() + 1
                scanned += _DEEP
                broken = broken or f"the JSON object cannot be read: {show(str(error))}"
    return objects, broken


# ---------------------------------------------------------------------- names of files
class Code(dict[str, str]):
    """The text of each editable file by its path, and which of the files an answer names: it may name no other."""

    def resolve(self, name: str) -> str | None:
        """The file that a name means, in whatever spelling of its folders; None where it means none."""
        bare = name.strip().strip(_QUOTES).strip()
        candidates = [bare, posixpath.normpath(bare.replace("\\", "/"))]
        candidates += [c[2:] for c in candidates if c.startswith(("a/", "b/"))]
        return next((c for c in candidates if c in self), None)

    def require(self, name: object, what: str) -> str:
        file = self.resolve(name) if isinstance(name, str) else None
        if file is None:
            raise EditError(
                f"{what}: {show(name)} is not one of the files that may be edited",
                label=Label.ILLEGAL_EDIT,
                hint=f"edit only {self.listed()}, under exactly this name",
            )
        return file

    def listed(self) -> str:
        return ", ".join(map(show, self))

    def only(self) -> str | None:
        return next(iter(self)) if len(self) == 1 else None

    def in_title(self, line: str, what: str) -> str | None:
        """The file that a line consists of the name of, however decorated; raises for the name of another file."""
        if len(line) > _LONGEST:
            return None
        text = _LEAD.sub("", line.strip(), count=1).strip(_DECORATION)
        plain = _TITLE.sub("", text, count=1).strip(_DECORATION)
        file = self.resolve(plain)
        if file is None and len(plain.split()) == 1 and (plain != text or self._is_path(plain)):
            self.require(plain, what)
        return file

    def in_info(self, info: str, what: str) -> str | None:
        """The file that the words after an opening fence name; raises for another file."""
        for word in re.split(r"[\s,{}]+", info[:_LONGEST]):
            # "python:train.py" as well as "python train.py" and "file=train.py"
            names = [_KEY.sub("", part, count=1).strip(_QUOTES) for part in (word, word.split(":", 1)[-1])]
            file = self.resolve(names[0]) or self.resolve(names[1])
            if file is not None or self._is_path(names[1]):
                return file or self.require(names[1], what)
        return None

    def in_words(self, lines: Iterable[str], what: str) -> str | None:
        """The one file that the first line to mention any of them mentions.

        A short line that mentions another file instead says that the block is for that one: it raises.
        """
        for line in lines:
            words = {word.strip(_DECORATION).rstrip(_DECORATION + ".,;!?") for word in line[:_LONGEST].split()}
            files = {path for word in words if (path := self.resolve(word)) is not None}
            if files:
                return files.pop() if len(files) == 1 else None
            others = [word for word in words if word and self._is_path(word)]
            if others and len(line.split()) <= _SHORT:
                self.require(min(others), what)
        return None

    def _is_path(self, word: str) -> bool:
        """Whether a word is the name of some file, also of an editable one in other letters."""
        lower = word.lower()
        names = {name.lower() for path in self for name in (path, posixpath.basename(path))}
        endings = tuple(ending.lower() for path in self if (ending := posixpath.splitext(path)[1]))
        return bool(_PATH.match(word)) or lower in names or lower.endswith(endings)

"""Changes of parts of a file: text that gives way to other text (SEARCH/REPLACE, hunks), or lines by their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits.answer_parts import Code, EditError, Part, begins_file, show

_MAX_CHANGES, _MAX_DIFF_LINES = 500, 50_000
_DIVIDER = re.compile(r"={5,9}\s*$")
_SHAPE = "write <<<<<<< SEARCH, the lines as they are, =======, the lines as they shall be, >>>>>>> REPLACE"
_OPERATIONS = ("replace", "insert", "delete")
_EXAMPLE = '{"file": "train.py", "op": "replace", "line": 12, "end": 14, "expect": "text of line 12", "text": "…"}'
_MOST_LINE = 10**7
_MOST_NAMED = 5
_SHORTEST_PART = 4
_MOST_PLACES, _MOST_CANDIDATES = 10, 1000
_WIDTH, _MOST_LINES, _SHOWN, _LEAST_ALIKE = 200, 20_000, 8, 60.0
_HEADER = re.compile(r"@@+ -(\d{1,9})(?:,(\d{1,9}))?")
_SIGNS = (" ", "+", "-", "\\")
_NO_TEXT = (
    "new file mode", "deleted file mode", "old mode", "new mode", "rename ", "copy ", "similarity index",
    "dissimilarity index", "Binary files", "GIT binary patch",
)  # fmt: skip
_HARMLESS = ("index ", "Index: ", "====", "diff ")
_STRAY = re.compile(r"\+[^+]|-(?:[^\s>-]|\s{2,}\S)")
_NOTHING = "/dev/null"
_LONGEST_NAME = 300


@dataclass(frozen=True, slots=True)
class Change:
    """Old lines, and the new ones that take their place.

    what: its name in messages. line: where a hunk says that it begins (from 1), which decides between equal places.
    """

    what: str = field(compare=False)  # a model that repeats itself means the same change
    file: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int | None = None


class Splice(NamedTuple):
    """Lines ``start`` up to, not including, ``stop`` (counted from 0) give way to ``lines``; ``what`` asks for it."""

    start: int
    stop: int
    lines: tuple[str, ...]
    what: str


class File:
    """The lines of a file without their ends, and what is to be spliced into them; each counts in these lines."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._end = "\r\n" if 0 < text.count("\n") == text.count("\r\n") else "\n"
        self._closed = not text or text.endswith("\n")
        lines = text.split(self._end)
        self.lines = tuple(lines[:-1] if self._closed else lines)
        self.splices: list[Splice] = []
        self._joined: dict[Callable[[str], str], str] = {}

    def find(self, wanted: Sequence[str], form: Callable[[str], str], most: int = _MOST_PLACES) -> list[int]:
        """First lines (from 0) of the places with these lines, both compared as ``form`` makes them."""
        if form not in self._joined:
            self._joined[form] = _join(map(form, self.lines))
        text, searched = self._joined[form], _join(map(form, wanted))
        places: list[int] = []
        at, line, counted = text.find(searched), 0, 0
        while at >= 0 and len(places) < most:
            line, counted = line + text.count("\n", counted, at), at
            places.append(line)
            at = text.find(searched, at + 1)
        return places

    def find_shifted(self, wanted: Sequence[str]) -> dict[int, tuple[str, str]]:
        """Places where the lines stand once all are indented alike: what to add before each, or to cut from it."""
        first = next((i for i, line in enumerate(wanted) if line.strip()), 0)
        own = _indent(wanted[first])
        places: dict[int, tuple[str, str]] = {}
        for place in self.find(wanted, str.strip, _MOST_CANDIDATES):
            there = _indent(self.lines[place + first])
            if len(places) < _MOST_PLACES and (there.endswith(own) or own.endswith(there)):
                by = there[: len(there) - len(own)], own[: len(own) - len(there)]
                moved = _shift(wanted, *by)
                if moved and all(a.rstrip() == b.rstrip() for a, b in zip(moved, self.lines[place:], strict=False)):
                    places[place] = by
        return places

    def text(self) -> str:
        """The text after all splices; line ends stay as they are, insertions at one place in the order given."""
        lines: list[str] = []
        at, before = 0, ""
        for splice in sorted(self.splices, key=lambda s: (s.start, s.stop)):
            if splice.start < at:
                raise EditError(
                    f"{before} and {splice.what} overlap in line {splice.start + 1} of {self.name}",
                    hint="write what changes the same lines as one edit; line numbers are those of the file as shown",
                )
            lines += (*self.lines[at : splice.start], *splice.lines)
            at, before = splice.stop, splice.what
        lines += self.lines[at:]
        return self._end.join(lines) + (self._end if self._closed and lines else "")

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
        return "\n".join((f"; {where} most like it:", *rows))


def _lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text in an answer: one line feed at its end closes the last line, and no text has no lines."""
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def _shift(lines: Sequence[str], more: str, less: str) -> tuple[str, ...] | None:
    if less and any(line.strip() and not line.startswith(less) for line in lines):
        return None
    return tuple(more + line.removeprefix(less) if line.strip() else line for line in lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _join(lines: Iterable[str]) -> str:
    """Lines as one text in which a search finds whole lines only."""
    return "\n" + "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------------- SEARCH/REPLACE
def from_blocks(blocks: Sequence[Part], code: Code) -> list[Change]:
    """The changes that blocks ask for; a block without a name goes on with the file of the block before it."""
    changes: list[Change] = []
    file: str | None = None
    for number, block in enumerate(blocks, 1):
        what = f"SEARCH/REPLACE block {number}"
        if not block.closed:
            raise EditError(f"{what} has no >>>>>>> REPLACE line at its end", hint=_SHAPE)
        titled = next((name for line in block.names if (name := code.in_title(line, what))), None)
        named = titled or code.in_info(block.info, what) or code.in_words(block.names, what)
        file = named or file or code.only()
        if file is None:
            raise EditError(
                f"{what} does not say which file it is for",
                hint=f"write the file's name on the line above it, one of: {code.listed()}",
            )
        dividers = [i for i, line in enumerate(block.lines) if line.startswith("=====") and _DIVIDER.match(line)]
        dividers = [i for i in dividers if block.lines[i].rstrip() == "======="] or dividers
        if not dividers:
            raise EditError(f"{what} has no ======= line between old and new text", hint=_SHAPE)
        if len(dividers) > 1:
            raise EditError(f"{what} has {len(dividers)} ======= lines", hint="use smaller blocks, or line operations")
        changes.append(Change(what, file, block.lines[: dividers[0]], block.lines[dividers[0] + 1 :]))
    return changes


def from_pairs(items: Sequence[Mapping[str, Any]], code: Code) -> list[Change]:
    """The changes in a JSON list of ``{"file", "search", "replace"}``."""
    changes = []
    for number, item in enumerate(items, 1):
        what = f"edit {number}"
        search, replace = item.get("search"), item.get("replace")
        if not isinstance(search, str) or not isinstance(replace, str):
            raise EditError(f'{what} needs "search" and "replace", both texts')
        changes.append(Change(what, _file_of_item(item, code, what), _lines_of(search), _lines_of(replace)))
    return changes


def _file_of_item(item: Mapping[str, Any], code: Code, what: str) -> str:
    name = item.get("file") or code.only()
    if name is None:
        raise EditError(f'{what} has no "file"', hint=f"name one of: {code.listed()}")
    return code.require(name, what)


# ---------------------------------------------------------------------- unified diffs
def from_hunks(lines: Sequence[str], code: Code, *, fenced: bool, hint: str | None) -> list[Change]:
    """The changes that the hunks of a diff ask for: each goes where its lines are, wherever its numbers say.

    fenced: whether the lines are all of a fenced block, and so nothing but diff; else prose may follow. hint: the file
    that is meant where no header names one.
    """
    changes: list[Change] = []
    at, file = 0, hint
    started = named = extended = False
    while at < len(lines):
        line = lines[at]
        if begins_file(lines, at):
            file, at = _file_of_header(line[4:], lines[at + 1][4:], code), at + 2
            started, named, extended = True, True, False
            continue
        # Without any header, the place of a hunk follows from its lines alone.
        bare = (named or (fenced and not started)) and line.startswith(("+", "-", " ")) and line.strip()
        if line.startswith("@@") or bare:
            begin = at if bare else at + 1
            at = _end_of_hunk(lines, begin)
            what = f"hunk {len(changes) + 1} of the diff"
            changes.append(_hunk(what, "" if bare else line, lines[begin:at], file or code.only(), code))
            started, named, extended = True, False, False
            continue
        if line.startswith("diff --git "):
            started, named, extended = True, False, True
            name = line[:_LONGEST_NAME].rstrip()  # names may have spaces in them
            file = next((path for path in code if name.endswith((f" b/{path}", f" {path}"))), "")
            file = file or code.require(name.rpartition(" ")[2], "the diff")
        elif line.startswith(_NO_TEXT) and (extended or (fenced and started)):
            raise EditError(
                f"the diff does something else than change text: {show(line)}",
                label=Label.ILLEGAL_EDIT,
                hint="only change lines of the editable files; none may be created, deleted, renamed or replaced",
            )
        elif started and line.strip() and not line.startswith(_HARMLESS) and (fenced or _STRAY.match(line)):
            raise EditError(  # half of an edit is worse than none
                f"line {at + 1} of the diff belongs to no hunk: `{show(line)}`",
                hint="begin each line of a hunk with a space (unchanged), + (new) or - (removed)",
            )
        at += 1
    if sum(len(change.old) + len(change.new) for change in changes) > _MAX_DIFF_LINES:
        raise EditError(f"the diff has more than {_MAX_DIFF_LINES} lines")
    return changes


def _end_of_hunk(lines: Sequence[str], at: int) -> int:
    """The first line that can be none of a hunk; the header of another file is told by the hunk that follows it."""
    while at < len(lines) and (not lines[at].strip("\r") or lines[at].startswith(_SIGNS)):
        if begins_file(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith("@@"):
            break
        at += 1
    return at


def _hunk(what: str, header: str, lines: Sequence[str], file: str | None, code: Code) -> Change:
    if not any(line.startswith(("+", "-")) for line in lines):
        raise EditError(f"{what} changes nothing", hint="mark new lines with + and removed ones with -")
    if file is None:
        raise EditError(
            f"{what} does not say which file it is for",
            hint=f"begin it with --- a/FILE and +++ b/FILE, with one of: {code.listed()}",
        )
    # Blank lines have often lost their sign; those at the end may be outside of the hunk.
    body = [line.removesuffix("\r") or " " for line in "\n".join(lines).rstrip("\r\n").split("\n")]
    old = tuple(line[1:] for line in body if line[0] in " -")
    new = tuple(line[1:] for line in body if line[0] in " +")
    stated = _HEADER.match(header)
    return Change(what, file, old, new, int(stated[1]) if stated and (old or stated[2] == "0") else None)


def _file_of_header(old: str, new: str, code: Code) -> str:
    """The file that the lines ``--- a/FILE`` and ``+++ b/FILE`` name; the old one may be a copy (``FILE.orig``)."""
    old, new = (name[:_LONGEST_NAME].split("\t")[0].strip() for name in (old, new))
    if _NOTHING in (old, new):
        done, name = ("creates", new) if old == _NOTHING else ("deletes", old)
        raise EditError(
            f"the diff {done} a file: {show(name)}",
            label=Label.ILLEGAL_EDIT,
            hint=f"change lines of {code.listed()} only",
        )
    file = code.require(new, "the diff")
    if code.resolve(old.removesuffix(".orig")) != file:
        raise EditError(
            f"the diff renames {show(old)} to {show(file)}",
            label=Label.ILLEGAL_EDIT,
            hint="give the same name after --- and +++",
        )
    return file


# ---------------------------------------------------------------------- where a change goes
def apply_changes(changes: Sequence[Change], code: Code) -> dict[str, str]:
    """New text of each file named; every change is looked for in the file as it was shown."""
    _check_count(changes)
    files = {name: File(name, code[name]) for name in dict.fromkeys(change.file for change in changes)}
    for change in dict.fromkeys(changes):
        files[change.file].splices.append(_place(change, files[change.file]))
    return {name: file.text() for name, file in files.items()}


def _check_count(changes: Sequence[Any]) -> None:
    if len(changes) > _MAX_CHANGES:
        raise EditError(f"{len(changes)} changes are more than {_MAX_CHANGES}")


def _place(change: Change, file: File) -> Splice:
    """Where the old text is: exactly, but for white space at line ends, with shifted indentation, in a line."""
    if not any(line.strip() for line in change.old):
        return _insertion(change, file)
    for form in (str, str.rstrip):
        if places := file.find(change.old, form):
            return _trim(_one(places, change), change.old, change.new, change.what)
    shifted = file.find_shifted(change.old)
    if not shifted:
        if within := _within(change, file):
            return within
        raise EditError(
            f"{change.what}: its old text is not in {file.name}{file.most_similar(change.old)}",
            hint="copy whole lines of the file as it was shown, with their indentation, and only as many as needed",
        )
    start = _one(list(shifted), change)
    new = _shift(change.new, *shifted[start])
    if new is None:
        raise EditError(
            f"{change.what}: the old text is indented more than line {start + 1} of {file.name}, and the new "
            "text is not",
            hint="indent both exactly as the file does",
        )
    return _trim(start, _shift(change.old, *shifted[start]) or change.old, new, change.what)


def _within(change: Change, file: File) -> Splice | None:
    """The old text as a part of one line (without its comment, say), there once, and no part of a longer name."""
    text = change.old[0].strip()
    places = [i for i, line in enumerate(file.lines) for _ in range(line.count(text))]
    if len(change.old) > 1 or len(change.new) > 1 or len(text) < _SHORTEST_PART or len(places) != 1:
        return None
    line = file.lines[places[0]]
    begin = r"(?<![\w.+-])" if re.match(r"[\w.]", text) else ""
    end = r"(?![\w.+-])" if re.search(r"[\w.]$", text) else ""
    match = re.search(begin + re.escape(text) + end, line)
    if match is None:
        return None
    new = line[: match.start()] + "".join(change.new).strip() + line[match.end() :]
    return Splice(places[0], places[0] + 1, (new,), change.what)


def _insertion(change: Change, file: File) -> Splice:
    """New lines where the old text is blank: at the line that a hunk names, or in an empty file."""
    if change.line is not None and not change.old and change.line <= len(file.lines):
        return Splice(change.line, change.line, change.new, change.what)
    if change.line is not None and change.line - 1 in file.find(change.old, str):
        return _trim(change.line - 1, change.old, change.new, change.what)
    if not any(line.strip() for line in file.lines):
        return Splice(0, len(file.lines), change.new, change.what)
    raise EditError(
        f"{change.what} has an empty SEARCH part or no unchanged lines, so that its place in {file.name} is unknown",
        hint="give the lines around it, too; to insert, repeat the line above in the new text",
    )


def _one(places: Sequence[int], change: Change) -> int:
    if change.line is not None and change.line - 1 in places:
        return change.line - 1
    if len(places) == 1:
        return places[0]
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
def apply_operations(items: Sequence[Any], code: Code) -> dict[str, str]:
    """New text of each file that JSON operations (replace, insert, delete) name; lines are those of it as shown."""
    _check_count(items)
    files: dict[str, File] = {}
    for number, item in enumerate(items, 1):
        what = f"edit {number}"
        if not isinstance(item, Mapping):
            raise EditError(f"{what} is not a JSON object", hint=f"write it like {_EXAMPLE}")
        name = _file_of_item(item, code, what)
        if name not in files:
            files[name] = File(name, code[name])
        files[name].splices.append(_operation(item, files[name], what))
    return {name: file.text() for name, file in files.items()}


def _operation(item: Mapping[str, Any], file: File, what: str) -> Splice:
    operation, text, there = item.get("op"), item.get("text"), len(file.lines)
    if operation not in _OPERATIONS:
        raise EditError(f'{what}: "op" is {show(operation)}', hint=f"it is one of {', '.join(_OPERATIONS)}")
    first = _number(item.get("line"), "line", what)
    last = first if item.get("end") is None else _number(item["end"], "end", what)
    if operation != "delete" and not isinstance(text, str):
        raise EditError(f'{what}: "{operation}" needs "text"', hint=f"write it like {_EXAMPLE}")
    lines = _lines_of(text) if isinstance(text, str) else ()
    lowest = 0 if operation == "insert" else 1
    if not lowest <= first <= last <= there:
        raise EditError(
            f"{what}: there are no lines {first} to {last}: {file.name} has {counted(there, 'line')}",
            hint=f'"line" is from {lowest} to {there}, and "end", the last line of the range, is not before it',
        )
    _check_expected(item.get("expect"), file, first, what)
    if operation == "insert":
        if last != first:
            raise EditError(f'{what}: "insert" takes no "end"', hint='it puts its text after "line" (0: at the top)')
        return Splice(first, first, lines or ("",), what)
    return Splice(first - 1, last, () if operation == "delete" else lines, what)


def _number(value: object, key: str, what: str) -> int:
    """A line number; models write it as a text now and then."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 8 else value
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) >= _MOST_LINE:
        raise EditError(f'{what}: "{key}" is {show(value)}, not a line number', hint=f"write it like {_EXAMPLE}")
    return number


def _check_expected(expect: object, file: File, first: int, what: str) -> None:
    """Raise where the lines from ``first`` on are not the expected ones, white space around them aside."""
    if expect is None or expect == "":
        return
    if not isinstance(expect, str):
        raise EditError(f'{what}: "expect" is {show(expect)}, not a text')
    wanted = [line.strip() for line in _lines_of(expect)]
    if first > 0 and wanted == [line.strip() for line in file.lines[first - 1 : first - 1 + len(wanted)]]:
        return
    own = f"line {first} of {file.name} is `{show(file.lines[first - 1].strip())}`" if first else "there is no line 0"
    elsewhere = [str(n) for n, line in enumerate(file.lines, 1) if line.strip() == wanted[0]][:_MOST_NAMED]
    where = f"; that is at line {', '.join(elsewhere)}" if elsewhere and wanted[0] else ""
    raise EditError(
        f"{what}: {own}, not `{show(wanted[0])}` as expected{where}",
        hint="count in the file as it was shown; earlier edits of the same answer do not shift its numbers",
    )

"""The hunks of a unified diff as models write them, with wrong numbers, lost headers and lost blanks put right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits import paths
from autoresearchd.policy.edits.model import MAX_CHANGES, EditError, shown
from autoresearchd.policy.edits.segments import begins_file

NO_NEWLINE = "\\ No newline at end of file"
_MAX_LINES = 50_000
_HEADER = re.compile(r"@@+ -(\d{1,9})(?:,(\d{1,9}))?(?: \+(\d{1,9})(?:,(\d{1,9}))?)?")
_BODY = (" ", "+", "-", "\\")
_NEW_FILE = ("new file mode", "deleted file mode")
_NO_TEXT = (
    *_NEW_FILE, "old mode", "new mode", "rename ", "copy ", "similarity index", "dissimilarity index", "Binary files",
    "GIT binary patch",
)  # fmt: skip
_HARMLESS = ("index ", "Index: ", "====", "diff ")
_BULLET = re.compile(r"[-+] \S")
_STRAY = re.compile(r"\+[^+]|-(?:[^\s>-]|\s{2,}\S)")
_TIMESTAMP = re.compile(r"\t.*|\s{2,}\d{4}-\d.*")
_PLACEHOLDERS = frozenset({"original", "modified", "before", "after", "old", "new", "a", "b", "orig", "updated"})
_OLD_COPIES = (".orig", ".old", ".bak", ".new")
_NOTHING = "/dev/null"
_LONGEST_NAME = 300


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk. start, length: of the old lines as its header states them, None where it does not.

    body: lines with their sign, without line feed; blank context lines have theirs back.
    """

    file: str
    number: int
    body: tuple[str, ...]
    start: int | None = None
    length: int | None = None

    @property
    def what(self) -> str:
        """Its name in messages."""
        return f"hunk {self.number} of the diff"

    def text(self) -> str:
        """The hunk with a header that counts its lines."""
        old = sum(line[0] in " -" for line in self.body)
        new = sum(line[0] in " +" for line in self.body)
        start = self.start if self.start is not None else 1
        return "\n".join((f"@@ -{start},{old} +{start},{new} @@", *self.body, ""))


def read_hunks(lines: Sequence[str], code: Mapping[str, str], *, fenced: bool, hint: str | None) -> list[Hunk]:
    """All hunks of a diff.

    Args:
        lines: of the diff.
        code: the editable files.
        fenced: whether the lines are all of a fenced block, and so nothing but diff; else prose may follow.
        hint: the file that is meant where no header names one.
    """
    return _Reader(lines, code, fenced, hint).run()


class _Reader:
    def __init__(self, lines: Sequence[str], code: Mapping[str, str], fenced: bool, hint: str | None) -> None:
        self._lines, self._code, self._fenced, self._file = lines, code, fenced, hint
        self._hunks: list[Hunk] = []
        self._size = 0
        self._files = 0
        self._at = 0

    def run(self) -> list[Hunk]:
        started, names, extended = False, False, False
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if begins_file(self._lines, self._at):
                self._count_file()
                self._file = self._named(line[4:], self._lines[self._at + 1][4:])
                self._at += 2
                started, names, extended = True, True, False
                continue
            if line.startswith("@@"):
                self._at += 1
                self._hunk(line)
                started, names, extended = True, False, False
                continue
            if (names or (self._fenced and not started)) and line.startswith(("+", "-", " ")) and line.strip():
                self._hunk("")  # without any header: where it belongs follows from its lines alone
                started, names = True, False
                continue
            if line.startswith("diff --git "):
                started, names, extended = True, False, True
                self._file = self._of_git(line)
            elif line.startswith(_NO_TEXT) and (extended or (self._fenced and started)):
                raise EditError(
                    f"the diff does something else than change text: {shown(line)}",
                    label=Label.ILLEGAL_EDIT,
                    mend="only change lines of the editable files; none may be created, deleted, renamed or replaced",
                )
            else:
                self._check_stray(line, started)
            self._at += 1
        return self._hunks

    def _count_file(self) -> None:
        self._files += 1
        if self._files > MAX_CHANGES:
            raise EditError(f"the diff names more than {MAX_CHANGES} files", mend="name each file once")

    def _check_stray(self, line: str, started: bool) -> None:
        """Raise for a line that may be a part of a hunk: half of an edit is worse than none."""
        if not started or not line.strip() or line.startswith(_HARMLESS):
            return
        if self._fenced or _STRAY.match(line):
            raise EditError(
                f"line {self._at + 1} of the diff belongs to no hunk: `{shown(line)}`",
                mend="begin each line of a hunk with a space (unchanged), + (new) or - (removed)",
            )

    # ---------------------------------------------------------------- hunks
    def _hunk(self, header: str) -> None:
        number = len(self._hunks) + 1
        if number > MAX_CHANGES:
            raise EditError(f"the diff has more than {MAX_CHANGES} hunks", mend="make fewer changes at once")
        stated = _HEADER.match(header)
        start, old, new = None, None, None
        if stated:
            start = int(stated[1])
            old = int(stated[2]) if stated[2] else 1
            new = (int(stated[4]) if stated[4] else 1) if stated[3] else None
        body = self._by_count(old, new) if old is not None and new is not None and old + new > 0 else None
        if body is None:
            body = self._to_the_end()
        if not any(line[0] in "+-" for line in body):
            raise EditError(
                f"hunk {number} of the diff changes nothing", mend="mark new lines with + and removed ones with -"
            )
        self._size += len(body)
        if self._size > _MAX_LINES:
            raise EditError(f"the diff has more than {_MAX_LINES} lines")
        file = self._file or paths.only(self._code)
        if file is None:
            raise EditError(
                f"hunk {number} of the diff does not say which file it is for",
                mend=f"begin it with --- a/FILE and +++ b/FILE, with one of: {paths.allowed(self._code)}",
            )
        self._hunks.append(Hunk(file, number, tuple(body), start, old))

    def _by_count(self, old: int, new: int) -> list[str] | None:
        """The body as long as its header says; None where the header does not fit what is there."""
        body: list[str] = []
        at, length = self._at, 0
        while old > 0 or new > 0:
            if at >= len(self._lines):
                return None
            line = self._lines[at]
            bare = not line.strip("\r")
            kind = " " if bare else line[:1]
            if kind not in _BODY:
                return None
            old -= kind in " -"
            new -= kind in " +"
            if old < 0 or new < 0:
                return None
            body.append(_restored(line))
            length = length if bare else len(body)
            at += 1
        body = body[:length]  # blank lines without their sign may be none of it, if the header counts wrong
        if at < len(self._lines) and self._lines[at].startswith("\\"):
            body.append(NO_NEWLINE)
            at += 1
        if not self._ended(at):
            return None
        self._at = at
        return body

    def _ended(self, at: int) -> bool:
        """Whether a hunk that is complete by its header really ends here."""
        following = at
        while following < len(self._lines) and not self._lines[following].strip("\r"):
            following += 1
        if following >= len(self._lines) or self._next_file(following):
            return True
        line = self._lines[following]
        if not line.startswith(_BODY):
            return True
        # A list in the prose after a bare diff looks like lines of a hunk.
        return not self._fenced and following > at and _BULLET.match(line) is not None

    def _next_file(self, at: int) -> bool:
        """Whether the header of another file begins here; its hunk tells it from lines that only look like it."""
        return begins_file(self._lines, at) and at + 2 < len(self._lines) and self._lines[at + 2].startswith("@@")

    def _to_the_end(self) -> list[str]:
        """The body up to the first line that can be none of it, without blank lines that may be outside of it."""
        body: list[str] = []
        length = 0
        while self._at < len(self._lines) and not self._next_file(self._at):
            line = self._lines[self._at]
            bare = not line.strip("\r")
            if not bare and not line.startswith(_BODY):
                break
            body.append(_restored(line))
            length = length if bare else len(body)
            self._at += 1
        return body[:length]

    # ---------------------------------------------------------------- names
    def _of_git(self, line: str) -> str:
        """The file that a line ``diff --git a/FILE b/FILE`` names."""
        name = line[:_LONGEST_NAME].rstrip()
        found = next((file for file in self._code if name.endswith((f" b/{file}", f" {file}"))), None)
        if found is None:
            raise paths.illegal(name.removeprefix("diff --git "), self._code, "the diff")
        return found

    def _named(self, old: str, new: str) -> str:
        """The file that the two header lines name."""
        old, new = (_TIMESTAMP.sub("", name[:_LONGEST_NAME].rstrip()).strip() for name in (old, new))
        if _NOTHING in (old, new):
            done = "creates" if old == _NOTHING else "deletes"
            raise EditError(
                f"the diff {done} a file: {shown(new if old == _NOTHING else old)}",
                label=Label.ILLEGAL_EDIT,
                mend=f"change lines of {paths.allowed(self._code)} only",
            )
        before, after = paths.resolve(old, self._code), paths.resolve(new, self._code)
        if before is not None and before == after:
            return before
        single = paths.only(self._code)
        if before is None and after is None and single and {old, new} <= _PLACEHOLDERS:
            return single
        if after is not None and before is None and _stands_for(old, after):
            return after
        if before is not None and after is None and _stands_for(new, before):
            return before
        if before is not None and after is not None:
            raise EditError(
                f"the diff renames {shown(before)} to {shown(after)}",
                label=Label.ILLEGAL_EDIT,
                mend="give the same name after --- and +++",
            )
        raise paths.illegal(new if after is None else old, self._code, "the diff")


def _stands_for(name: str, file: str) -> bool:
    """Whether a name is a usual one for the other state of a file."""
    base = name.removeprefix("a/").removeprefix("b/").removeprefix("./")
    return name in _PLACEHOLDERS or any(base == file + suffix for suffix in _OLD_COPIES)


def _restored(line: str) -> str:
    """A line of a hunk; a blank one has lost its sign, and the mark of a missing line end has many wordings."""
    if line.startswith("\\"):
        return NO_NEWLINE
    return line if line.strip("\r") else " " + line

"""Unified diffs as models write them: a hunk goes where its lines are; the numbers decide only between equal places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits import file_names
from autoresearchd.policy.edits.answer_parts import begins_file
from autoresearchd.policy.edits.changes import Change
from autoresearchd.policy.edits.edit import EditError, show

_MAX_LINES = 50_000
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


def read_hunks(lines: Sequence[str], code: Mapping[str, str], *, fenced: bool, hint: str | None) -> list[Change]:
    """The changes that the hunks of a diff ask for.

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
            changes.append(
                _hunk(len(changes) + 1, "" if bare else line, lines[begin:at], file or file_names.only(code), code)
            )
            started, named, extended = True, False, False
            continue
        if line.startswith("diff --git "):
            started, named, extended = True, False, True
            name = line[:_LONGEST_NAME].rstrip()  # names may have spaces in them
            file = next((path for path in code if name.endswith((f" b/{path}", f" {path}"))), "")
            file = file or file_names.known(name.rpartition(" ")[2], code, "the diff")
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
    if sum(len(change.old) + len(change.new) for change in changes) > _MAX_LINES:
        raise EditError(f"the diff has more than {_MAX_LINES} lines")
    return changes


def _end_of_hunk(lines: Sequence[str], at: int) -> int:
    """The first line that can be none of a hunk; the header of another file is told by the hunk that follows it."""
    while at < len(lines) and (not lines[at].strip("\r") or lines[at].startswith(_SIGNS)):
        if begins_file(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith("@@"):
            break
        at += 1
    return at


def _hunk(number: int, header: str, lines: Sequence[str], file: str | None, code: Mapping[str, str]) -> Change:
    what = f"hunk {number} of the diff"
    if not any(line.startswith(("+", "-")) for line in lines):
        raise EditError(f"{what} changes nothing", hint="mark new lines with + and removed ones with -")
    if file is None:
        raise EditError(
            f"{what} does not say which file it is for",
            hint=f"begin it with --- a/FILE and +++ b/FILE, with one of: {file_names.allowed(code)}",
        )
    # Blank lines have often lost their sign; those at the end may be outside of the hunk.
    body = [line.removesuffix("\r") or " " for line in "\n".join(lines).rstrip("\r\n").split("\n")]
    old = tuple(line[1:] for line in body if line[0] in " -")
    new = tuple(line[1:] for line in body if line[0] in " +")
    stated = _HEADER.match(header)
    return Change(what, file, old, new, int(stated[1]) if stated and (old or stated[2] == "0") else None)


# ---------------------------------------------------------------------- names
def _file_of_header(old: str, new: str, code: Mapping[str, str]) -> str:
    """The file that the lines ``--- a/FILE`` and ``+++ b/FILE`` name; the old one may be a copy (``FILE.orig``)."""
    old, new = (name[:_LONGEST_NAME].split("\t")[0].strip() for name in (old, new))
    if _NOTHING in (old, new):
        done = "creates" if old == _NOTHING else "deletes"
        raise EditError(
            f"the diff {done} a file: {show(new if old == _NOTHING else old)}",
            label=Label.ILLEGAL_EDIT,
            hint=f"change lines of {file_names.allowed(code)} only",
        )
    file = file_names.known(new, code, "the diff")
    if file_names.resolve(old.removesuffix(".orig"), code) != file:
        raise EditError(
            f"the diff renames {show(old)} to {show(file)}",
            label=Label.ILLEGAL_EDIT,
            hint="give the same name after --- and +++",
        )
    return file

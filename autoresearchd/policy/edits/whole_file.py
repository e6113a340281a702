"""Whole files: fenced blocks that are said to be a file or look like one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits import file_names
from autoresearchd.policy.edits.answer_parts import Fence
from autoresearchd.policy.edits.changes import File, Splice, lines_of
from autoresearchd.policy.edits.edit import EditError, show

_CODE = frozenset({"", "python", "py", "python3"})
_LONGEST = 160
_COMMENTS = ("#", "//", "--", "/*", "<!--")
_BRACKETS = ("<", "[", "(", "{")
_DOTS = ("...", "…")
_LEFT_OUT = r"unchanged|unmodified|omitted|existing|rest|remainder|remaining|same|previous|original|before|keep"
_REST = r"(?:the |all )?(?:rest|remainder|remaining|existing)(?: of)?"
_ELISION = re.compile(
    rf"(?:{_REST}(?: \w+){{0,4}} )?(?:(?:is|are|stays?|remains?|code|kept) )?"
    r"(?:the same|(?:same )?as (?:before|above|is)|unchanged|unmodified|omitted)(?: here)?(?: for brevity)?"
    rf"|{_REST}(?: \w+)? (?:code|file|program|script)"
)
"""What such a comment says and nothing else, where it has no dots."""


def from_fences(fences: Sequence[Fence], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file that a block is said to be, or that the only block of code looks like."""
    named: dict[str, Fence] = {}
    unnamed: list[Fence] = []
    for fence in fences:
        what = f"the {show(fence.language) or 'fenced'} block"
        told = file_names.in_info(fence.info, code, what)
        file = told or file_names.title(fence.before, code, what) or _name_in_comment(fence, code, what)
        if file is None:
            unnamed += [fence] if fence.language in _CODE else []
            continue
        if file in named:
            raise EditError(f"{file} is given as a whole twice", hint="give each file once")
        if told is None:
            _check_whole(fence, file, code[file])
        named[file] = fence
    if not named and unnamed:
        named = {_meant(unnamed, code): unnamed[0]}
    for file, fence in named.items():
        if not fence.closed:
            raise EditError(f"the block with {file} has no end", hint="close it with ``` on a line of its own")
    return {file: _as_file(fence.lines, code[file], file) for file, fence in named.items()}


def _as_file(lines: Sequence[str], old: str, file: str) -> str:
    """The lines with the line ends of the old file."""
    there, new = File(old), tuple(line.removesuffix("\r") for line in lines)
    return there.replace([Splice(0, len(there.lines), new, "the block")], file)


def _name_in_comment(fence: Fence, code: Mapping[str, str], what: str) -> str | None:
    """The editable file that the first line of the block names in a comment; raises for the name of another file."""
    first = _first(fence.lines)
    if not first.startswith(("#", "//")):
        return None
    found = file_names.resolve(first.lstrip("#/ "), code)
    # What the file has had all along says nothing of the block, and shell commands are not meant to be a file.
    if found or fence.language not in _CODE or any(_first(lines_of(text)) == first for text in code.values()):
        return found
    return file_names.title(first, code, what)


def _first(lines: Sequence[str]) -> str:
    """The first line that is not blank."""
    return next((line for line in lines if line.strip()), "").strip()


def _meant(unnamed: Sequence[Fence], code: Mapping[str, str]) -> str:
    file = file_names.only(code)
    if file is None:
        raise EditError(
            "a block of code does not say which file it is",
            hint=f"write the file's name after the opening ```, one of: {file_names.allowed(code)}",
        )
    if len(unnamed) > 1:
        raise EditError(
            f"there are {len(unnamed)} blocks of code, and none says that it is {file}",
            hint=f"write ```python {file} before the whole file, or use SEARCH/REPLACE blocks for a part of it",
        )
    _check_whole(unnamed[0], file, code[file])
    return file


def _check_whole(fence: Fence, file: str, old: str) -> None:
    """Raise where a block that may be a mere fragment is less than half as long as the file."""
    if 2 * len("\n".join(fence.lines)) < len(old):
        raise EditError(
            f"the block of code ({counted(len(fence.lines), 'line')}) is not the whole of {file} "
            f"({counted(len(File(old).lines), 'line')})",
            hint=f"use SEARCH/REPLACE blocks for a part, or write ```python {file} before the complete new file",
        )


# ---------------------------------------------------------------------- code left out
def check_complete(text: str, old: str, file: str) -> None:
    """Raise for a line of the new text, not in the old one, that stands for code left out."""
    known = {line.strip() for line in old.split("\n")}
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith((*_COMMENTS, *_BRACKETS)) and bare not in known and _elides(bare):
            raise EditError(
                f"line {number} of the new {file} leaves code out: `{show(bare)}`",
                hint="write all lines, or change only a part of the file with SEARCH/REPLACE blocks",
            )


def _elides(line: str) -> bool:
    comment, inner = line.startswith(_COMMENTS), line.strip("#/-*<!>[](){} \t").lower()
    if len(line) > _LONGEST or (not comment and " " not in inner):
        return False
    if not re.search(r"[a-z]", inner):
        return comment and any(dots in line for dots in _DOTS)
    if inner.startswith(_DOTS) or inner.endswith(_DOTS):
        return bool(re.search(rf"\b(?:{_LEFT_OUT}|code)\b", inner)) and (comment or not re.search(r"[\"'=:,]", line))
    return bool(_ELISION.fullmatch(inner.rstrip(". ")))

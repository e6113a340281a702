"""An answer of a model read into an edit: whatever the text, an edit of editable files or an EditError comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits import paths
from autoresearchd.policy.edits.blocks import apply_changes, from_blocks, from_pairs
from autoresearchd.policy.edits.elision import check_complete
from autoresearchd.policy.edits.forms import FORMS
from autoresearchd.policy.edits.hunks import Hunk, read_hunks
from autoresearchd.policy.edits.line_ops import apply_operations
from autoresearchd.policy.edits.model import (
    MAX_ANSWER_BYTES,
    MAX_ANSWER_LINES,
    MAX_FILE_BYTES,
    Edit,
    EditError,
    shown,
)
from autoresearchd.policy.edits.objects import EDIT_KEYS, Found, objects, whole_object
from autoresearchd.policy.edits.patch import apply_hunks
from autoresearchd.policy.edits.segments import Fence, Prose, Segments, segments, without_lost_thought
from autoresearchd.policy.edits.whole import from_fences, from_object
from autoresearchd.policy.edits.words import words_of

__all__ = ["FORMS", "Edit", "EditError", "read_answer"]

_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})


def read_answer(text: str, code: Mapping[str, str]) -> Edit:
    """The edit in an answer, applied in memory, all of it or nothing.

    Of several forms in one answer the first of these counts: JSON, SEARCH/REPLACE blocks, unified diff, whole file.

    Args:
        text: the answer as the model gave it.
        code: text of each editable file by its path, as the model was shown it.

    Raises:
        EditError: the answer cannot be used; it says what exactly, and how to write it right.
    """
    _check_size(text)
    text = without_lost_thought(text.lstrip("\ufeff \t\r\n"))
    begun = whole_object(text) if text.startswith("{") else Found(())
    parts = segments(text)
    found = objects(parts)
    edit = begun.edit or found.edit
    read = _from_object(edit, code) if edit is not None else _from_text(parts, code)
    if read is None:
        raise _unread(text, parts, begun.broken or found.broken, edit=_is_edit(begun) or _is_edit(found))
    form, files = read
    known = (*begun.objects, *found.objects) if edit is begun.edit else found.objects
    # In a bare diff, only lines without a sign are prose.
    signs = ("+", "-", " ")
    prose = [line for part in parts.prose for line in part.lines if not (part.diff and line.startswith(signs))]
    return Edit(_changed(files, code), form, words_of(known, prose))


def _check_size(text: str) -> None:
    # A text is at least as many bytes as characters: most of those too long need not be encoded to know it.
    if len(text) > MAX_ANSWER_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_ANSWER_BYTES:
        raise EditError(
            f"the answer is larger than {MAX_ANSWER_BYTES // 1024} KiB", mend="answer with the change and a few words"
        )
    if text.count("\n") >= MAX_ANSWER_LINES:
        raise EditError(f"the answer has more than {MAX_ANSWER_LINES} lines", mend="answer with the change only")


# ---------------------------------------------------------------------- forms
def _from_object(found: Mapping[str, Any], code: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The form and the files of a JSON object that holds an edit."""
    given = [key for key in EDIT_KEYS if found.get(key)]
    if len(given) > 1:
        raise EditError(
            f"the JSON object holds an edit in {len(given)} forms: {', '.join(given)}",
            mend="put all changes into one of them and leave the others out",
        )
    key = given[0]
    value = found[key]
    if key == "files":
        if not isinstance(value, dict):
            raise EditError(f'"files" is {shown(value)}', mend='write {"FILE": "its whole new text"}')
        return "whole", from_object(value, code)
    if key == "diff":
        hunks = _hunks_of_text(value, code) if isinstance(value, str) else []
        if not hunks:
            raise EditError('"diff" holds no hunk', mend="write a unified diff as a text, with @@ before each hunk")
        return "diff", apply_hunks(hunks, code)
    if not isinstance(value, list):
        raise EditError(f'"{key}" is {shown(value)}', mend="it is a list of objects")
    if key == "search_replace" or all(isinstance(item, dict) and "search" in item for item in value):
        return "search_replace", apply_changes(from_pairs(value, code), code)
    return "lines", apply_operations(value, code)


def _from_text(parts: Segments, code: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """The form and the files of the first form that the text has, None where it has none."""
    if parts.blocks:
        return "search_replace", apply_changes(from_blocks(parts.blocks, code), code)
    hunks = _hunks(parts, code)
    if hunks:
        return "diff", apply_hunks(hunks, code)
    files = from_fences(parts.fences, code)
    return ("whole", files) if files else None


def _hunks_of_text(text: str, code: Mapping[str, str]) -> list[Hunk]:
    """The hunks in a text that is said to be a diff, perhaps within a fence."""
    inner = segments(text)
    if inner.fences:
        return _hunks(inner, code)
    return read_hunks(text.split("\n"), code, fenced=True, hint=None)


def _hunks(parts: Segments, code: Mapping[str, str]) -> list[Hunk]:
    found: list[Hunk] = []
    for part in parts.parts:
        if isinstance(part, Prose) and part.diff:
            found += read_hunks(part.lines, code, fenced=False, hint=None)
        elif isinstance(part, Fence) and _is_diff(part):
            what = "the diff"
            hint = paths.in_info(part.info, code, what) or paths.title(part.before, code, what)
            found += read_hunks(part.lines, code, fenced=True, hint=hint)
    return found


def _is_diff(fence: Fence) -> bool:
    first = next((line for line in fence.lines if line.strip()), "")
    return fence.language in _DIFF_LANGUAGES or first.startswith(("@@ -", "diff --git ", "--- "))


# ---------------------------------------------------------------------- results
def _changed(files: Mapping[str, str], code: Mapping[str, str]) -> dict[str, str]:
    """The files that differ, each fit to be stored and run."""
    changed = {file: text for file, text in files.items() if text != code[file]}
    if not changed:
        raise EditError(
            f"the edit changes nothing in {paths.allowed(files or code)}",
            label=Label.NO_OP,
            mend="the new text has to differ from the file as it was shown",
        )
    for file, text in changed.items():
        _check_text(text, file)
        check_complete(text, code[file], file)
    return changed


def _check_text(text: str, file: str) -> None:
    if "\0" in text:
        raise EditError(f"the new {file} holds a zero byte", mend="write it as an escape in a string")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise EditError(
            f"the new {file} holds half of a character (a lone surrogate) at position {error.start}",
            mend="write the whole character",
        ) from None
    if size > MAX_FILE_BYTES:
        raise EditError(f"the new {file} is larger than {MAX_FILE_BYTES // 1024} KiB", mend="keep it small")


def _is_edit(found: Found) -> bool:
    return any(key in one for one in found.objects for key in EDIT_KEYS)


def _unread(text: str, parts: Segments, broken: str, *, edit: bool) -> EditError:
    """Why nothing could be read."""
    mend = "write the change as SEARCH/REPLACE blocks, JSON line operations, a unified diff or a whole file"
    if not text.strip():
        return EditError("the answer is empty", mend=mend)
    if edit:
        return EditError("the edit in the answer is empty", label=Label.NO_OP, mend=mend)
    if parts.unfinished:
        return EditError("the answer ends while it is still thinking", mend="think less, and then write the change")
    if broken:
        return EditError(broken, mend="escape line feeds, quotes and backslashes in texts, and close every bracket")
    return EditError(f"no change can be found in the answer ({counted(len(text), 'character')})", mend=mend)

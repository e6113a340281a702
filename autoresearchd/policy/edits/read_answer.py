"""An answer of a model read into an edit: whatever the text, an edit of editable files or an EditError comes out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.policy import answer_words
from autoresearchd.policy.edits import file_names
from autoresearchd.policy.edits.answer_parts import (
    Block,
    Fence,
    Objects,
    Prose,
    Segments,
    json_objects,
    segments,
    without_lost_thought,
)
from autoresearchd.policy.edits.changes import Change, apply_changes, apply_operations, from_blocks, from_pairs
from autoresearchd.policy.edits.edit import MAX_ANSWER_BYTES, MAX_ANSWER_LINES, MAX_FILE_BYTES, Edit, EditError, show
from autoresearchd.policy.edits.unified_diff import read_hunks
from autoresearchd.policy.edits.whole_file import check_complete, from_fences

FORMS = """\
Write your change in one of these forms. Every file keeps its exact name; only editable files may be changed.

1. SEARCH/REPLACE blocks, best for small changes. SEARCH holds whole lines copied exactly from the file, indentation
included, and must be in it exactly once; REPLACE holds what they become. Several blocks are allowed; each is matched
against the file as shown.

train.py
<<<<<<< SEARCH
learning_rate = 3e-4
=======
learning_rate = 1e-3
>>>>>>> REPLACE

2. Line operations, as JSON. Numbers are those of the file as shown, from 1, "end" included; "insert" puts its text
after "line" (0: at the top); "expect" is the present text of "line" and guards against a wrong number.

```json
{"edits": [{"file": "train.py", "op": "replace", "line": 12, "end": 12, "expect": "depth = 4", "text": "depth = 6"},
           {"file": "train.py", "op": "insert", "line": 20, "text": "warmup = 100"},
           {"file": "train.py", "op": "delete", "line": 31, "end": 33}]}
```

3. A unified diff with unchanged lines around each change. No file may be created, deleted or renamed.

```diff
--- a/train.py
+++ b/train.py
@@ -11,3 +11,3 @@
 width = 256
-depth = 4
+depth = 6
 heads = 8
```

4. The whole new file, every line of it, with its name after the opening fence. Leave nothing out.

```python train.py
…all lines of the file…
```

Say why in a JSON object on a line of its own. "expected_delta" is the expected improvement, positive for better.

{"hypothesis": "why it may help", "description": "what changes", "expected_delta": 0.01, "next_action_hint": "…"}
"""
"""How to write an edit in each form that is read, for the prompt; short and with one example each."""

_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})
_TEXTS = {
    "hypothesis": answer_words.MAX_TEXT,
    "description": answer_words.MAX_LINE,
    "arch_change": answer_words.MAX_TEXT,
    "next_action_hint": answer_words.MAX_TEXT,
}
_KEYS = frozenset({*_TEXTS, "expected_delta"})
_TITLES = {key.replace("_", " "): key for key in _KEYS} | {"architecture change": "arch_change"}
_NUMBER = re.compile(r"\s*[-+]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][-+]?\d{1,3})?")
_DECORATION = " \t#>*_`-"
_LONGEST_TITLE = 40
_LONGEST_LINE = 4 * answer_words.MAX_TEXT


def read_answer(text: str, code: Mapping[str, str]) -> Edit:
    """The edit in an answer, applied in memory, all of it or nothing.

    Of several forms in one answer the first of these counts: JSON, SEARCH/REPLACE blocks, unified diff, whole file.

    text: the answer as the model gave it. code: text of each editable file by its path, as the model was shown it.
    Raises EditError: the answer cannot be used; it says what exactly, and how to write it right.
    """
    _check_size(text)
    text = without_lost_thought(text.lstrip("\ufeff \t\r\n"))
    parts = segments(text)
    objects = json_objects(text, parts)
    edit = objects.edit
    read = _from_text(parts, code) if edit is None else _from_items(edit["edits"], code)
    if read is None:
        raise _unread(text, parts, objects)
    form, files = read
    # In a bare diff, only lines without a sign are prose.
    signs = ("+", "-", " ")
    prose = [line for part in parts.of(Prose) for line in part.lines if not (part.diff and line.startswith(signs))]
    return Edit(_check_changes(files, code), form, _words(objects.objects, prose))


def _check_size(text: str) -> None:
    # A text is at least as many bytes as characters: most of those too long need not be encoded to know it.
    if len(text) > MAX_ANSWER_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_ANSWER_BYTES:
        raise EditError(
            f"the answer is larger than {MAX_ANSWER_BYTES // 1024} KiB", hint="answer with the change and a few words"
        )
    if text.count("\n") >= MAX_ANSWER_LINES:
        raise EditError(f"the answer has more than {MAX_ANSWER_LINES} lines", hint="answer with the change only")


# ---------------------------------------------------------------------- forms
def _from_items(items: object, code: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The form and the files of the edits in a JSON object."""
    if not isinstance(items, list):
        raise EditError(f'"edits" is {show(items)}', hint="it is a list of objects")
    if all(isinstance(item, dict) and "search" in item for item in items):
        return "search_replace", apply_changes(from_pairs(items, code), code)
    return "lines", apply_operations(items, code)


def _from_text(parts: Segments, code: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """The form and the files of the first form that the text has, None where it has none."""
    if blocks := parts.of(Block):
        return "search_replace", apply_changes(from_blocks(blocks, code), code)
    hunks = _hunks(parts, code)
    if hunks:
        return "diff", apply_changes(hunks, code)
    files = from_fences(parts.of(Fence), code)
    return ("whole", files) if files else None


def _hunks(parts: Segments, code: Mapping[str, str]) -> list[Change]:
    hunks: list[Change] = []
    for part in parts.parts:
        if isinstance(part, Prose) and part.diff:
            hunks += read_hunks(part.lines, code, fenced=False, hint=None)
        elif isinstance(part, Fence) and _is_diff(part):
            hint = file_names.in_info(part.info, code, "the diff") or file_names.title(part.before, code, "the diff")
            hunks += read_hunks(part.lines, code, fenced=True, hint=hint)
    return hunks


def _is_diff(fence: Fence) -> bool:
    first = next((line for line in fence.lines if line.strip()), "")
    return fence.language in _DIFF_LANGUAGES or first.startswith(("@@ -", "diff --git ", "--- "))


# ---------------------------------------------------------------------- results
def _check_changes(files: Mapping[str, str], code: Mapping[str, str]) -> dict[str, str]:
    """The files that differ, each fit to be stored and run."""
    changed = {file: text for file, text in files.items() if text != code[file]}
    if not changed:
        raise EditError(
            f"the edit changes nothing in {file_names.allowed(files or code)}",
            label=Label.NO_OP,
            hint="the new text has to differ from the file as it was shown",
        )
    for file, text in changed.items():
        _check_text(text, file)
        check_complete(text, code[file], file)
    return changed


def _check_text(text: str, file: str) -> None:
    if "\0" in text:
        raise EditError(f"the new {file} holds a zero byte", hint="write it as an escape in a string")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise EditError(
            f"the new {file} holds half of a character (a lone surrogate) at position {error.start}",
            hint="write the whole character",
        ) from None
    if size > MAX_FILE_BYTES:
        raise EditError(f"the new {file} is larger than {MAX_FILE_BYTES // 1024} KiB", hint="keep it small")


def _unread(text: str, parts: Segments, objects: Objects) -> EditError:
    """Why nothing could be read."""
    hint = "write the change as SEARCH/REPLACE blocks, JSON line operations, a unified diff or a whole file"
    if not text.strip():
        return EditError("the answer is empty", hint=hint)
    if any("edits" in one for one in objects.objects):
        return EditError("the edit in the answer is empty", label=Label.NO_OP, hint=hint)
    if parts.unfinished:
        return EditError("the answer ends while it is still thinking", hint="think less, and then write the change")
    if objects.broken:
        return EditError(
            objects.broken, hint="escape line feeds, quotes and backslashes in texts, and close every bracket"
        )
    return EditError(f"no change can be found in the answer ({counted(len(text), 'character')})", hint=hint)


# ---------------------------------------------------------------------- what the answer says of its edit
def _words(objects: Sequence[Mapping[str, Any]], lines: Iterable[str]) -> dict[str, Any]:
    """The words in the last object that has any, else those in lines like ``Hypothesis: …``; bounded and cleaned."""
    given = next((o for o in reversed(objects) if not _KEYS.isdisjoint(o)), None)
    said: Mapping[str, Any] = _read_titles(lines) if given is None else given
    words: dict[str, Any] = {key: clean(said.get(key), most) for key, most in _TEXTS.items()}
    words["expected_delta"] = _delta(said.get("expected_delta"))
    free = {key: value for key, value in said.items() if key != "edits" and key not in _KEYS}
    kept = {key: value for key, value in words.items() if value not in ("", None)}
    return {**answer_words.asi_of(free, "").extra, **kept}


def _read_titles(lines: Iterable[str]) -> dict[str, str]:
    """What follows the known titles; the first of each counts."""
    said: dict[str, str] = {}
    for line in lines:
        name, colon, rest = line[:_LONGEST_LINE].partition(":")
        if not colon or len(name) > _LONGEST_TITLE:
            continue
        key = _TITLES.get(name.strip(_DECORATION).lower().replace("_", " "))
        if key is not None and key not in said:
            said[key] = rest.strip(_DECORATION if key != "expected_delta" else " \t*_`")
    return said


def _delta(value: object) -> float | None:
    """A number, or a text that begins with one; a percentage is no difference of the metric."""
    if not isinstance(value, str):
        return answer_words.number(value)
    text = value[:_LONGEST_TITLE].replace("−", "-")
    match = _NUMBER.match(text)
    if match is None or text[match.end() :].lstrip().startswith("%"):
        return None
    return answer_words.number(float(match[0]))

"""An answer of a model read into an edit: whatever the text, an edit of editable files or an EditError comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.policy import answer_words
from autoresearchd.policy.edits import changes
from autoresearchd.policy.edits.answer_parts import MAX_ANSWER_LINES, AnswerParts, Code, Edit, EditError, Part, show

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


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _text(words: str) -> dict[str, str]:
    return {"type": "string", "description": words}


SCHEMA: Mapping[str, Any] = _object(
    hypothesis=_text("why the change may help"),
    description=_text("what changes, in one line"),
    expected_delta={"type": "number", "description": "the expected improvement, positive for better"},
    next_action_hint=_text("what to try next; may be empty"),
    edits={
        "type": "array",
        "items": _object(
            file=_text("exact name of an editable file"),
            search=_text("whole lines copied from the file as shown; they are in it exactly once"),
            replace=_text("what these lines become"),
        ),
    },
)
"""What a reply is made to obey where the model has that; it spares questions, and is never relied on.

The words are before the edits: a model that has said why writes another change than one that has still to find out. Of
JSON Schema it takes what all providers know: no unions, no bounds, no references, every property required.
"""

SCHEMA_FORMS = """\
Answer with one JSON object and nothing else:

{"hypothesis": "why it may help", "description": "what changes", "expected_delta": 0.01, "next_action_hint": "…",
 "edits": [{"file": "train.py", "search": "learning_rate = 3e-4", "replace": "learning_rate = 1e-3"}]}

"search" holds whole lines copied exactly from the file as shown, indentation included, and must be in it exactly once:
add the lines around it until it is. "replace" holds what they become; to insert, repeat the line next to it; to delete,
leave it empty. Several edits are allowed; each is matched against the file as shown. Every file keeps its exact name;
only editable files may be changed. Line feeds within a text are written as \\n. "expected_delta" is the expected
improvement, positive for better. "edits" is empty only where you are allowed to give an edit up, and do.
"""
"""In the place of ``FORMS``: the other forms cannot be written in a reply that obeys the schema."""

_MAX_ANSWER_BYTES, _MAX_FILE_BYTES = 2 * 1024 * 1024, 1024 * 1024
_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})
_CODE_LANGUAGES = frozenset({"", "python", "py", "python3"})
_TEXTS = dict.fromkeys(("hypothesis", "arch_change", "next_action_hint"), answer_words.MAX_TEXT)
_TEXTS["description"] = answer_words.MAX_LINE
_KEYS = frozenset({*_TEXTS, "expected_delta"})
_TITLED = re.compile(
    rf"^[ \t#>*_`-]{{0,20}}({'|'.join(_KEYS).replace('_', '[ _]')})[*_`]{{0,3}}:[ \t*_`]*(.*)",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBER = re.compile(r"\s*((?>[-+]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][-+]?\d{1,3})?))(?!\s*%)")
_LONGEST_ELISION = 160
_COMMENTS = ("#", "//", "--", "/*", "<!--")
_BRACKETS = ("<", "[", "(", "{")
_DOTS = ("...", "…")
_LEFT_OUT = re.compile(
    r"\b(?:unchanged|unmodified|omitted|existing|rest|remainder|remaining|same|previous|original|before|keep|code)\b"
)
_REST = r"(?:the |all )?(?:rest|remainder|remaining|existing)(?: of)?"
_ELISION = re.compile(
    rf"(?:{_REST}(?: \w+){{0,4}} )?(?:(?:is|are|stays?|remains?|code|kept) )?"
    r"(?:the same|(?:same )?as (?:before|above|is)|unchanged|unmodified|omitted)(?: here)?(?: for brevity)?"
    rf"|{_REST}(?: \w+)? (?:code|file|program|script)"
)
"""What a comment says and nothing else that stands for code left out, where it has no dots."""


def read_answer(text: str, shown: Mapping[str, str]) -> Edit:
    """The edit in an answer, applied in memory, all of it or nothing.

    Of several forms in one answer the first of these counts: JSON, SEARCH/REPLACE blocks, unified diff, whole file.

    shown: text of each editable file by its path, as the model was shown it. Raises EditError: the answer cannot be
    used; it says what exactly, and how to write it right.
    """
    code = Code(shown)
    # A text is at least as many bytes as characters: most of those too long need not be encoded to know it.
    if len(text) > _MAX_ANSWER_BYTES or len(text.encode("utf-8", "surrogatepass")) > _MAX_ANSWER_BYTES:
        raise EditError(
            f"the answer is larger than {_MAX_ANSWER_BYTES // 1024} KiB", hint="answer with the change and a few words"
        )
    if text.count("\n") >= MAX_ANSWER_LINES:
        raise EditError(f"the answer has more than {MAX_ANSWER_LINES} lines", hint="answer with the change only")
    answer = AnswerParts(text)
    edits = [one for one in answer.objects if one.get("edits")]
    edit = edits[-1] if edits else None
    if any(one["edits"] != edits[-1]["edits"] for one in edits):  # the leading one is there twice
        raise EditError("the answer has several JSON objects with edits", hint="put all edits into one of them")
    if edit is None:
        form, files = _from_text(answer.parts, code)
    elif not isinstance(items := edit["edits"], list):
        raise EditError(f'"edits" is {show(items)}', hint="it is a list of objects")
    elif all(isinstance(item, dict) and "search" in item for item in items):
        form, files = "search_replace", changes.apply_changes(changes.from_pairs(items, code), code)
    else:
        form, files = "lines", changes.apply_operations(items, code)
    if not form:
        raise _unread(answer)
    _check_files(files, code)
    # In a bare diff, only lines without a sign are prose.
    prose = [line for part in answer.parts if part.kind == "prose" for line in part.lines]
    prose += [x for p in answer.parts if p.kind == "diff" for x in p.lines if not x.startswith(("+", "-", " "))]
    changed = {file: text for file, text in files.items() if text != code[file]}
    return Edit(changed, form, _words(answer.objects, "\n".join(prose)))


def read_parts(
    edits: Sequence[Mapping[str, Any]], whole: Mapping[str, str], shown: Mapping[str, str]
) -> dict[str, str]:
    """New text of each file that an edit in parts changes: ``{"file", "search", "replace"}`` each, and whole files.

    shown: as for ``read_answer``. Raises EditError.
    """
    code = Code(shown)
    files = changes.apply_changes(changes.from_pairs(edits, code), code) if edits else {}
    for name, text in whole.items():
        file = code.require(name, "a whole file")
        if file in files:
            raise EditError(f"{show(file)} is edited and given as a whole", hint="do one of them")
        files[file] = text
    _check_files(files, code)
    return {file: text for file, text in files.items() if text != code[file]}


# ---------------------------------------------------------------------- forms
def _from_text(parts: Sequence[Part], code: Code) -> tuple[str, dict[str, str]]:
    """The form and the files of the first form that the text has, nothing where it has none."""
    if blocks := [part for part in parts if part.kind == "block"]:
        return "search_replace", changes.apply_changes(changes.from_blocks(blocks, code), code)
    hunks: list[changes.Change] = []
    for part in parts:
        if part.kind == "diff":
            hunks += changes.from_hunks(part.lines, code, fenced=False, hint=None)
        elif part.kind == "fence" and (
            part.language in _DIFF_LANGUAGES or _first(part.lines).startswith(("@@ -", "diff --git ", "--- "))
        ):
            if not part.closed:
                raise EditError("the diff has no end", hint="close its block with ``` on a line of its own")
            hint = code.in_info(part.info, "the diff") or code.in_title(part.names[0], "the diff")
            hunks += changes.from_hunks(part.lines, code, fenced=True, hint=hint)
    if hunks:
        return "diff", changes.apply_changes(hunks, code)
    files = _whole_files([part for part in parts if part.kind == "fence"], code)
    return "whole" if files else "", files


def _first(lines: Sequence[str]) -> str:
    return next((line for line in lines if line.strip()), "")


def _whole_files(fences: Sequence[Part], code: Code) -> dict[str, str]:
    """New text of each file that a block is said to be, or that the only block of code looks like."""
    named: dict[str, Part] = {}
    unnamed: list[Part] = []
    for fence in fences:
        what = f"the {show(fence.language) or 'fenced'} block"
        told = code.in_info(fence.info, what)
        file = told or code.in_title(fence.names[0], what) or _name_in_comment(fence, code, what)
        if file is None:
            unnamed += [fence] if fence.language in _CODE_LANGUAGES else []
            continue
        if file in named:
            raise EditError(f"{file} is given as a whole twice", hint="give each file once")
        if told is None:
            _check_whole(fence, file, code[file])
        named[file] = fence
    if not named and unnamed:
        only = code.only()
        if only is None:
            raise EditError(
                "a block of code does not say which file it is",
                hint=f"write the file's name after the opening ```, one of: {code.listed()}",
            )
        if len(unnamed) > 1:
            raise EditError(
                f"there are {len(unnamed)} blocks of code, and none says that it is {only}",
                hint=f"write ```python {only} before the whole file, or use SEARCH/REPLACE blocks for a part of it",
            )
        _check_whole(unnamed[0], only, code[only])
        named = {only: unnamed[0]}
    files = {}
    for name, fence in named.items():
        if not fence.closed:
            raise EditError(f"the block with {name} has no end", hint="close it with ``` on a line of its own")
        inner = sum(line.startswith("```") for line in fence.lines)
        if fence.mark == "```" and (inner % 2 or (not inner and "\n```" in code[name])):
            raise EditError(
                f"the block with {name} ends at backticks that may be the file's own",
                hint="open and close the block with four backticks",
            )
        old, new = changes.File(name, code[name]), tuple(line.removesuffix("\r") for line in fence.lines)
        old.splices.append(changes.Splice(0, len(old.lines), new, "the block"))
        files[name] = old.text()
    return files


def _name_in_comment(fence: Part, code: Code, what: str) -> str | None:
    """The editable file that the first line of the block names in a comment; raises for the name of another file."""
    first = _first(fence.lines).strip()
    if not first.startswith(("#", "//")):
        return None
    file = code.resolve(first.lstrip("#/ "))
    known = any(_first(text.split("\n")).strip() == first for text in code.values())
    # What the file has had all along says nothing of the block, and shell commands are not meant to be a file.
    if file or fence.language not in _CODE_LANGUAGES or known:
        return file
    return code.in_title(first, what)


def _check_whole(fence: Part, file: str, old: str) -> None:
    if 2 * len("\n".join(fence.lines)) < len(old):
        raise EditError(
            f"the block of code ({counted(len(fence.lines), 'line')}) is not the whole of {file} "
            f"({counted(len(changes.File(file, old).lines), 'line')})",
            hint=f"use SEARCH/REPLACE blocks for a part, or write ```python {file} before the complete new file",
        )


# ---------------------------------------------------------------------- results
def _check_files(files: Mapping[str, str], code: Code) -> None:
    """Raise where no file differs, or one that does is not fit to be stored and run."""
    if all(text == code[file] for file, text in files.items()):
        raise EditError(
            f"the edit changes nothing in {', '.join(map(show, files or code))}",
            label=Label.NO_OP,
            hint="the new text has to differ from the file as it was shown",
        )
    for file, text in files.items():
        if text == code[file]:
            continue
        if "\0" in text:
            raise EditError(f"the new {file} holds a zero byte", hint="write it as an escape in a string")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise EditError(
                f"the new {file} holds half of a character (a lone surrogate) at position {error.start}",
                hint="write the whole character",
            ) from None
        if size > _MAX_FILE_BYTES:
            raise EditError(f"the new {file} is larger than {_MAX_FILE_BYTES // 1024} KiB", hint="keep it small")
        known = {line.strip() for line in code[file].split("\n")}
        for number, line in enumerate(text.split("\n"), 1):
            bare = line.strip()
            if bare.startswith((*_COMMENTS, *_BRACKETS)) and bare not in known and _leaves_out(bare):
                raise EditError(
                    f"line {number} of the new {file} leaves code out: `{show(bare)}`",
                    hint="write all lines, or change only a part of the file with SEARCH/REPLACE blocks",
                )


def _leaves_out(line: str) -> bool:
    """Whether a comment, or words in brackets, stand for code left out."""
    comment, inner = line.startswith(_COMMENTS), line.strip("#/-*<!>[](){} \t").lower()
    if len(line) > _LONGEST_ELISION or (not comment and " " not in inner):
        return False
    if not re.search(r"[a-z]", inner):
        return comment and any(dots in line for dots in _DOTS)
    if inner.startswith(_DOTS) or inner.endswith(_DOTS):
        return bool(_LEFT_OUT.search(inner)) and (comment or not re.search(r"[\"'=:,]", line))
    return bool(_ELISION.fullmatch(inner.rstrip(". ")))


def _unread(answer: AnswerParts) -> EditError:
    hint = "write the change as SEARCH/REPLACE blocks, JSON line operations, a unified diff or a whole file"
    if not answer.text.strip():
        return EditError("the answer is empty", hint=hint)
    if any("edits" in one for one in answer.objects):
        return EditError("the edit in the answer is empty", label=Label.NO_OP, hint=hint)
    if answer.unfinished:
        return EditError("the answer ends while it is still thinking", hint="think less, and then write the change")
    if answer.broken:
        return EditError(
            answer.broken, hint="escape line feeds, quotes and backslashes in texts, and close every bracket"
        )
    return EditError(f"no change can be found in the answer ({counted(len(answer.text), 'character')})", hint=hint)


# ---------------------------------------------------------------------- what the answer says of its edit
def _words(objects: Sequence[Mapping[str, Any]], prose: str) -> dict[str, Any]:
    """The words in the last object that has any, else those in lines like ``Hypothesis: …``; bounded and cleaned."""
    said = next((o for o in reversed(objects) if not _KEYS.isdisjoint(o)), None)
    if said is None:
        titled = [(m[1].lower().replace(" ", "_"), m[2].rstrip(" *_`")) for m in _TITLED.finditer(prose)]
        said = dict(reversed(titled))  # the first of each counts
    words: dict[str, Any] = {key: clean(said.get(key), most) for key, most in _TEXTS.items()}
    words["expected_delta"] = _delta(said.get("expected_delta"))
    free = {key: value for key, value in said.items() if key != "edits" and key not in _KEYS}
    kept = {key: value for key, value in words.items() if value not in ("", None)}
    return {**answer_words.asi_of(free, "").extra, **kept}


def _delta(value: object) -> float | None:
    """A number, or a text that begins with one; a percentage is no difference of the metric."""
    if not isinstance(value, str):
        return answer_words.number(value)
    match = _NUMBER.match(value[:40].replace("−", "-"))
    return answer_words.number(float(match[1])) if match else None

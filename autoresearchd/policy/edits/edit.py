"""What an answer is read into, why one cannot be used, and the files that it may name: only the editable ones."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.labels import Label

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


@dataclass(frozen=True, slots=True)
class Edit:
    """A usable answer.

    files: new full text of each changed file. form: how it was written, ``search_replace``, ``lines``, ``diff`` or
    ``whole``. words: what the answer says of itself, bounded and cleaned: ``hypothesis``, ``description``,
    ``expected_delta``, ``arch_change``, ``next_action_hint`` and free keys.
    """

    files: Mapping[str, str]
    form: str
    words: Mapping[str, Any] = field(default_factory=dict)


class EditError(AutoresearchdError):
    """An answer that cannot be used, in words that the model can be told.

    label: ``malformed_answer``, ``illegal_edit`` (a file that may not be edited) or ``no_op`` (nothing changes).
    """

    def __init__(self, what: str, *, label: Label = Label.MALFORMED_ANSWER, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.label = label


def show(text: object, most: int = _SHOWN) -> str:
    """A text as it may stand in a message: on one line, control characters escaped, spaces kept, cut to a length."""
    line = text if isinstance(text, str) else repr(text)[: most + 1]
    cut = line if len(line) <= most else line[: most - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


# ---------------------------------------------------------------------- names of files
def resolve(name: str, code: Mapping[str, str]) -> str | None:
    """The editable file that a name means, in whatever spelling of its folders; None where it means none."""
    bare = name.strip().strip(_QUOTES).strip()
    candidates = [bare, posixpath.normpath(bare.replace("\\", "/"))]
    candidates += [c[2:] for c in candidates if c.startswith(("a/", "b/"))]
    return next((c for c in candidates if c in code), None)


def require_file(name: object, code: Mapping[str, str], what: str) -> str:
    """The editable file that ``what`` names; raises where that is none."""
    file = resolve(name, code) if isinstance(name, str) else None
    if file is None:
        raise _illegal(name, code, what)
    return file


def _illegal(name: object, code: Mapping[str, str], what: str) -> EditError:
    return EditError(
        f"{what}: {show(name)} is not one of the files that may be edited",
        label=Label.ILLEGAL_EDIT,
        hint=f"edit only {list_files(code)}, under exactly this name",
    )


def list_files(code: Mapping[str, str]) -> str:
    """The editable files in words."""
    return ", ".join(show(path) for path in code)


def only_file(code: Mapping[str, str]) -> str | None:
    """The editable file where there is just one."""
    return next(iter(code)) if len(code) == 1 else None


def file_in_title(line: str, code: Mapping[str, str], what: str) -> str | None:
    """The editable file that a line consists of the name of, however decorated; raises for the name of another file."""
    if len(line) > _LONGEST:
        return None
    text = _LEAD.sub("", line.strip(), count=1).strip(_DECORATION)
    plain = _TITLE.sub("", text, count=1).strip(_DECORATION)
    file = resolve(plain, code)
    if file is None and len(plain.split()) == 1 and (plain != text or _is_path(plain, code)):
        raise _illegal(plain, code, what)
    return file


def file_in_info(info: str, code: Mapping[str, str], what: str) -> str | None:
    """The editable file that the words after an opening fence name; raises for another file."""
    for word in re.split(r"[\s,{}]+", info[:_LONGEST]):
        # "python:train.py" as well as "python train.py" and "file=train.py"
        names = [_KEY.sub("", part, count=1).strip(_QUOTES) for part in (word, word.split(":", 1)[-1])]
        file = resolve(names[0], code) or resolve(names[1], code)
        if file is not None:
            return file
        if _is_path(names[1], code):
            raise _illegal(names[1], code, what)
    return None


def file_in_words(lines: Iterable[str], code: Mapping[str, str], what: str) -> str | None:
    """The one editable file that the first line to mention any of them mentions.

    A short line that mentions another file instead says that the block is for that one: it raises.
    """
    for line in lines:
        words = {word.strip(_DECORATION).rstrip(_DECORATION + ".,;!?") for word in line[:_LONGEST].split()}
        files = {path for word in words if (path := resolve(word, code)) is not None}
        if files:
            return files.pop() if len(files) == 1 else None
        others = [word for word in words if word and _is_path(word, code)]
        if others and len(line.split()) <= _SHORT:
            raise _illegal(min(others), code, what)
    return None


def _is_path(word: str, code: Mapping[str, str]) -> bool:
    """Whether a word is the name of some file, also one that an editable file's name is meant by in other letters."""
    lower = word.lower()
    names = {name.lower() for path in code for name in (path, posixpath.basename(path))}
    endings = tuple(ending.lower() for path in code if (ending := posixpath.splitext(path)[1]))
    return bool(_PATH.match(word)) or lower in names or lower.endswith(endings)

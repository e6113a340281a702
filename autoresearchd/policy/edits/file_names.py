"""Names of files in an answer: only those of the editable files count, letter by letter."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits.edit import EditError, show

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


def resolve(name: str, code: Mapping[str, str]) -> str | None:
    """The editable file that a name means, in whatever spelling of its folders; None where it means none."""
    bare = name.strip().strip(_QUOTES).strip()
    plain = posixpath.normpath(bare.replace("\\", "/"))
    candidates = [bare, plain]
    candidates += [c[2:] for c in candidates if c.startswith(("a/", "b/"))]
    return next((c for c in candidates if c in code), None)


def known(name: object, code: Mapping[str, str], what: str) -> str:
    """The editable file that ``what`` names; raises where that is none."""
    found = resolve(name, code) if isinstance(name, str) else None
    if found is None:
        raise illegal(name, code, what)
    return found


def illegal(name: object, code: Mapping[str, str], what: str) -> EditError:
    """The error for another file than the editable ones."""
    return EditError(
        f"{what}: {show(name)} is not one of the files that may be edited",
        label=Label.ILLEGAL_EDIT,
        hint=f"edit only {allowed(code)}, under exactly this name",
    )


def allowed(code: Mapping[str, str]) -> str:
    """The editable files in words."""
    return ", ".join(show(path) for path in code)


def of_item(item: Mapping[str, object], code: Mapping[str, str], what: str) -> str:
    """The file that a JSON item names, the only one where it names none; raises for another."""
    name = item.get("file") or only(code)
    if name is None:
        raise EditError(f'{what} has no "file"', hint=f"name one of: {allowed(code)}")
    return known(name, code, what)


def only(code: Mapping[str, str]) -> str | None:
    """The editable file where there is just one."""
    return next(iter(code)) if len(code) == 1 else None


def title(line: str, code: Mapping[str, str], what: str) -> str | None:
    """The editable file that a line consists of the name of, however decorated; raises for the name of another file."""
    if len(line) > _LONGEST:
        return None
    text = _LEAD.sub("", line.strip(), count=1).strip(_DECORATION)
    plain = _TITLE.sub("", text, count=1).strip(_DECORATION)
    found = resolve(plain, code)
    if found is None and len(plain.split()) == 1 and (plain != text or _is_path(plain, code)):
        raise illegal(plain, code, what)
    return found


def in_info(info: str, code: Mapping[str, str], what: str) -> str | None:
    """The editable file that the words after an opening fence name; raises for another file."""
    for word in re.split(r"[\s,{}]+", info[:_LONGEST]):
        # "python:train.py" as well as "python train.py" and "file=train.py"
        names = [_KEY.sub("", part, count=1).strip(_QUOTES) for part in (word, word.split(":", 1)[-1])]
        found = resolve(names[0], code) or resolve(names[1], code)
        if found is not None:
            return found
        if _is_path(names[1], code):
            raise illegal(names[1], code, what)
    return None


def mentioned(lines: Iterable[str], code: Mapping[str, str], what: str) -> str | None:
    """The one editable file that the first line to mention any of them mentions.

    A short line that mentions another file instead says that the block is for that one: it raises.
    """
    for line in lines:
        words = {word.strip(_DECORATION).rstrip(_DECORATION + ".,;!?") for word in line[:_LONGEST].split()}
        found = {path for path in (resolve(word, code) for word in words) if path is not None}
        if found:
            return found.pop() if len(found) == 1 else None
        others = [word for word in words if word and _is_path(word, code)]
        if others and len(line.split()) <= _SHORT:
            raise illegal(min(others), code, what)
    return None


def _is_path(word: str, code: Mapping[str, str]) -> bool:
    """Whether a word is the name of some file, also one that an editable file's name is meant by in other letters."""
    if _PATH.match(word):
        return True
    lower = word.lower()
    names = {name.lower() for path in code for name in (path, posixpath.basename(path))}
    endings = tuple(ending.lower() for path in code if (ending := posixpath.splitext(path)[1]))
    return lower in names or lower.endswith(endings)

"""From facts to HTML: everything is escaped (autoescape), code is coloured by Pygments, numbers read as in `status`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

from autoresearchd.domain.confirmation import ablates
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.report.plain_text import (
    clean,
    money,
    outcome_words,
    price,
    program_words,
    real,
    short_count,
    strip_controls,
)

FOLDER = Path(__file__).parent
_MOST_LINES, _LONGEST = 4000, 400
_NO_FILE = "/dev/null"
_STATUS = {
    "keep": ("kept", "keep"), "discard": ("discarded", "discard"), "crash": ("crashed", "crash"),
    "checks_failed": ("failed a check", "check"), "aborted_early": ("ended early", "abort"),
}  # fmt: skip
_KEEPS = {True: ("confirmed", "confirmed"), None: ("kept, open", "keep"), False: ("kept, fell back", "fell")}
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_TOKENS = (
    (Comment, "c"), (Keyword, "k"), (String, "s"), (Number, "n"), (Operator.Word, "k"), (Name.Function, "f"),
    (Name.Class, "f"), (Name.Decorator, "f"), (Name.Builtin, "b"),
)  # fmt: skip


class DiffLine(NamedTuple):
    """A line of a diff: what it is (``add``, ``del``, ``hunk``, ``file``, ``same``), its numbers, and its HTML."""

    kind: str
    old: int | None
    new: int | None
    html: Markup


def environment() -> Environment:
    """Templates with their filters; a name that a template does not know is an error, not an empty place."""
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "figure": figure, "signed": signed, "plain": clean,
        "duration": lambda value: "—" if real(value) is None else format_duration(value), "moment": moment,
        "money": money, "count": short_count, "percent": percent, "pretty": pretty,
    }  # fmt: skip
    found.globals |= {"outcome": outcome, "counted": counted, "price": price, "ablates": ablates}
    return found


# ---------------------------------------------------------------------- words and figures
def figure(value: Any, digits: int = 5, *, sign: str = "-") -> str:
    """A metric with so many significant digits."""
    found = real(value)
    if found is None:
        return "—"
    if found.is_integer() and abs(found) < 1e9:
        return f"{found + 0.0:{sign},.0f}"
    if 1e-4 <= abs(found) < 1e6:
        return f"{found:{sign}.{max(0, digits - 1 - math.floor(math.log10(abs(found))))}f}"
    return f"{found:{sign}.{min(digits, 3)}g}"


def signed(value: Any, digits: int = 4) -> str:
    """A difference, with its sign."""
    return figure(value, digits, sign="+")


def percent(share: Any) -> str:
    """A share as per cent."""
    found = real(share)
    return "—" if found is None else f"{100 * found:.0f}%"


def moment(at: Any) -> str:
    """A moment of the store in UTC, as ISO text or a datetime."""
    try:
        found = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    except ValueError:
        return "—"
    return f"{found.astimezone(UTC):%d %b %Y, %H:%M:%S}"


def text(value: Any) -> str:
    """Foreign text of several lines without what steers a terminal or turns the direction of reading."""
    return "\n".join(strip_controls(line) for line in str(value or "").replace("\r\n", "\n").split("\n"))


def pretty(value: Any) -> str:
    """A value of JSON to be read: text as it is."""
    return text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str))


def outcome(record: Mapping[str, Any]) -> tuple[str, str]:
    """What became of an experiment: words, and the name of its mark."""
    status, label = record.get("status"), record.get("label")
    if not status:
        return str(record.get("phase") or "under way"), "running"
    if status == "keep":
        return ("baseline", "base") if record.get("baseline") else _KEEPS[record.get("confirmed")]
    return _STATUS["aborted_early"] if label == "aborted_early" else _STATUS.get(str(status), (str(status), "discard"))


def words_of_test(test: Mapping[str, Any]) -> dict[str, str]:
    """Of a confirmation or ablation: what ran beside the confirmed program, what it showed, and the kind of that."""
    kind = str(test["outcome"]) if test["moved"] else "open"
    return {"of": program_words(test), "told": outcome_words(test), "kind": kind}


# ---------------------------------------------------------------------- diffs
def diff_lines(diff: str) -> list[DiffLine]:
    """A unified diff, its code coloured by the names of its files; very long ones are cut."""
    found: list[DiffLine] = []
    lexer, before, old, new, left = _lexer(""), "", 0, 0, [0, 0]
    for line in text(diff).rstrip("\n").split("\n")[:_MOST_LINES]:
        if hunk := _HUNK.match(line):  # no line of code begins so: it has a sign, or a space
            old, new = int(hunk[1]), int(hunk[3])
            left = [int(hunk[2] or 1), int(hunk[4] or 1)]
            found.append(DiffLine("hunk", None, None, Markup.escape(line[:_LONGEST])))
        elif line.startswith("\\"):
            found.append(DiffLine("hunk", None, None, Markup.escape(line[:_LONGEST])))
        elif max(left) <= 0:
            if line.startswith("--- "):
                before = line[4:].removeprefix("a/").strip()
            elif line.startswith("+++ "):
                name = line[4:].removeprefix("b/").strip()
                lexer = _lexer(before if name == _NO_FILE else name)
                told = f"{before} (deleted)" if name == _NO_FILE else name + " (new)" * (before == _NO_FILE)
                found.append(DiffLine("file", None, None, Markup.escape(told[:_LONGEST])))
        else:
            kind = {"+": "add", "-": "del"}.get(line[:1], "same")
            numbers = (None if kind == "add" else old), (None if kind == "del" else new)
            found.append(DiffLine(kind, *numbers, coloured(line[1:], lexer)))
            old, new = old + (kind != "add"), new + (kind != "del")
            left = [left[0] - (kind != "add"), left[1] - (kind != "del")]
    return found


def _lexer(name: str) -> Lexer:
    try:
        return get_lexer_for_filename(name[-100:], stripnl=False, ensurenl=False)
    except ClassNotFound:
        return get_lexer_by_name("text", stripnl=False, ensurenl=False)


def coloured(line: str, lexer: Lexer) -> Markup:
    """A line of code as HTML; a very long one stays as it is: its colours are not worth the time."""
    if len(line) > _LONGEST:
        return Markup.escape(line)
    return Markup("").join(_spans(line, lexer))


def _spans(line: str, lexer: Lexer) -> Iterator[Markup]:
    for kind, words in lexer.get_tokens(line):
        words = words.rstrip("\n")
        name = next((name for family, name in _TOKENS if kind in family), "")
        yield Markup('<span class="t-{}">{}</span>').format(name, words) if name else Markup.escape(words)

"""Text for terminals: cleaning, colours, numbers, tables, errors and exit codes; light, because status imports it."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from autoresearchd import keys
from autoresearchd.domain.errors import AutoresearchdError, UsageError
from autoresearchd.domain.quantities import is_whole
from autoresearchd.report.plain_text import clean as clean
from autoresearchd.report.plain_text import json_text as json_text
from autoresearchd.report.plain_text import measured as measured
from autoresearchd.report.plain_text import number as number
from autoresearchd.report.plain_text import real as real
from autoresearchd.report.plain_text import strip_controls as strip_controls

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36, "grey": 90}
COLOURS = {
    "keep": "green", "discard": "grey", "crash": "red", "checks_failed": "magenta", "running": "green",
    "paused": "yellow", "backing_off": "yellow", "stopped": "grey", "crashed": "red",
}  # fmt: skip
"""Of the status of an experiment, and of the state of a session."""
_RESET = "\x1b[0m"
_STYLE, _TOKENS = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"\x1b\[[0-9;]*m| +|[^ \x1b]+")
INTERRUPTED = 130
_NO_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)
_GONE = "the current folder does not exist any more"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Paint:
    """Colours for one stream; plain when it is no terminal, with ``NO_COLOR`` set or ``TERM=dumb``.

    See no-color.org; FORCE_COLOR is for those who page through ``less -R``.
    """

    def __init__(self, stream: TextIO | None = None, *, enabled: bool | None = None) -> None:
        if enabled is None:
            env = os.environ
            terminal = is_terminal(stream or sys.stdout) and env.get("TERM") != "dumb"
            enabled = (terminal or bool(env.get("FORCE_COLOR"))) and not env.get("NO_COLOR")
        self.enabled = enabled
        self.wraps = enabled or is_terminal(stream or sys.stdout)
        """Whether lines are to be no longer than a terminal is wide."""

    def __call__(self, text: str, *styles: str) -> str:
        codes = ";".join(str(_CODES[style]) for style in styles if style)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.enabled and codes and text else text


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody looks at the stream; False for a closed one."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def can_show(text: str) -> bool:
    """Whether the encoding of stdout has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", "") or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def terminal_width() -> int:
    """Columns of the terminal, 100 where there is none."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def all_whole(values: Iterable[Any]) -> bool:
    """Whether all the figures of a column, as far as there are any, are integers."""
    return all(is_whole(found) for found in map(real, values) if found is not None)


def read_time(text: Any) -> datetime | None:
    """A moment that a document names; None where it names none."""
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def width(text: str) -> int:
    """Columns that a text without escapes takes in a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(1 for char in text if unicodedata.east_asian_width(char) in "WF")
    return len(text) + wide - sum(1 for char in text if unicodedata.combining(char))


def fit(text: str, columns: int) -> str:
    """The text cut so that it takes at most ``columns``, wide characters counted as two."""
    if width(text) <= columns:
        return text
    kept, used = [], 1
    for char in text:
        used += width(char)
        if used > columns:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "…"


def wrap(line: str, columns: int, indent: int) -> list[str]:
    """A painted line as several that take at most ``columns``; those that follow are indented.

    It is broken between what " · " and gaps of several spaces keep apart, and between words where that is too long. A
    word that is longer than a line stays whole.
    """
    if width(_STYLE.sub("", line)) <= columns:
        return [line]
    lines, style, painted, used, gap, opening = [""], "", False, 0, "", ""
    for phrase in _phrases(line):
        wide = width("".join(token for token in phrase if token[0] != "\x1b").strip())
        apart = wide <= columns - indent and used + len(gap) + wide > columns
        for token in phrase:
            if token == _RESET:
                lines[-1] += _RESET if painted else ""
                style, painted, opening = "", False, ""
            elif token[0] == "\x1b":
                style = opening = token
            elif token[0] == " ":
                gap += token
            else:
                if used > indent and (apart or used + len(gap) + width(token) > columns):
                    lines[-1] += _RESET if painted else ""
                    lines.append("")
                    gap, used, opening = " " * indent, 0, style
                lines[-1] += gap + opening + token
                used, gap, opening, painted, apart = used + len(gap) + width(token), "", "", bool(style), False
    return lines


def _phrases(line: str) -> Iterator[list[str]]:
    """The tokens of a painted line, in parts that belong together."""
    phrase: list[str] = []
    for token in _TOKENS.findall(line):
        if token.startswith("  ") and phrase:
            yield phrase
            phrase = []
        phrase.append(token)
        if token == "·":  # noqa: S105 - no secret
            yield phrase
            phrase = []
    yield phrase


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    paint: Paint,
    right: Sequence[int] = (),
    colours: Sequence[Mapping[int, str]] = (),
    total: int | None = None,
) -> list[str]:
    """Lines of a table whose last column takes what is left of ``total`` columns (None: as long as it likes).

    right: columns set to the right; colours: for each row, column → style.
    """
    widths = [max([width(header), *(width(row[i]) for row in rows)]) for i, header in enumerate(headers)]
    if total is not None:
        widths[-1] = max(12, min(widths[-1], total - sum(widths[:-1]) - 2 * (len(headers) - 1)))

    def line(cells: Sequence[str], styles: Mapping[int, str]) -> str:
        out = []
        for i, cell in enumerate(cells):
            shown = fit(cell, widths[i]) if i == len(cells) - 1 and total is not None else cell
            gap = " " * (widths[i] - width(shown))
            painted = paint(shown, styles.get(i, ""))
            out.append(gap + painted if i in right else painted + (gap if i < len(cells) - 1 else ""))
        return "  ".join(out).rstrip()

    head = line(headers, dict.fromkeys(range(len(headers)), "dim"))
    return [head, *(line(row, colours[i] if i < len(colours) else {}) for i, row in enumerate(rows))]


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    colours: Sequence[Mapping[int, str]] = (),
    fits: bool = False,
) -> None:
    """Print a table on stdout; ``fits``: what is too long for a terminal is cut."""
    total = terminal_width() if fits and is_terminal(sys.stdout) else None
    print("\n".join(table(headers, rows, paint=Paint(sys.stdout), right=right, colours=colours, total=total)))


def guarded(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; errors raised on purpose are told in a line and how to fix them."""
    for name in ("stdin", "stdout", "stderr"):  # one that is closed (``>&-``) is None, and its number free for any file
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character must not end a command
            stream.reconfigure(errors="backslashreplace", encoding=None if is_terminal(stream) else "utf-8")
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except AutoresearchdError as error:
        tell(error.what, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe went away (``… | head``)
        _close_stdout()
        return 0
    except Exception as error:  # noqa: BLE001 - the last frame before the shell; nothing may end without an exit code
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            _close_stdout()
            tell(f"the output cannot be written: {error.strerror}", "make room where it goes, or let it go elsewhere")
        elif what := _of_a_path(error):
            tell(what, "cd to a folder that is there" if what is _GONE else "name another path, or allow its use")
            return UsageError.exit_code
        else:
            print(_plain(traceback.format_exc().rstrip("\n")), file=sys.stderr)
            tell(f"unexpected {type(error).__name__}: {error}", "this is a defect of autoresearchd; please report it")
        return 1


def _of_a_path(error: Exception) -> str:
    """Why a path cannot be used, which is nobody's defect; empty for any other error."""
    if isinstance(error, OSError) and error.filename is not None and error.errno in _NO_PATH:
        return f"{str(error.filename)[:300]}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # as ``os.getcwd`` raises it
        return _GONE
    # ``Path.resolve`` before Python 3.13
    return str(error) if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from") else ""


def tell(what: str, hint: str = "") -> None:
    """Print an error on stderr: what happened, and how to fix it."""
    paint = Paint(sys.stderr)
    print(f"{paint('error:', 'red', 'bold')} {_plain(what)}", file=sys.stderr)
    if hint:
        print(f"  {paint('→', 'cyan')} {_plain(hint)}", file=sys.stderr)


def say(message: str) -> None:
    """Print a message for people: on stderr, so that stdout holds data only."""
    print(_plain(message), file=sys.stderr)


def _plain(text: str) -> str:
    """Messages quote what models and jobs wrote, and may quote what they must not: no control codes, no secrets."""
    return "\n".join(strip_controls(line) for line in keys.redactor().text(text).split("\n"))


def _close_stdout() -> None:
    """What is left to be flushed at exit goes nowhere, quietly: it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

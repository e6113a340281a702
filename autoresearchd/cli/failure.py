"""How a command ends when something goes wrong: one place that turns exceptions into words and exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

from autoresearchd.cli.render import Paint, strip_controls

INTERRUPTED = 130
_EPIPE_EXIT = 0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def guarded(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; errors raised on purpose are told in a line and how to mend them."""
    from autoresearchd.errors import AutoresearchdError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character must not end a command
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except AutoresearchdError as error:
        tell(error.what, error.mend)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _close_stdout()
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            return _unexpected(error)
        _close_stdout()  # what is left to be flushed at exit would fail again
        tell(f"the output cannot be written: {error.strerror}", "make room where it goes, or let it go elsewhere")
        return 1
    except Exception as error:  # noqa: BLE001 - the last frame before the shell; nothing may end without an exit code
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    """Tell what nobody foresaw, with its traceback; the exit code."""
    import traceback

    print(_plain(traceback.format_exc().rstrip("\n")), file=sys.stderr)
    tell(f"unexpected {type(error).__name__}: {error}", "this is a defect of autoresearchd; please report it")
    return 1


def tell(what: str, mend: str = "") -> None:
    """Print an error on stderr: what happened, and how to mend it."""
    paint = Paint(sys.stderr)
    print(f"{paint('error:', 'red', 'bold')} {_plain(what)}", file=sys.stderr)
    if mend:
        print(f"  {paint('→', 'cyan')} {_plain(mend)}", file=sys.stderr)


def say(message: str) -> None:
    """Print a message for people: on stderr, so that stdout holds data only."""
    print(_plain(message), file=sys.stderr)


def _plain(text: str) -> str:
    """Messages quote what models and jobs wrote, and may quote what they must not: no control codes, no secrets."""
    from autoresearchd import keys

    text = keys.redactor().text(text)
    return "\n".join(strip_controls(line) for line in text.split("\n"))


def _close_stdout() -> int:
    """The reader of a pipe went away (``… | head``): what is left to be flushed at exit goes nowhere, quietly."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return _EPIPE_EXIT

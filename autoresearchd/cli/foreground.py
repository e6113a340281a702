"""What a command in the foreground shows: ``status``, drawn anew, in a terminal; a line for each event elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TextIO

from autoresearchd.app.project import Project
from autoresearchd.cli import terminal_text
from autoresearchd.cli.commands.status_command import lines_now
from autoresearchd.cli.repository_here import Place
from autoresearchd.cli.terminal_text import Paint, clean
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.ports import Event, EventKind, EventSink

_LOUD = {
    EventKind.WARNING: "warning: ",
    EventKind.LEARNER_FAILED: "warning: ",
    EventKind.FAULT: "fault: ",
    EventKind.BACKING_OFF: "backing off: ",
}
_ABOVE = {*_LOUD, EventKind.CONFIRMED, EventKind.SESSION_STOPPED}
"""What stays above the live view: what is wrong, and what a confirmation has shown."""
_QUIET = {EventKind.HOUSEKEEPING, EventKind.LEARNED, EventKind.HOOK, EventKind.OPENED}
_BEGIN = {EventKind.SESSION_STARTED, EventKind.SESSION_RESUMED}
_REFRESH_SECONDS, _ROWS = 1.0, 50


class PlainDisplay:
    """One line for each event: the time, the experiment, what happened."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        if event.kind not in _QUIET:
            with self._lock:
                _write(self._stream, _plain_line(event) + "\n")


def _write(stream: TextIO, text: str) -> None:
    """Write where somebody may look; when nobody does any more the research goes on."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def _plain_line(event: Event) -> str:
    where = f"#{event.experiment:<4} " if event.experiment is not None else ""
    message = event.message
    if event.kind is EventKind.SESSION_STOPPED and (event.data.get("state") == "crashed" or event.data.get("raised")):
        message = str(event.data.get("state"))  # the command itself says why, and how to fix it
    return f"{event.at.astimezone():%H:%M:%S}  {where}{_LOUD.get(event.kind, '')}{clean(message)}"


class LiveDisplay:
    """What ``status`` shows, drawn anew each second in its place; above it a line for each warning and verdict.

    Until the session has begun there are lines alone. Use as a context manager.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._paint = Paint(self._stream)
        self._lock = threading.Lock()
        self._session: tuple[Path, str] | None = None
        self._drawn = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="display", daemon=True)

    def emit(self, event: Event) -> None:
        begun = self._session is not None
        if event.kind in _BEGIN and event.data.get("root"):
            self._session = Path(str(event.data["root"])), str(event.data.get("tag"))
        if event.kind in _ABOVE or (not begun and event.kind not in _QUIET):
            with self._lock:
                _write(self._stream, self._erasing() + _plain_line(event) + "\n")
                self._drawn = 0
        self.draw()

    def draw(self) -> None:
        """Draw the status over what was drawn before; nothing where it cannot be read."""
        with self._lock:
            if self._session is None:
                return
            root, tag = self._session
            try:
                place = Place(Project(root))  # a connection belongs to the thread that opened it
                with place.reader:
                    lines = lines_now(place, tag, place.status(tag), self._paint, hints=False)
            except (AutoresearchdError, KeyError, OSError):  # the command itself says what is wrong
                return
            rows = _ROWS
            with contextlib.suppress(OSError, ValueError):
                rows = os.get_terminal_size(self._stream.fileno()).lines or _ROWS
            lines = lines[: max(5, rows - 1)]
            # Without automatic wrapping each of them takes one row, whatever the width.
            _write(self._stream, f"{self._erasing()}\x1b[?7l" + "\n".join(lines) + "\x1b[?7h\n")
            self._drawn = len(lines)

    def _erasing(self) -> str:
        return f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_SECONDS):
            self.draw()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        self.draw()


@contextlib.contextmanager
def foreground_sink(*, live: bool = True, stream: TextIO | None = None) -> Iterator[EventSink]:
    """The sink for a command that stays: live in a terminal (unless ``live`` is off), plain lines elsewhere."""
    out = stream if stream is not None else sys.stderr
    if live and terminal_text.is_terminal(out) and os.environ.get("TERM", "") not in ("", "dumb"):
        with LiveDisplay(out) as display:
            yield display
    else:
        yield PlainDisplay(out)

"""Where events go: to several sinks at once, and to the daemon's log."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
from collections.abc import Sequence
from pathlib import Path

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.events import Event, EventKind
from autoresearchd.domain.ports import EventSink
from autoresearchd.domain.redaction import Redactor

LOG_BYTES = 8 * 2**20
_LEVELS = {EventKind.WARNING: logging.WARNING, EventKind.BACKING_OFF: logging.WARNING, EventKind.FAULT: logging.ERROR}


class Fanout:
    """Gives each event to every sink, without the secrets that may be in it."""

    def __init__(self, sinks: Sequence[EventSink], redactor: Redactor | None = None) -> None:
        self._sinks, self._redactor = tuple(sinks), redactor or Redactor()

    def emit(self, event: Event) -> None:
        event = self._redactor.value(event)
        for sink in self._sinks:
            sink.emit(event)


class FileSink:
    """Lines for people in a rotating file, with the session's tag and the traceback of faults."""

    def __init__(self, path: Path, tag: str) -> None:
        self._tag = tag
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8", errors="backslashreplace", delay=True
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._handler.handleError = lambda record: None  # type: ignore[method-assign] # a full disk must not stop the loop

    def emit(self, event: Event) -> None:
        number = f" #{event.experiment}" if event.experiment is not None else ""
        text = printable(event.message, keep="\n\t", instead="�")
        text = text.removeprefix(f"{event.kind.value} ")  # "committed 1a2b3c4" is a line without the kind, too
        line = f"{event.at:%Y-%m-%d %H:%M:%S}Z {self._tag} {event.kind.value}{number} {text}"
        if trace := str(event.data.get("traceback", "")):
            line += "\n" + trace.rstrip()
        level = _LEVELS.get(event.kind, logging.INFO)
        self._handler.handle(logging.LogRecord("autoresearchd", level, "", 0, line, None, None))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._handler.close()

"""The store as the page sees it: opened when there is one, opened anew when another lies in its place.

What takes long is kept until the session has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from autoresearchd.app.place import Place
from autoresearchd.app.project import Project
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.store.page_reader import OpenRun, PageReader
from autoresearchd.workspace import layout

_MOST_KEPT = 64
_T = TypeVar("_T")


class Source:
    """Sessions of a repository. Safe to use from several threads."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._lock = threading.Lock()
        self._opened: tuple[object, Place, PageReader] | None = None
        self._kept: dict[tuple[str, str], tuple[object, Any]] = {}

    def open(self) -> tuple[Place, PageReader]:
        """NoSession: none was begun yet; StoreError: it cannot be read."""
        self.project.require_database()
        where = self.project.journal
        key: object = where
        if isinstance(where, Path):
            found = where.stat()
            key = (found.st_dev, found.st_ino)
        with self._lock:
            if self._opened is None or self._opened[0] != key:
                reader = PageReader(where)
                if self._opened is not None:
                    self._opened[2].close()
                self._opened = key, Place(self.project, reader), reader
            return self._opened[1:]

    def kept(self, tag: str, what: str, make: Callable[[PageReader], _T]) -> _T:
        """What ``make`` gives, made again only when the session has changed."""
        _, reader = self.open()
        signature = reader.signature(tag)
        with self._lock:
            known = self._kept.get((tag, what))
        if known is not None and known[0] == signature:
            return known[1]  # type: ignore[no-any-return]
        value = make(reader)
        with self._lock:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[tag, what] = signature, value
        return value

    def mark(self) -> str:
        """Another text once something was written, or a daemon came or went; empty while there is nothing to read."""
        try:
            _, reader = self.open()
            alive = sorted(layout.locks_dir(self.project.root).glob("*.lock"))
            return " ".join([reader.change_mark(), *(f"{p.stem}:{self.project.daemon(p.stem)}" for p in alive)])
        except (AutoresearchdError, OSError):
            return ""

    def version(self, tag: str) -> str:
        """A word for all that the pages of a session rest on, and whether its daemon lives; tag empty: of all sessions."""
        try:
            place, reader = self.open()
            tags = [tag] if tag else [session.tag for session in reader.sessions()]
            rests_on = repr([(name, place.alive(name), reader.signature(name)) for name in tags])
        except (
            AutoresearchdError,
            KeyError,
            OSError,
        ) as error:  # there is none, or it cannot be read: that is news, too
            rests_on = f"{type(error).__name__}: {error}"
        return sha256(rests_on.encode("utf-8", "replace")).hexdigest()[:16]

    def log(self, tag: str, run: OpenRun) -> Path:
        """Where a run under way has its log, if it runs here or is streamed here."""
        return layout.run_dir(self.project.root, tag, run.number, run.index) / "training.log"

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            if self._opened is not None:
                self._opened[2].close()
                self._opened = None

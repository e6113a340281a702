"""The store as the page sees it: opened when there is one, opened anew when another lies in its place.

What takes long is kept until the session has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from autoresearchd.app.place import Place
from autoresearchd.app.project import Project
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.loop.upkeep.session_lock import waiting
from autoresearchd.store.page_reader import OpenRun, PageReader
from autoresearchd.workspace import layout

_MOST_KEPT = 1024
_SLOW_S, _PATIENCE, _LONGEST_S = 0.1, 10.0, 60.0
"""What took longer to make is shown for so many times as long, but no longer, also when the session has changed."""
RECHECK_S = 5.0
"""How often what no write tells is looked at: that a daemon is silent, or went with another machine."""
_T = TypeVar("_T")
Signature = tuple[Any, ...]
"""See ``PageReader.signature``."""


class Kept(NamedTuple):
    """What was made, of which state of the session, and until when it is good enough (monotonic)."""

    signature: Signature
    value: Any
    until: float


class Source:
    """Sessions of a repository. Safe to use from several threads."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._lock = threading.Lock()
        self._opened: tuple[object, Place, PageReader] | None = None
        self._kept: dict[tuple[str, object, str], Kept] = {}
        self._turns: dict[tuple[str, object, str], threading.Lock] = {}
        self._points: dict[str, tuple[object, list[dict[str, Any]]]] = {}
        self._request = threading.local()

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
                self._kept.clear()
                self._points.clear()
            return self._opened[1:]

    def kept(self, tag: str, signature: Signature, what: str, make: Callable[[], _T]) -> _T:
        """What ``make`` gives, made again only when the session has another signature, and by one thread at a time."""
        key = tag, signature[0], what
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                known = self._kept.get(key)
            begun = time.monotonic()
            if known is not None and (known.signature == signature or begun < known.until):
                self._request.stale = known.signature != signature or getattr(self._request, "stale", False)
                return known.value  # type: ignore[no-any-return]
            value, took = make(), time.monotonic() - begun
            with self._lock:
                until = time.monotonic() + min(_PATIENCE * took, _LONGEST_S) if took > _SLOW_S else 0.0
                self._kept.pop(key, None)
                self._kept[key] = Kept(signature, value, until)
                for oldest in list(self._kept)[:-_MOST_KEPT]:
                    del self._kept[oldest]
                    self._turns.pop(oldest, None)
            return value

    def gave_stale(self) -> bool:
        """Whether something of an earlier state was given to this thread since it asked last."""
        stale = getattr(self._request, "stale", False)
        self._request.stale = False
        return stale

    def points(self, tag: str, signature: Signature) -> list[dict[str, Any]]:
        """See ``PageReader.points``. What is decided stays: only the newest are read again."""
        _, reader = self.open()
        with self._lock:
            session, known = self._points.get(tag, (None, []))
        known = known if session == signature[0] else []
        settled = next((i for i, point in enumerate(known) if point["status"] is None), len(known))
        start = known[settled - 1]["experiment"] + 1 if settled else 0
        fate = reader.keeps(tag) if known else {}
        points = [
            {**point, "confirmed": fate.get(point["experiment"])} if point["status"] == "keep" else point
            for point in known[:settled]
        ] + reader.points(tag, start)
        with self._lock:
            self._points[tag] = signature[0], points
        return points

    def mark(self) -> str:
        """Another text once something was written, a daemon came, went or waits, or time passed; empty: unreadable."""
        try:
            _, reader = self.open()
            locks = sorted(layout.locks_dir(self.project.root).glob("*.lock"))
            alive = (f"{p.stem}:{self.project.daemon(p.stem)}:{waiting(p)}" for p in locks)
            return " ".join([reader.change_mark(), str(time.monotonic() // RECHECK_S), *alive])
        except (AutoresearchdError, OSError):
            return ""

    def version(self, tag: str, signature: Signature | None = None) -> str:
        """A word for all that the pages of a session rest on, and how its daemon does; tag empty: of all sessions.

        signature: the session's, where it is known already.
        """
        try:
            place, reader = self.open()
            tags = [tag] if tag else [session.tag for session in reader.sessions()]
            rests_on = repr(
                [(name, place.alive(name), place.waits(name), signature or reader.signature(name)) for name in tags]
            )
        except (
            AutoresearchdError,
            KeyError,
            OSError,
        ) as error:  # there is none, or it cannot be read: that is news, too
            rests_on = f"{type(error).__name__}: {error}"
        return sha256(rests_on.encode("utf-8", "replace")).hexdigest()[:16]

    def log(self, tag: str, run: OpenRun) -> Path:
        """Where a run under way has its log, if it runs here or is streamed here."""
        return layout.run_dir(self.project.root, tag, run.number, run.run_index) / "training.log"

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            if self._opened is not None:
                self._opened[2].close()
                self._opened = None

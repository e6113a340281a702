"""Who watches is told: the store is looked at while somebody does, a few times a second, by one cheap question.

An event says only that a session has changed; the page then asks for what it shows. Logs of runs under way grow beside
the store: their curves have events of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.web.source import Source

EVERY_S = 0.2
"""Between two looks: with the page's own request well below a second."""
ALIVE_S = 15.0
MOST_WATCHERS = 64


class Watcher:
    """One for each open page. tag: of its session, empty: all of them; version: that it was told of last."""

    def __init__(self, tag: str, version: str) -> None:
        self.tag, self.version = tag, version
        self.news: asyncio.Queue[str] = asyncio.Queue(4)

    def tell(self, what: str) -> None:
        with suppress(asyncio.QueueFull):  # it is told already, and has not asked yet
            self.news.put_nowait(what)


class Changes:
    """stopping: whether the server is to end."""

    def __init__(self, source: Source, stopping: Callable[[], bool]) -> None:
        self._source, self._stopping = source, stopping
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._mark = ""
        self._versions: dict[str, str] = {}
        self._runs: dict[str, list[Path]] = {}
        self._sizes: dict[str, list[int]] = {}

    @property
    def full(self) -> bool:
        return len(self._watchers) >= MOST_WATCHERS

    async def stream(self, tag: str) -> AsyncIterator[bytes]:
        """Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        # The page compares: something may have changed before it watched, or while the connection was lost.
        watcher = Watcher(tag, await asyncio.to_thread(self._source.version, tag))
        if self.full:  # others came meanwhile: it asks again, and is refused
            return
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield f"retry: 1000\nevent: change\ndata: {watcher.version}\n\n".encode()
            while not self._stopping():
                try:
                    what = await asyncio.wait_for(watcher.news.get(), ALIVE_S)
                except TimeoutError:
                    yield b":\n\n"
                    continue
                if what:
                    yield f"event: {what}\ndata: {watcher.version}\n\n".encode()
        finally:
            self._watchers.discard(watcher)

    async def _look(self) -> None:
        while self._watchers and not self._stopping():
            grown = await asyncio.to_thread(self._check, {watcher.tag for watcher in self._watchers})
            for watcher in self._watchers:
                if (version := self._versions.get(watcher.tag, watcher.version)) != watcher.version:
                    watcher.version = version
                    watcher.tell("change")
                if watcher.tag in grown:
                    watcher.tell("curve")
            await asyncio.sleep(EVERY_S)
        for watcher in self._watchers:
            watcher.tell("")

    def _check(self, tags: set[str]) -> set[str]:
        """Take in what has changed; the sessions whose runs have logged more since the last look."""
        grown, mark = set(), self._source.mark()
        for tag in tags if mark != self._mark else tags - self._versions.keys():
            self._versions[tag], self._runs[tag] = self._source.version(tag), self._under_way(tag)
        self._mark, self._versions = mark, {tag: self._versions[tag] for tag in tags}
        for tag in tags:
            sizes = [_size(path) for path in self._runs[tag]]
            if self._sizes.get(tag, sizes) != sizes:
                grown.add(tag)
            self._sizes[tag] = sizes
        return grown

    def _under_way(self, tag: str) -> list[Path]:
        """The logs of the runs under way."""
        try:
            return [self._source.log(tag, run) for run in self._source.open()[1].open_runs(tag)] if tag else []
        except (AutoresearchdError, KeyError):
            return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

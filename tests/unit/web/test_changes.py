"""Pages that are told of changes: no more than the limit, also when all of them come at once."""

from __future__ import annotations

import asyncio
from typing import cast

from autoresearchd.web.changes import MOST_WATCHERS, Changes
from autoresearchd.web.source import Source


class Quiet:
    """A source in which nothing happens."""

    def version(self, tag: str) -> str:
        return tag

    def mark(self) -> str:
        return ""


def test_pages_that_come_at_once_are_no_more_than_the_limit() -> None:
    async def first_words() -> list[bytes | None]:
        changes = Changes(cast(Source, Quiet()), lambda: False)
        streams = [changes.stream("") for _ in range(MOST_WATCHERS + 20)]
        told = await asyncio.gather(*(anext(stream, None) for stream in streams))
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert not changes.full
        return told

    told = asyncio.run(first_words())
    assert len(told) - told.count(None) == MOST_WATCHERS and told.count(None) == 20

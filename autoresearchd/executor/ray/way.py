"""How one slot of a cluster is reached: an actor that waits for its share, then for calls, and files through it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure
from autoresearchd.executor.ray.bridge import Actor, Bridge, RayChannel
from autoresearchd.executor.remote.link import Hello, HostFull, HostLost, Like
from autoresearchd.executor.remote.remote_supervisor import LOG_NAME
from autoresearchd.executor.remote.trees import Tree
from autoresearchd.sandbox.job_files import FULL, leads_out, remove_tree

OUTPUT = "output"
_MOST_AT_ONCE, _MOST_ENTRIES = 4 << 20, 1000
_SPARE_DISK = 64 << 20
_LONGEST_NAME = 3000
"""Bytes below the folder of a run here, whose own path may be longer than the one over there."""


class RayWay:
    """A `Way` to wherever Ray places the actor of a slot; where that was lost, the next one may be elsewhere.

    slot: its name; share: what it gets, in words, options: as Ray's, gpus: whether it sees any; node: the one that it
    has to be on, empty: any. placed and failed are called with that; both are used from the loop's thread.
    """

    where_folder = "dir, as in --executor 'ray:auto?dir=/data/me'"

    def __init__(
        self, bridge: Bridge, loop: asyncio.AbstractEventLoop, slot: str, share: str, options: dict[str, Any],
        *, gpus: bool, node: str = "",
    ) -> None:  # fmt: skip
        self._bridge, self._loop, self._slot, self._share = bridge, loop, slot, share
        self._options, self._gpus, self._pinned = options, gpus, node
        self._asking: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._actor: Actor | None = None
        self.node, self._machine = node, ""  # where it was last
        self.placed: Callable[[], None] = lambda: None
        self.failed: Callable[[str], None] = lambda why: None

    @property
    def name(self) -> str:
        return f"{self._machine} ({self._slot})" if self._machine else self._slot

    def ready(self) -> bool:
        if self._actor is not None:
            return True
        self._loop.call_soon_threadsafe(self._ask)
        return False

    def _ask(self) -> asyncio.Task[None]:
        """Have an actor asked for, so that a cluster that can grow knows what is needed."""
        if self._asking is None:
            self._asked = self._loop.time()
            self._asking = self._loop.create_task(self._place())
            self._asking.add_done_callback(self._answered)
        return self._asking

    async def _place(self) -> None:
        actor = await self._bridge.create(self._pinned, self._options)
        try:
            where, _ = await actor.call("where")
        except BaseException as error:
            actor.kill()
            if isinstance(error, HostLost):
                raise HostLost(f"{self._slot}: {error.what}", hint=error.hint) from error
            raise
        self.node, self._machine, self._actor = str(where["node"]), str(where["name"]), actor

    def _answered(self, asking: asyncio.Task[None]) -> None:
        if asking.cancelled():
            return
        if (error := asking.exception()) is None:
            self.placed()
        else:
            self._asking = None
            self.failed(error.what if isinstance(error, AutoresearchdError) else str(error))

    @property
    def waits(self) -> bool:
        """Whether what was asked for may come yet."""
        return self._asking is not None and not self._asking.done()

    def give_up(self) -> None:
        """Whatever is asked for is asked for no longer."""
        if self._asking is not None:
            self._asking.cancel()

    async def open(self, told: Hello, patience: float) -> RayChannel:
        asking = self._ask()
        await asyncio.wait({asking}, timeout=max(0.0, self._asked + patience - self._loop.time()))
        if not asking.done():
            raise HostLost(f"{self._slot} waits for {self._share}: no node of the cluster has that free")
        asking.result()
        channel = RayChannel(self._placed_actor, self._lost)
        try:
            await asyncio.wait_for(channel.start(told, gpus=self._gpus), patience)
        except BaseException as error:
            channel.abort()
            if isinstance(error, (OSError, HostLost)):  # a TimeoutError is one
                raise HostLost(f"{self.name}: nothing can be started there: {error}") from error
            raise
        return channel

    @property
    def _placed_actor(self) -> Actor:
        if self._actor is None:
            raise HostLost(f"{self.name}: its actor was lost")
        return self._actor

    def _lost(self) -> None:
        """The actor is given up: the next one is asked for when it is needed."""
        self._asking = self._actor = None

    def require_usable(self, hello: Hello) -> None:
        """Ray runs there, and that is all that is needed."""

    def explain(self, said: str) -> AutoresearchdError | None:
        return None

    # -- files -------------------------------------------------------------------------------------------------------
    async def send(self, top: Path, tree: Tree, folder: str, *, like: Like | None = None, follow: bool = False) -> None:
        names: Sequence[str] = tree.names
        with self._telling():
            if like is not None and set(like.tree.names) <= set(names):
                await self._placed_actor.call("copy", source=like.folder, folder=folder)
                names = await asyncio.to_thread(_changed, top, tree, like)
            batches = _read(top, names, follow)
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                entries, data = batch
                await self._placed_actor.call("put", data, folder=folder, entries=entries)

    async def fetch(self, folder: str, target: Path, *, output: bool) -> None:
        with self._telling():
            found, _ = await self._placed_actor.call("list", folder=folder)
        folders, files, links = _sort(found, output)
        if sum(size for _, _, size in files) > shutil.disk_usage(target).free - _SPARE_DISK:
            raise OSError(errno.ENOSPC, "no space left", str(target))
        await asyncio.to_thread(_make_folders, target, folders)
        for parts in _batches(files):
            with self._telling():
                asked = [[name, offset, length] for name, _, offset, length in parts]
                _, data = await self._placed_actor.call("get", folder=folder, parts=asked)
            await asyncio.to_thread(_write, target, parts, data)
        await asyncio.to_thread(_link, target, links)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What a disk or Ray says over there, as what it means for the host."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise HostFull(f"no space left on {self.name}", hint=f"free disk space on {self.name}") from error
            raise EnvironmentFailure(f"{self.name}: files cannot be moved: {error}", hint="see the message") from error


# -- what is sent ------------------------------------------------------------------------------------------------------
def _changed(top: Path, tree: Tree, like: Like) -> list[str]:
    """Names of a tree that are not the same in one that is like it."""
    known = set(like.tree.names)
    return [name for name in tree.names if name not in known or not _same(top / name, like.top / name)]


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    facts = [(path.stat().st_size, path.stat().st_mode & stat.S_IXUSR) for path in (one, other)]
    return facts[0] == facts[1] and one.read_bytes() == other.read_bytes()


def _read(top: Path, names: Sequence[str], follow: bool) -> Iterator[tuple[list[list[Any]], bytes]]:
    """Files and links as `Carrier.do_put` takes them, no more at once than a beat can wait for."""
    entries, data = list[list[Any]](), bytearray()
    for name in names:
        path = top / name
        if path.is_symlink() and not follow:
            entries.append([name, str(path.readlink())])
        else:
            with path.open("rb") as stream:
                facts, offset = os.fstat(stream.fileno()), 0
                while not offset or offset < facts.st_size:
                    piece = stream.read(_MOST_AT_ONCE - len(data))
                    entries.append([name, stat.S_IMODE(facts.st_mode) & 0o777, offset, len(piece)])
                    data += piece
                    offset += len(piece)
                    if len(data) >= _MOST_AT_ONCE:
                        yield entries, bytes(data)
                        entries, data = [], bytearray()
                    if not piece:
                        break
        if len(entries) >= _MOST_ENTRIES:
            yield entries, bytes(data)
            entries, data = [], bytearray()
    if entries:
        yield entries, bytes(data)


# -- what comes back ---------------------------------------------------------------------------------------------------
def _sort(
    found: Sequence[Sequence[Any]], output: bool
) -> tuple[list[str], list[tuple[str, int, int]], list[tuple[str, str]]]:
    """Of what `Carrier.do_list` gives the folders, files (mode, size) and links (target): logs, and perhaps output."""
    folders, files, links = list[str](), list[tuple[str, int, int]](), list[tuple[str, str]]()
    for name, kind, *facts in found:
        parts = str(name).split("/")
        inside = output and parts[0] == OUTPUT and (len(parts) > 1 or kind == "d")
        log = len(parts) == 1 and kind == "f" and LOG_NAME.fullmatch(str(name).removesuffix(".1"))
        if not (inside or log) or len(os.fsencode(str(name))) > _LONGEST_NAME or not {"", ".", ".."}.isdisjoint(parts):
            continue
        if kind == "d":
            folders.append(str(name))
        elif kind == "f":
            files.append((str(name), int(facts[0]), max(0, int(facts[1]))))
        elif kind == "l":
            links.append((str(name), str(facts[0])))
    return folders, files, links


def _batches(files: Sequence[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int, int]]]:
    """Parts of files, ``(name, mode, offset, length)``, so many as may come at once."""
    parts, room = list[tuple[str, int, int, int]](), _MOST_AT_ONCE
    for name, mode, size in files:
        offset = 0
        while not offset or offset < size:
            length = min(room, size - offset)
            parts.append((name, mode, offset, length))
            offset, room = offset + length, room - length
            if not room or len(parts) >= _MOST_ENTRIES:
                yield parts
                parts, room = [], _MOST_AT_ONCE
            if not length:
                break
    if parts:
        yield parts


def _make_folders(target: Path, folders: Sequence[str]) -> None:
    if not remove_tree(str(target / OUTPUT)):
        raise OSError(errno.ENOTEMPTY, "what was fetched before cannot be removed", str(target / OUTPUT))
    for name in folders:
        (target / name).mkdir(parents=True, exist_ok=True)


def _write(target: Path, parts: Sequence[tuple[str, int, int, int]], data: bytes) -> None:
    """Nothing is followed: links come last."""
    at = 0
    for name, mode, offset, length in parts:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if offset else os.O_TRUNC)
        with os.fdopen(os.open(target / name, flags, 0o755 if mode & stat.S_IXUSR else 0o644), "wb") as stream:
            stream.seek(offset)
            stream.write(memoryview(data)[at : at + length])
        at += length


def _link(target: Path, links: Sequence[tuple[str, str]]) -> None:
    """Make links, and then remove those that lead out."""
    for name, destination in links:
        (target / name).symlink_to(destination)
    top = str(target / OUTPUT)
    for name in [name for name, to in links if to.startswith("/") or leads_out(top, str(target / name))]:
        (target / name).unlink()

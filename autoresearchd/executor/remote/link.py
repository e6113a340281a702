"""The frames between this daemon and a remote supervisor, over whatever reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from autoresearchd.domain import errors
from autoresearchd.domain.cleaning import clean
from autoresearchd.executor.remote.remote_supervisor import MAGIC, pack, unpack_lengths
from autoresearchd.executor.remote.trees import Tree

T = TypeVar("T")
Told = Callable[[str, bytes, bool], None]
"""Takes the name of a log, what it has got, and whether it was rotated before."""
Hello = Mapping[str, Any]
"""What a supervisor says of its machine before anything else."""
_MOST_HEADER, _MOST_DATA, _MOST_STDERR = 1 << 24, 1 << 24, 4000
_AT_ONCE = 1 << 15
_BEAT_S = 1.0
_CALL_S = 120.0
_NAMED = errors.BaselineError, errors.DataMissing, errors.MissingCapability, errors.UsageError, errors.Interrupted
_KINDS = {kind.__name__: kind for kind in _NAMED}


class HostLost(errors.EnvironmentFailure):
    """A host cannot be reached, does not answer, or its connection broke: what runs there ends by itself."""


class HostFull(errors.EnvironmentFailure):
    """The disk of a host is full."""


@dataclass(frozen=True, slots=True)
class Like:
    """What is nearly the same as a tree to be sent. top: of its files here; folder: where it is on the host."""

    tree: Tree
    top: Path
    folder: str


class Channel(Protocol):
    """The standard streams of a remote supervisor. Reading raises asyncio.IncompleteReadError at its end, OSError."""

    async def read_until(self, mark: bytes) -> bytes: ...

    async def read_exactly(self, count: int) -> bytes: ...

    async def complaint(self) -> bytes:
        """What comes next on its standard error; empty at its end."""

    def write(self, data: bytes) -> None: ...

    async def ended(self) -> None:
        """Wait until the supervisor has ended, and all that it said is there to be read."""

    def abort(self) -> None:
        """End the connection at once, and with it the supervisor."""

    async def closed(self) -> None:
        """Wait until nothing of an ended connection is left."""


class Way(Protocol):
    """How one host is reached. name: of the host, for people; where_folder: where its folder is written, to correct it.

    All but ``ready`` is used from the loop's thread of the executor alone.
    """

    where_folder: str

    @property
    def name(self) -> str: ...

    def ready(self) -> bool:
        """Whether `open` would not have to wait for a machine; what it takes is asked for. From any thread."""

    async def open(self, told: Hello, patience: float) -> Channel:
        """Start `BOOT` there with ``told``, within ``patience`` seconds. Raises HostLost, MissingCapability."""

    def require_usable(self, hello: Hello) -> None:
        """Raise MissingCapability where the host lacks what this way needs."""

    def explain(self, said: str) -> errors.AutoresearchdError | None:
        """Why the supervisor did not start, if its standard error says so in a way that is known."""

    async def send(self, top: Path, tree: Tree, folder: str, *, like: Like | None = None, follow: bool = False) -> None:
        """Write a tree into a folder of the host that is there and empty. Raises HostLost, HostFull.

        like: what is the same there is taken from it; follow: links are sent as what they lead to.
        """

    async def fetch(self, folder: str, target: Path, *, output: bool) -> None:
        """The logs of a run, and its output. What is not a plain file, a folder or a link inside stays there."""


@dataclass(slots=True)
class Call:
    """A call under way."""

    number: int
    told: Told | None
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Link:
    """A connection with its remote supervisor. Used from the loop's thread of the executor alone.

    hello: what the supervisor said of its machine; lost: why the connection has ended, empty while it stands;
    skew: how far its clock is ahead, in seconds.
    """

    def __init__(self, way: Way, channel: Channel, patience: float, silence: float) -> None:
        self.hello, self.lost, self.skew = dict[str, Any](), "", 0.0
        self._way, self._channel = way, channel
        self._most_silent = max(2, round(silence / _BEAT_S))
        # To begin with it reads its own code, from a disk that may be slow.
        self._silent, self._last = min(0, self._most_silent - round(patience / _BEAT_S)), 0
        self._calls: dict[int, Call] = {}
        self._said = b""
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, way: Way, told: Hello, patience: float, silence: float,
        prepare: Callable[[Hello], Coroutine[Any, Any, None]],
    ) -> Link:  # fmt: skip
        """Connect and start the supervisor. prepare: is told its ``hello``, and brings its code where that is missing.

        patience, silence: how long it may say nothing in the beginning and later.
        """
        channel = await way.open(told, patience)
        try:
            link = cls(way, channel, patience, silence)
            link._tasks.append(asyncio.create_task(link._listen()))
            await asyncio.wait_for(link._greet(), patience)
            await asyncio.wait_for(prepare(link.hello), _CALL_S)
            channel.write(b"g")
            link._tasks += [asyncio.create_task(link._read()), asyncio.create_task(link._beat())]
            return link
        except BaseException as error:
            channel.abort()
            if isinstance(error, TimeoutError):
                raise HostLost(f"{way.name}: it answers too slowly") from error
            if isinstance(error, OSError):
                raise HostLost(f"{way.name}: its connection broke: {clean(str(error), 200)}") from error
            raise

    async def _greet(self) -> None:
        try:
            await self._channel.read_until(MAGIC)
            hello = json.loads(await self._channel.read_until(b"\n"))
            self.skew = float(hello["time"]) - time.time()
            names = ("top", "part", "fault", "platform", "there", "rsync")
            self.hello = {name: hello[name] if name in ("there", "rsync") else str(hello[name]) for name in names}
        except (asyncio.IncompleteReadError, ValueError, KeyError, TypeError) as error:
            await asyncio.wait_for(self._channel.ended(), 2)
            said = clean(self._said.decode("utf-8", "replace"), 300)
            if (known := self._way.explain(said)) is not None:
                raise known from error
            raise HostLost(f"{self._way.name}: it did not start what it was asked to: {said or error}") from error

    # -- calls -------------------------------------------------------------------------------------------------------
    def begin(self, do: str, told: Told | None = None, **arguments: Any) -> Call:
        if self.lost:
            raise HostLost(self.lost)
        self._last += 1
        call = self._calls[self._last] = Call(self._last, told)
        self._send({"id": call.number, "do": do}, pickle.dumps(arguments))
        return call

    def stop(self, call: Call) -> None:
        """Ask to end a call, which still answers."""
        if not self.lost:
            self._send({"id": call.number, "do": "stop"})

    async def call(self, do: str, *, timeout: float | None = _CALL_S, **arguments: Any) -> Any:
        """What ``Remote.do_…`` there gives. Raises what it raised, with the host's name; HostLost; HostFull."""
        call = self.begin(do, **arguments)
        try:
            return await asyncio.wait_for(call.done, timeout)
        except TimeoutError as error:
            self.fail(f"{do} took more than {timeout:g} s")
            raise HostLost(self.lost) from error

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that needs the host, and give it up with HostLost when the connection is lost."""
        if self.lost:
            work.close()
            raise HostLost(self.lost)
        call = self._calls[0] = self._calls.get(0) or Call(0, None)
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, call.done}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise HostLost(self.lost)
            return task.result()
        finally:
            task.cancel()
            with contextlib.suppress(BaseException):
                await task

    def _send(self, header: dict[str, Any], data: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # it is lost, which the reader finds out
            self._channel.write(pack(header, data))

    # -- what comes back ---------------------------------------------------------------------------------------------
    async def _some(self, count: int) -> bytes:
        """So many bytes; a line that is slow with them is not silent."""
        data = bytearray()
        while len(data) < count:
            data += await self._channel.read_exactly(min(count - len(data), _AT_ONCE))
            self._silent = 0
        return bytes(data)

    async def _read(self) -> None:
        try:
            while True:
                first, second = unpack_lengths(await self._some(8))
                if first > _MOST_HEADER or second > _MOST_DATA:
                    raise ValueError("a frame is too large")
                header, data = json.loads(await self._some(first)), await self._some(second)
                if (call := self._calls.get(header["id"])) is None or not header["id"]:
                    continue
                if "log" in header:
                    if call.told is not None:
                        call.told(str(header["log"]), data, bool(header["rotated"]))
                    continue
                if not call.done.done():
                    if "error" in header:
                        call.done.set_exception(self._error(**header["error"]))
                    else:
                        call.done.set_result(header["value"])
                del self._calls[call.number]  # not before: where the answer makes no sense, `fail` ends the call
        except asyncio.IncompleteReadError:
            said = clean(self._said.decode("utf-8", "replace"), 300)
            self.fail(f"its connection ended{': ' if said else ''}{said}")
        except OSError as error:
            self.fail(f"its connection broke: {clean(str(error), 200)}")
        except Exception as error:  # noqa: BLE001  # whatever a stranger's frame leads to, nobody waits for ever
            self.fail(f"it says what cannot be understood: {clean(str(error), 200)}")

    def _error(self, kind: str, what: str, hint: str = "") -> errors.AutoresearchdError:
        name = self._way.name
        text = f"{name}: " + "\n".join(clean(line, 300) for line in what.splitlines()[:40])
        if kind == "full":
            return HostFull(text, hint=f"free disk space on {name}")
        return _KINDS.get(kind, errors.EnvironmentFailure)(text, hint=clean(hint, 400))

    async def _listen(self) -> None:
        """Keep the last that it says on its standard error, for when it is lost."""
        with contextlib.suppress(OSError):
            while data := await self._channel.complaint():
                self._said = (self._said + data)[-_MOST_STDERR:]

    async def _beat(self) -> None:
        """Renew the lease. Beats are counted, not seconds: on a busy machine this side may be what is slow."""
        while not self.lost:
            self._send({"do": "ping"})
            await asyncio.sleep(_BEAT_S)
            self._silent += 1
            if self._silent >= self._most_silent:
                self.fail(f"no answer for {self._silent * _BEAT_S:g} s")

    def fail(self, why: str) -> None:
        """Give the connection up; all calls end with HostLost."""
        if self.lost:
            return
        self.lost = f"{self._way.name}: {why}"
        for call in self._calls.values():
            if not call.done.done():
                call.done.set_exception(HostLost(self.lost))
                call.done.exception()  # seen: nobody may be waiting
        self._calls.clear()
        self._channel.abort()

    async def close(self) -> None:
        """End the connection, and with it what was started over there."""
        self.fail("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.closed()

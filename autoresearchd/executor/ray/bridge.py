"""This side of `driver`, the process that has Ray in it, and of the actors that it asks for."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.redaction import is_telling
from autoresearchd.executor.remote.hosts import Cooling, Times
from autoresearchd.executor.remote.link import Hello, HostLost
from autoresearchd.executor.remote.remote_supervisor import BOOT, pack, unpack_lengths

_DRIVER = "autoresearchd.executor.ray.driver"
_MOST_SAID, _MOST_AT_ONCE = 4000, 1 << 20
_LOOK_S = 5.0
_END_WITHIN_S = 8.0
_WHERE = "HOST:6379 is for a machine that is a node of the cluster, ray://HOST:10001 for any other"
_SETTINGS = {
    # Only bytes, text and one small class travel: the same minor version of Python is enough.
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` has Ray send the current folder to all nodes
    # 127.0.0.1 means 127.0.0.1. Ray would look for it at this machine's address in the network, for minutes, and let
    # what it begins here be reached, and used, by everybody there. Other addresses stay what they are.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class Bridge(Cooling):
    """A connection to a cluster, made when it is needed and made anew where it broke. Used from one event loop.

    address: as for ``ray.init``; empty: RAY_ADDRESS, else what runs on this machine, else Ray begins something here.
    """

    def __init__(self, address: str, times: Times) -> None:
        super().__init__(times.cool, times.coolest)
        self.address, self._patience = address, times.connect
        self.process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._last = self._actors = 0
        self._said = b""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        shown = self.address or os.environ.get("RAY_ADDRESS", "") or "this machine"
        return f"the Ray cluster at {clean(shown, 100)}"

    async def up(self) -> None:
        """Be connected. Raises HostLost; MissingCapability: no Ray here, or not the one of the cluster."""
        async with self._starting:
            if self.process is not None:
                return
            if self.cools:
                raise HostLost(self.reason)
            try:
                await self._start()
            except HostLost as error:
                self.failed(error.what)
                raise
            self.worked()

    async def _start(self) -> None:
        self._said = b""
        # Ray may start workers with it, which need no keys of language models.
        own = {name: value for name, value in os.environ.items() if name.startswith("RAY_") or not is_telling(name)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", _DRIVER, self.address, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**_SETTINGS, **own},
            start_new_session=True,
        )  # fmt: skip
        listening = asyncio.create_task(self._listen(process))
        try:
            answer, _ = await asyncio.wait_for(_frame(process), self._patience)
        except BaseException as error:
            await _end(process, 0.0 if isinstance(error, (TimeoutError, asyncio.CancelledError)) else _END_WITHIN_S)
            if isinstance(error, TimeoutError):
                raise HostLost(f"{self.name} does not answer within {self._patience:g} s", hint=_WHERE) from error
            if isinstance(error, (asyncio.IncompleteReadError, ValueError)):
                raise HostLost(f"{self.name}: Ray does not start here: {self._complaint}", hint=_WHERE) from error
            raise
        if "failed" in answer:
            await _end(process, _END_WITHIN_S)
            what = f"{self.name}: {clean(answer['what'], 400)}"
            if answer["failed"] == "missing":
                what = f"--executor ray needs the package ray: {clean(answer['what'], 200)}"
                raise MissingCapability(what, hint="pip install 'autoresearchd[ray]', and the version of the cluster")
            if answer["failed"] == "mismatch":
                hint = "pip install 'ray[client]==VERSION', that of the cluster, in a Python 3.x like its own"
                raise MissingCapability(what, hint=hint)
            raise HostLost(what, hint=_WHERE)
        self.process = process
        self._tasks = [listening, asyncio.create_task(self._read(process))]

    @property
    def _complaint(self) -> str:
        return clean(self._said.decode("utf-8", "replace")[-300:], 300) or "it says nothing"

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last that Ray prints, for when it ends: it is for nobody else."""
        assert process.stderr is not None
        while data := await process.stderr.read(_MOST_SAID):
            self._said = (self._said + data)[-_MOST_SAID:]

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        try:
            while True:
                header, data = await _frame(process)
                future = self._waiting.pop(header["id"], None)
                if future is not None and not future.done():
                    future.set_result((header, data))
        except (asyncio.IncompleteReadError, ValueError):
            self.process = None
            self.failed(f"{self.name}: Ray has ended: {self._complaint}")
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(HostLost(self.reason))
                    future.exception()  # seen: nobody may be waiting
            self._waiting.clear()
            await _end(process, _END_WITHIN_S)

    async def ask(self, do: str, data: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        """What the driver gives. Raises HostLost: the actor or the cluster is; OSError: of the actor's node."""
        await self.up()
        process = self.process
        if process is None or process.stdin is None:
            raise HostLost(self.reason)
        self._last += 1
        number, future = self._last, asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        process.stdin.write(pack({"id": number, "do": do, **arguments}, data))
        header, data = await future
        if "lost" in header:
            raise HostLost(clean(header["lost"], 300))
        if "errno" in header:
            raise OSError(int(header["errno"]), clean(header["what"], 300))
        return header["value"], data

    async def create(self, node: str, options: dict[str, Any]) -> Actor:
        """Ask for an actor. node: where it has to be, empty: anywhere; options: as Ray's, what it needs."""
        await self.up()
        self._actors += 1
        actor = Actor(self, self._actors)
        await self.ask("create", actor=actor.number, node=node, options=options)
        return actor

    async def close(self) -> None:
        """End the process, and with it all actors."""
        if self.process is not None:
            await _end(self.process, _END_WITHIN_S)
        for task in self._tasks[:1]:  # what Ray has begun may have its standard error still
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Actor:
    """A `carrier.Carrier` of the cluster, which may not be placed yet: a call waits until it is."""

    def __init__(self, bridge: Bridge, number: int) -> None:
        self.number, self._bridge, self._process = number, bridge, bridge.process
        self._ends: asyncio.Task[None] | None = None

    async def call(self, do: str, data: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        """What ``Carrier.do_…`` gives. Raises HostLost; OSError: of the node."""
        if self._process is not self._bridge.process:
            raise HostLost(self._bridge.reason or "Ray was begun anew")
        return await self._bridge.ask("call", data, actor=self.number, method=do, arguments=arguments)

    def kill(self) -> None:
        """Give its resources back; what it has started ends with it."""
        self._ends = self._ends or asyncio.create_task(self._kill())

    async def _kill(self) -> None:
        if self._process is self._bridge.process:
            with contextlib.suppress(HostLost):
                await self._bridge.ask("kill", actor=self.number)

    async def gone(self) -> None:
        if self._ends is not None:
            with contextlib.suppress(TimeoutError):  # a driver that is stuck is killed in a moment
                await asyncio.wait_for(asyncio.shield(self._ends), _END_WITHIN_S)


class RayChannel:
    """A `Channel`: the streams of a supervisor that an actor starts, and that ends with it. lost: told of its end."""

    def __init__(self, actor: Actor, lost: Callable[[], None]) -> None:
        self._actor, self._lost = actor, lost
        self._output, self._complaints = asyncio.StreamReader(), asyncio.StreamReader()
        self._left, self._more, self._over = bytearray(), asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, told: Hello, *, gpus: bool) -> None:
        words = ["", base64.b64encode(json.dumps(told).encode()).decode()]
        await self._actor.call("start", BOOT.encode(), words=words, gpus=gpus)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def _read(self) -> None:
        try:
            while True:
                facts, data = await self._actor.call("read", patience=_LOOK_S, most=_MOST_AT_ONCE)
                self._complaints.feed_data(str(facts["complaint"]).encode())
                self._output.feed_data(data)
                if facts["ended"]:
                    break
        except (HostLost, OSError) as error:
            self._break(str(error))
        finally:
            for stream in (self._output, self._complaints):
                stream.feed_eof()
            self._over.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                data, self._left = bytes(self._left), bytearray()
                await self._actor.call("write", data)
        except (HostLost, OSError):
            return  # which the reader finds out

    def _break(self, why: str) -> None:
        for stream in (self._output, self._complaints):
            if stream.exception() is None:
                stream.set_exception(ConnectionError(why))

    async def read_until(self, mark: bytes) -> bytes:
        return await self._output.readuntil(mark)

    async def read_exactly(self, count: int) -> bytes:
        return await self._output.readexactly(count)

    async def complaint(self) -> bytes:
        return await self._complaints.read(_MOST_SAID)

    def write(self, data: bytes) -> None:
        self._left += data
        self._more.set()

    async def ended(self) -> None:
        await self._over.wait()

    def abort(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._break("it was given up")
        self._over.set()
        self._actor.kill()
        self._lost()

    async def closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._actor.gone()


async def _frame(process: asyncio.subprocess.Process) -> tuple[dict[str, Any], bytes]:
    assert process.stdout is not None
    first, second = unpack_lengths(await process.stdout.readexactly(8))
    return json.loads(await process.stdout.readexactly(first)), await process.stdout.readexactly(second)


async def _end(process: asyncio.subprocess.Process, patience: float) -> None:
    """Close its input, which is how it is asked to end, and kill it where it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

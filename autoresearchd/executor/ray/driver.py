"""The process that has Ray in it, started by `bridge`: it asks for actors, and passes calls to them and answers back.

A process of its own, because Ray takes a program over: it sets signal handlers and an excepthook, prints, waits without
end for an address that is silent, and ends the whole process when it has lost the cluster. The one user of ray.

Frames are those of the remote supervisor: requests on standard input, answers with the same ``id`` on standard output.
The first answer, 0, tells that the cluster is there. It exits, and with it go its actors, when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import sys
import threading
from importlib import import_module
from typing import Any

from autoresearchd.executor.ray import carrier
from autoresearchd.executor.remote.remote_supervisor import pack, unpack_lengths

Given = tuple[dict[str, Any], bytes]
_CALLS_AT_ONCE = 8
_NONE_HERE = "Could not find any running Ray instance"
_END_WITHIN_S = 5.0
_LOOK_MS = 500


def connect(address: str) -> Any:
    """Join the cluster at an address; empty: one of this machine, RAY_ADDRESS before that, else one is begun here."""
    ray: Any = import_module("ray")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == "local":
            raise ConnectionError(_NONE_HERE)
        ray.init(address or "auto", **quiet)
    except ConnectionError as error:
        if address not in ("", "local") or _NONE_HERE not in str(error):
            raise
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    ray.cloudpickle.register_pickle_by_value(carrier)
    return ray


class Driver:
    """Answers requests. ray: the module, connected."""

    def __init__(self, ray: Any, output: int) -> None:
        self._ray, self._output, self._writing = ray, output, threading.Lock()
        self._class = ray.remote(carrier.Carrier)
        self._actors: dict[int, Any] = {}

    async def serve(self) -> None:
        stream = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), sys.stdin)
        tasks = set[asyncio.Task[None]]()
        try:
            while True:
                first, second = unpack_lengths(await stream.readexactly(8))
                header, data = json.loads(await stream.readexactly(first)), await stream.readexactly(second)
                task = asyncio.create_task(self._answer(header.pop("id"), header, data))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except asyncio.IncompleteReadError:
            guard = threading.Timer(_END_WITHIN_S, os._exit, (0,))  # Ray may wait for what is gone
            guard.daemon = True
            guard.start()

    async def _answer(self, number: int, header: dict[str, Any], data: bytes) -> None:
        answer: dict[str, Any] = {"id": number}
        try:
            value, data = await getattr(self, f"do_{header.pop('do')}")(data, **header)
            answer.update(value)
        except Exception as error:  # noqa: BLE001  # Ray has many, each means that the actor is of no use
            answer["lost"], data = brief(error), b""
        await asyncio.to_thread(write, self._output, self._writing, pack(answer, data))
        if "lost" in answer and not self._ray.is_initialized():
            os._exit(1)  # Ray Client has given up, and does not begin again

    async def do_nodes(self, data: bytes) -> Given:
        """The resources of each node that is alive."""
        nodes = await asyncio.to_thread(self._ray.nodes)
        return {"value": [node["Resources"] for node in nodes if node["Alive"]]}, b""

    async def do_create(self, data: bytes, actor: int, node: str, options: dict[str, Any]) -> Given:
        """Ask for an actor. node: the one that it has to be on, empty for any."""
        if node:
            strategies = import_module("ray.util.scheduling_strategies")
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        made = self._class.options(max_restarts=0, max_task_retries=0, max_concurrency=_CALLS_AT_ONCE, **options)
        self._actors[actor] = await asyncio.to_thread(made.remote)
        return {"value": None}, b""

    async def do_call(self, data: bytes, actor: int, method: str, arguments: dict[str, Any]) -> Given:
        reference = self._actors[actor].call.remote(method, json.dumps(arguments), data)
        text, data = await asyncio.wrap_future(reference.future())
        return json.loads(text), data

    async def do_kill(self, data: bytes, actor: int) -> Given:
        handle = self._actors.pop(actor, None)
        if handle is not None:
            await asyncio.to_thread(self._ray.kill, handle)
        return {"value": None}, b""


def brief(error: BaseException) -> str:
    """What an error of Ray's says, without the lists of identifiers and advice that it comes with."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(("\t", " "))]
    why = f" ({error.__cause__})" if error.__cause__ is not None else ""
    return f"{type(error).__name__}: {' '.join(lines[:4])}{why}"


def write(output: int, lock: threading.Lock, frame: bytes) -> None:
    """Write all of a frame, and no other meanwhile."""
    left = memoryview(frame)
    with lock:
        while left:
            left = left[os.write(output, left) :]


def end_with_input(connected: threading.Event) -> None:
    """Exit where the daemon is gone before the cluster is there, which Ray may wait for without end."""
    poller = select.poll()
    poller.register(0, 0)
    while not connected.is_set():
        if poller.poll(_LOOK_MS):
            os._exit(1)


def main() -> None:
    """Connect to the cluster that the argument names, tell of it, and serve."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever prints, the frames stay whole
    lock, connected = threading.Lock(), threading.Event()
    threading.Thread(target=end_with_input, args=(connected,), daemon=True).start()
    try:
        ray = connect(sys.argv[1])
        connected.set()
    except Exception as error:  # noqa: BLE001  # told in its words
        missing, mismatch = isinstance(error, ImportError), "ersion mismatch" in str(error)
        kind = "missing" if missing else "mismatch" if mismatch else "unreachable"
        write(output, lock, pack({"id": 0, "failed": kind, "what": str(error) if mismatch else brief(error)}))
        os._exit(1)
    write(output, lock, pack({"id": 0}))
    asyncio.run(Driver(ray, output).serve())
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()

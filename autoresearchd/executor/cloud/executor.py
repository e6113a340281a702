"""The executor for rented machines: launched when a run needs them, ended when none does, launched anew when taken."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoresearchd.domain.cleaning import one_line
from autoresearchd.domain.errors import (
    AutoresearchdError,
    EnvironmentFailure,
    Interrupted,
    LimitReached,
    MissingCapability,
    PlaceTaken,
)
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import Cancel, EventKind, Executor, RunHandle, RunRequest
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Cloud, RemoteSlot, Task
from autoresearchd.executor.cloud.rental import Rental, Rented, Terms
from autoresearchd.executor.remote.hosts import Cooling, Times
from autoresearchd.executor.ssh.executor import SshExecutor
from autoresearchd.sandbox.tiers import AUTO

LEDGER = "rented.json"
TIMES = Times(connect=20.0, coolest=60.0)
_TRIES, _PAUSE_S = 3, 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. turn: between two looks at money and idleness; look: between two at the provider.

    everyone: how long all machines are waited for where one is there and all are wanted.
    cool: how long nothing is launched under a name where that failed; each time in a row twice as long, up to coolest.
    """

    turn: float = 15.0
    look: float = 120.0
    everyone: float = 900.0
    cool: float = 60.0
    coolest: float = 1800.0


class _Machine(Cooling):
    """rented: what is known of it; up: it is there, and its key is known; busy: it is being launched or ended."""

    def __init__(self, name: str, pace: Pace) -> None:
        super().__init__(pace.cool, pace.coolest)
        self.name, self.up, self.busy = name, False, False
        self.rented: Rented | None = None


class Hosts(Executor, Protocol):
    """Runs jobs on machines that are there."""

    @property
    def prepares(self) -> bool:
        """Whether one of them is being sent data, or sets a task up. From any thread."""


class CloudExecutor:
    """Runs jobs on machines of a rental, over ssh.

    Nothing is rented before the first run or set-up; ``close`` ends all that carries the session's name.
    hosts: makes the executor for the machines' slots; greet: logs in to a new one and keeps its key.
    """

    def __init__(
        self, rental: Rental, want: Cloud, terms: Terms, *, tier: str = AUTO, pace: Pace | None = None,
        hosts: Callable[[Sequence[RemoteSlot], Path], Hosts] | None = None,
        greet: Callable[[str, Path], str] | None = None,
    ) -> None:  # fmt: skip
        self._rental, self._want, self._terms, self._pace = rental, want, terms, pace or Pace()
        self._machines = [_Machine(f"{terms.prefix}{n}", self._pace) for n in range(1, want.machines + 1)]
        self._gpus = max(1, want.gpus)
        self._config, self._greet = terms.folder / "ssh_config", greet or first_login
        slots = [
            RemoteSlot(machine.name, str(gpu), f"{machine.name}-gpu{gpu}", want.remote_dir)
            for machine in self._machines
            for gpu in range(self._gpus)
        ]
        make = hosts or (lambda slots, config: SshExecutor(slots, tier=tier, config=config, times=TIMES))
        self._hosts = make(slots, self._config)
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._pool = ThreadPoolExecutor(want.machines, "rental")
        self._keeper: threading.Thread | None = None
        self._handles: weakref.WeakSet[RunHandle] = weakref.WeakSet()
        self._bills: dict[str, tuple[float, float]] = {}
        """By name: the time up to which it is paid for, and US dollars an hour."""
        self._unpaid: tuple[float, str] | None = None
        """A bill, its US dollars and name, which may have been counted although the store did not say so."""
        self._wanted, self._new, self._warned, self._spent = False, True, False, False
        self._users, self._used, self._looked = 0, 0.0, 0.0
        self._error: AutoresearchdError | None = None

    # -- what an executor does ---------------------------------------------------------------------------------------
    @property
    def slots(self) -> int:
        return self._hosts.slots

    @property
    def rate(self) -> float:
        """US dollars an hour of all that is rented now."""
        return sum(usd for _, usd in self._bills.values())

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        with self._in_use(everyone=True):
            self._hosts.setup(task, pristine, setup, log, cancel)

    def ready(self, slot: int) -> bool:
        return self._machines[slot // self._gpus].up and self._hosts.ready(slot)

    def require(self, slot: int) -> None:
        self._hosts.require(slot)

    def start(self, request: RunRequest) -> RunHandle:
        with self._in_use():
            try:
                handle = self._hosts.start(request)
            except PlaceTaken:
                raise
            except EnvironmentFailure:
                with contextlib.suppress(AutoresearchdError):
                    self._look()  # it may have been taken away
                self._use()
                handle = self._hosts.start(request)
            with self._changed:
                self._handles.add(handle)
            return handle

    def recover(self, run_dir: Path) -> RunResult | None:
        with contextlib.suppress(EnvironmentFailure, MissingCapability), self._in_use():
            return self._hosts.recover(run_dir)
        return None

    def warnings(self, task: Task | None = None) -> Sequence[str]:
        """Of the offer; those of the machines are told when they are there."""
        want = self._want
        price = f"at most ${want.max_hourly_cost:g} an hour each" if want.max_hourly_cost else "at whatever they cost"
        return [
            f"{counted(want.machines, 'machine')} will be rented, {price}, and ended with the session, after "
            f"{want.idle_minutes} min without a run, and by themselves that long after this daemon has died"
        ]

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        with self._in_use(everyone=True):
            if not self._warned:
                self._warned = True
                for warning in self._hosts.warnings(task):
                    self._terms.tell(EventKind.WARNING, warning)
            return self._hosts.describe(task, setup)

    # -- renting -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _in_use(self, everyone: bool = False) -> Iterator[None]:
        """Have machines, and end none meanwhile."""
        with self._changed:
            self._users += 1
        try:
            self._use(everyone)
            yield
        finally:
            with self._changed:
                self._users, self._used = self._users - 1, time.monotonic()

    def _use(self, everyone: bool = False) -> None:
        """Have a machine up, or all that can be had; it may take minutes. Raises what came of it where none is."""
        told, until = False, time.monotonic() + (self._pace.everyone if everyone else 0.0)
        with self._changed:
            if self._keeper is None:
                self._open()
            self._wanted = True
            while True:
                self._begin_launches()
                if not any(machine.busy for machine in self._machines) or (self._up() and time.monotonic() >= until):
                    break
                if self._terms.cancel.is_set():
                    raise Interrupted("stopped while machines were launched")
                if not told:
                    told = True
                    self._terms.waits(f"{counted(len(self._machines), 'machine')} being launched; that takes minutes")
                self._changed.wait(0.2)
            if told:
                self._terms.waits("")
            if not self._up():
                raise self._error or EnvironmentFailure("no machine is rented")

    def _up(self) -> list[_Machine]:
        return [machine for machine in self._machines if machine.up]

    def _open(self) -> None:
        """Pay for what ran on after a daemon that died, as long as it can have; and begin to look after machines."""
        ledger, most, now = self._terms.folder / LEDGER, 60.0 * self._want.idle_minutes, time.time()
        ledger.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._new = not ledger.exists()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            text = ledger.read_text()
            left = json.loads(text).values()
            self._terms.charge(sum(usd * min(max(0.0, now - paid), most) for paid, usd in left) / 3600, text)
        self._write()
        self._keeper = threading.Thread(target=self._keep, name="rental", daemon=True)
        self._keeper.start()

    def _begin_launches(self) -> None:
        missing = [m for m in self._machines if not (m.up or m.busy or m.cools)]
        if not missing or self._closing.is_set():
            return
        if self._terms.left() <= 0:
            raise Interrupted(
                "the spend limit is reached, so no machine is rented",
                hint="`autoresearchd resume --max-cost USD` with a higher one goes on",
            )
        for machine in missing:
            machine.busy = True
            self._pool.submit(self._launch, machine)

    def _launch(self, machine: _Machine) -> None:
        """In a thread of its own; of one that failed nothing is left."""
        tell, error, began = self._terms.tell, None, time.time()
        try:
            rented = self._rental.launch(machine.name, self._want, self._closing)
            usd = self._price(rented)
            with self._changed:
                machine.rented = rented
                self._bills = {**self._bills, machine.name: (max(began, rented.since), usd or 0.0)}
                self._write()
            key = self._greet(machine.name, self._config)
            price = "at an unknown price" if usd is None else f"${usd:.2f} an hour"
            tell(EventKind.SETUP, f"rented {machine.name}: {rented.what}, {price}{f'; {key}' if key else ''}")
            machine.worked()
            self._new = False  # what the cap leaves later need not pay for an hour: at its end it ends the session
        except AutoresearchdError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - whatever it was, what was launched is ended
            error = EnvironmentFailure(f"{machine.name}: {type(caught).__name__}: {caught}")
        if error is not None:
            machine.failed(error.what)
            self._end([machine])
            if not self._closing.is_set():
                tell(EventKind.WARNING, f"{machine.name} is not there: {error}")
        with self._changed:
            machine.up, machine.busy, self._error = error is None, False, error
            self._changed.notify_all()

    def _price(self, rented: Rented) -> float | None:
        """Of an hour. Raises MissingCapability, LimitReached: more than may be spent."""
        most, left, many = self._want.max_hourly_cost, self._terms.left(), self._want.machines
        usd = rented.usd if rented.usd is not None else most
        if usd is None and left < float("inf"):
            self._terms.tell(
                EventKind.WARNING,
                f"nobody says what {rented.name} costs, so the spend cap cannot hold for it: set "
                "fleet.cloud.max_hourly_cost",
            )
        if most is not None and usd is not None and usd > most:
            what = f"{rented.name} costs ${usd:g} an hour, and fleet.cloud.max_hourly_cost is {most:g}"
            raise MissingCapability(what, hint="raise it, or ask for less")
        if self._new and usd is not None and usd * many > left:
            raise LimitReached(cap_too_low(left, usd * many), hint="raise --max-cost, or rent less")
        return usd

    def _write(self) -> None:
        """The configuration of ssh, and the ledger.

        A machine that is not up is a host that refuses: a name that nobody knows would be the end of the session.
        """
        lines = []
        for machine in self._machines:
            rented, refuses = machine.rented, {"HostName": "127.0.0.1", "Port": "1"}
            ssh = {**(refuses if rented is None else rented.ssh), "IdentitiesOnly": "yes"}
            ssh |= {"HostKeyAlias": f"{machine.name}-{rented.id if rented else ''}"}
            ssh |= {
                "UserKnownHostsFile": f'"{self._terms.folder / "known_hosts"}"',
                "GlobalKnownHostsFile": "/dev/null",
            }
            lines += [f"Host {machine.name}", *(f"  {key} {one_line(value)}" for key, value in ssh.items())]
        for path, text in (
            (self._config, "\n".join(lines) + "\n"),
            (self._terms.folder / LEDGER, json.dumps(self._bills)),
        ):
            new = path.with_name(f"{path.name}.new")
            new.write_text(text)
            new.replace(path)

    # -- looking after what is rented --------------------------------------------------------------------------------
    def _keep(self) -> None:
        said = ""
        while not self._closing.wait(self._pace.turn):
            try:
                self._turn()
                said = ""
            except Exception as error:  # noqa: BLE001 - told; what is paid for is looked after whatever fails
                if str(error) != said and not isinstance(error, Interrupted):
                    said = str(error)
                    known = isinstance(error, (AutoresearchdError, OSError))
                    trace = "" if known else f"\n{traceback.format_exc()}"
                    self._terms.tell(EventKind.WARNING, f"rented machines: {error}{trace}")

    def _turn(self) -> None:
        now, limit = time.monotonic(), 60.0 * self._want.idle_minutes
        self._settle()
        before, self._spent = self._spent, bool(self._bills) and self._terms.left() <= 0
        if before and self._spent:  # the loop has had its time to end a confirmation well
            self._terms.broke()
        with self._changed:
            busy = any(machine.busy for machine in self._machines) or self._hosts.prepares
            if self._users or busy or any(map(_runs, self._handles)):
                self._used = now
            idle = self._up() if self._wanted and now - self._used > limit else []
            self._wanted = self._wanted and not idle
            ending = list(idle)
            if not self._wanted and now - self._looked >= self._pace.look:  # those that could not be ended before
                ending += [m for m in self._machines if m.name in self._bills and not (m.up or m.busy)]
            for machine in ending:
                machine.up, machine.busy = False, True
        if idle:
            self._terms.tell(EventKind.WAITING, f"nothing ran for {self._want.idle_minutes} min: machines are ended")
        if ending:
            self._looked = now
            self._end(ending)
            with self._changed:
                for machine in ending:
                    machine.busy = False
        elif self._wanted:
            if now - self._looked >= self._pace.look:
                self._look()
            with self._changed:
                self._begin_launches()

    def _settle(self) -> None:
        """Count what machines have cost since the last time; where the store or the disk fails, the next time."""
        with self._changed, contextlib.suppress(AutoresearchdError, OSError):
            self._pay()
            now = time.time()
            if owed := sum(usd * max(0.0, now - paid) for paid, usd in self._bills.values()) / 3600:
                self._unpaid = owed, uuid.uuid4().hex
            self._bills = {name: (now, usd) for name, (_, usd) in self._bills.items()}
            self._pay()
            self._write()

    def _pay(self) -> None:
        if self._unpaid is not None:
            self._terms.charge(*self._unpaid)
            self._unpaid = None

    def _look(self) -> None:
        """Put off the end of what is up, and find out what was taken away."""
        before = {machine.name: machine.rented for machine in self._up()}
        found = {one.name: one for one in self._rental.look(self._terms.prefix, self._want.idle_minutes)}
        self._looked = time.monotonic()
        for machine in self._machines:
            known, seen = before.get(machine.name), found.get(machine.name)
            if known is None or machine.rented is not known or (seen and seen.up and seen.id == known.id):
                continue
            self._forget([machine])
            state = seen.state if seen else "gone"
            self._terms.tell(EventKind.WARNING, f"{machine.name} was taken away ({state}); it is launched anew")

    def _forget(self, machines: Sequence[_Machine]) -> None:
        self._settle()
        names = [machine.name for machine in machines]
        with self._changed, contextlib.suppress(OSError):
            for machine in machines:
                machine.rented, machine.up = None, False
            self._bills = {name: bill for name, bill in self._bills.items() if name not in names}
            self._write()

    def _end(self, machines: Sequence[_Machine], also: Iterable[str] = ()) -> bool:
        """End machines, and tell where one may be left; whether all are ended."""
        names = sorted({*(machine.name for machine in machines), *also})
        for tried in range(1, _TRIES + 1):
            try:
                self._rental.down(names)
                break
            except AutoresearchdError as error:
                if tried == _TRIES:
                    what = f"{', '.join(names)} may still run and cost money: {error}"
                    how = "`autoresearchd cloud list` shows what there is, `autoresearchd cloud down` ends it"
                    self._terms.tell(EventKind.WARNING, f"{what}\n  → {how}")
                    return False
                time.sleep(min(_PAUSE_S, self._pace.turn))  # also while this is closed: nobody else ends them
        self._forget(machines)
        return True

    def close(self) -> None:
        """End all that carries the session's name, also what an earlier daemon has left."""
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        self._pool.shutdown()
        names = {machine.name for machine in self._up()}
        try:
            names |= {one.name for one in self._rental.look(self._terms.prefix)}
        except AutoresearchdError as error:
            if self._keeper is not None:
                names |= {machine.name for machine in self._machines}  # ended if they are there
                self._terms.tell(EventKind.WARNING, f"what may be left of rented machines is not known: {error}")
        if names and self._end(self._up(), names):
            self._terms.tell(EventKind.HOUSEKEEPING, f"ended {counted(len(names), 'rented machine')}")
        if isinstance(self._hosts, SshExecutor):
            self._hosts.close()


def _runs(handle: RunHandle) -> bool:
    try:
        return handle.wait(0) is None
    except Exception:  # noqa: BLE001 - the loop is told of it
        return False


def cap_too_low(left: float, hourly: float) -> str:
    """Words for a spend cap that does not pay for an hour."""
    return f"the machines cost ${hourly:.2f} an hour, and the spend limit leaves ${left:.2f}"


def first_login(name: str, config: Path) -> str:
    """Log in to a new machine and keep its key, for nobody vouches for it; what it is, in words, empty: it was known.

    Raises EnvironmentFailure: it cannot be reached, or has another key than before.
    """
    options = ("BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=60", "ClearAllForwardings=yes")
    words = ["ssh", "-F", str(config), "-T", *(f"-o{option}" for option in options), name, "true"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"{name}: the first login failed: {error}") from error
    if done.returncode:
        raise EnvironmentFailure(f"{name}: the first login failed: {one_line(done.stderr, 400)}")
    known = "Permanently added" in done.stderr
    return "its host key was taken as it came at the first login, and is held to from now on" if known else ""

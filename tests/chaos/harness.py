"""Kills daemons and checks what they leave: one session at a time, by a schedule drawn from a seed.

A session is given life after life; each ends by SIGKILL, at a transition of the journal or at a random instant, until
its deaths are used up, and then one life undisturbed. An undisturbed session with the same seed says how it must end.
"""

from __future__ import annotations

import glob
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.invariants import Breaches, Journal, check_after_death, check_end, check_user, processes_of
from tests.chaos.mortal import Fate, kill_tree
from tests.chaos.nursery import Nursery
from tests.chaos.world import World, make_template, make_world

EXPERIMENTS, SHORT = 8, 4
SEED = 31
"""Of most sessions, so that one undisturbed tells of all."""
LIFE_S = 200.0
"""How long a life may take before it counts as hung."""
FATE_S = 1.5
"""How long a life waits for the call that it is to die at, which may not come; then it is killed where it is."""
LATE, LATE_S = 3, 20.0
"""Lives of a schedule that last until a step of a confirmation, and how long at most."""
ORPHAN_PATIENCE_S = 60.0


def _both(calls: str) -> tuple[Fate, ...]:
    return tuple(Fate(call, moment) for call in calls.split() for moment in ("before", "after"))


BEGINNING = _both("store.set_state workspace.begin store.open_segment store.open_experiment")
"""Steps that only the first life of a session takes."""

TRANSITIONS = _both(
    "store.open_experiment policy.propose store.record_proposal workspace.commit store.record_commit workspace.checkout"
    " store.open_run executor.start store.close_run store.record_decision workspace.advance store.record_overhead"
    " workspace.pack store.backup store.heartbeat"
)
"""Every step of the journal and every side effect, from both sides; those of a confirmation come after."""

CONFIRMING = _both(
    "store.open_confirmation store.open_confirmation_run store.close_confirmation_run store.decide_confirmation"
    " store.record_belief workspace.move_tip workspace.advance"
)
TRANSITIONS += CONFIRMING

RECOVERY: tuple[Fate, ...] = (
    Fate("executor.recover", "before"),
    Fate("executor.recover", "after"),
    Fate("workspace.tip", "after"),
    Fate("event.recovered"),
    Fate("store.latest", "after"),
    *(Fate("*", nth=n) for n in (2, 5, 9, 14, 20, 27)),
)
"""Instants at the beginning of a life that has something to recover."""


SIGHTS = ("supervisor.json", "training.log", "evaluation.log", "result.json")
"""Files of a run, in the order in which they come."""


References = dict[tuple[int, int, str], Journal]
"""Sessions that nobody touched, by seed, number of experiments, and how git keeps their history."""


@dataclass(frozen=True)
class Death:
    """How one life ends. fate: at a call; delay: after that many seconds; sight: once a file of a run is seen."""

    fate: Fate | None = None
    delay: float | None = None
    sight: str = ""

    def __str__(self) -> str:
        if self.fate is not None:
            return f"{self.fate.moment} {self.fate.call} ×{self.fate.nth}"
        return f"when {self.sight} appears" if self.sight else f"after {self.delay:.3f} s"


@dataclass
class Tally:
    """What a run of the harness found. kills, breaches: by the phase in which daemons died."""

    kills: Counter[str] = field(default_factory=Counter)
    breaches: dict[str, Breaches] = field(default_factory=dict)
    sessions: int = 0

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def at(self, phase: str) -> Breaches:
        return self.breaches.setdefault(phase, Breaches())

    def lines(self) -> list[str]:
        return [f"[{phase}] {line}" for phase, found in self.breaches.items() for line in found.lines()]


class Harness:
    """Sessions in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        nursery: Nursery,
        tell: Callable[[str], None] = lambda line: None,
        references: References | None = None,
    ) -> None:
        self.folder, self.nursery, self.tell = folder, nursery, tell
        self._references = {} if references is None else references
        self.template = make_template(folder)
        self.tally = Tally()

    def world(self, name: str, seed: int, experiments: int = EXPERIMENTS, history: str = "refs") -> World:
        return make_world(self.template, self.folder / name, seed=seed, experiments=experiments, history=history)

    def undisturbed(self, seed: int, experiments: int = EXPERIMENTS, history: str = "refs") -> Journal:
        """How a session with this seed ends when nobody touches it; found out once."""
        known = self._references.get((seed, experiments, history))
        if known is not None:
            return known
        world = self.world(f"reference-{seed}", seed, experiments, history)
        breaches = self.tally.at("undisturbed")
        self.finish(world, breaches, f"seed {seed}, undisturbed")
        journal = check_end(world, experiments, None, breaches, f"seed {seed}, undisturbed")
        shutil.rmtree(world.root, ignore_errors=True)
        self._references[seed, experiments, history] = journal
        return journal

    def session(
        self, seed: int, deaths: Sequence[Death], experiments: int = EXPERIMENTS, history: str = "refs"
    ) -> World:
        """A session that dies ``deaths`` and is then left alone; breaches go to the tally."""
        reference = self.undisturbed(seed, experiments, history)
        world = self.world(f"session-{seed}", seed, experiments, history)
        users = world.users_files()
        before: Journal | None = None
        phase = "starting"
        for index, death in enumerate(deaths):
            where = f"seed {seed}, death {index + 1} ({death})"
            breaches = Breaches()
            if not self.die(world, death, breaches, where):
                self.tally.at(phase).merge(breaches)
                if breaches.lines() or self._done(world, experiments):
                    break
                continue
            before = check_after_death(world, before, breaches, where)
            phase = self._phase(world, before, death)
            self.tally.kills[phase] += 1
            self.tally.at(phase).merge(breaches)
            self.tell(f"{where}: {phase}")
        last, where = Breaches(), f"seed {seed}, at the end"
        self.finish(world, last, where)
        check_end(world, experiments, reference, last, where)
        if before is not None:
            check_after_death(world, before, last, where)
        check_user(users, world, last, where)
        self.tally.at(phase).merge(last)
        self.tally.sessions += 1
        return world

    def die(self, world: World, death: Death, breaches: Breaches, where: str) -> bool:
        """One life; whether it ended by SIGKILL (it may have been done before)."""
        often = death.fate is not None and death.fate.call in ("workspace.pack", "store.backup", "store.heartbeat")
        pid = self.start(world, fate=death.fate, often=often)
        if death.sight:
            self._wait_for_sight(world, death.sight, pid)
            _kill(pid)
        status = self.nursery.wait(pid, FATE_S if death.delay is None else death.delay)
        if status is None:
            _kill(pid)
            status = self.nursery.wait(pid, LIFE_S)
        self._check_exit(world, pid, status, breaches, where)
        self.check_orphans(world, breaches, where)
        return status == -signal.SIGKILL

    def start(self, world: World, **order: Any) -> int:
        """Start a daemon; its pid. composed: without long waits after failures; clock: seed of one that jumps."""
        return self.nursery.start(world.root, **order)

    def finish(self, world: World, breaches: Breaches, where: str, **order: Any) -> int | None:
        """Let a session go on to its end; the exit status of its daemon."""
        pid = self.start(world, **order)
        status = self.nursery.wait(pid, LIFE_S)
        self._check_exit(world, pid, status, breaches, where)
        self.check_orphans(world, breaches, where)
        return status

    def ends_as_undisturbed(
        self, world: World, experiments: int = SHORT, *, seed: int = SEED, where: str = "",
        users: Mapping[str, str] | None = None, finish: bool = True, **order: Any,
    ) -> None:  # fmt: skip
        """A session goes on to its end (``finish``: it has yet to), which is that of one with its seed undisturbed."""
        breaches = Breaches()
        if finish:
            self.finish(world, breaches, where, **order)
        check_end(world, experiments, self.undisturbed(seed, experiments), breaches, where)
        if users is not None:
            check_user(users, world, breaches, where)
        self.check_orphans(world, breaches, where)
        assert not breaches.lines(), breaches.lines()

    def cut(self, world: World, pid: int) -> None:
        """Kill a daemon and all below it at one instant; nothing of it is left."""
        kill_tree(pid)
        ended = self.nursery.wait(pid, LIFE_S)
        assert ended in (-signal.SIGKILL, 0), f"it ended with {ended}"  # 0: its session was over just then
        breaches = Breaches()
        self.check_orphans(world, breaches, "")
        assert not breaches.lines(), breaches.lines()

    def check_orphans(self, world: World, breaches: Breaches, where: str) -> None:
        """Nothing outlives a daemon: by the tree below the nursery and by what processes carry in their environment."""
        for line in self.nursery.strays(ORPHAN_PATIENCE_S):
            breaches.add("orphans", f"{where}: {line}")
        for line in processes_of(world.root):
            breaches.add("orphans", f"{where}: {line}")

    def _check_exit(self, world: World, pid: int, status: int | None, breaches: Breaches, where: str) -> None:
        if status is None:
            breaches.add("failed", f"{where}: hung for {LIFE_S:.0f} s")
            _kill(pid)
            self.nursery.wait(pid, LIFE_S)
        elif status not in (0, -signal.SIGKILL):
            said = Path(str(world.root) + "-life.err").read_text("utf-8", "replace")
            breaches.add("failed", f"{where}: exit status {status}: {said[-600:]}")

    def _wait_for_sight(self, world: World, name: str, pid: int) -> None:
        """Until a file of that name is there that was not there before, or the life is over."""
        known = set(_seen(world, name))
        deadline = time.monotonic() + LIFE_S
        while time.monotonic() < deadline and set(_seen(world, name)) <= known:
            if self.nursery.wait(pid, 0.002) is not None:
                return

    def _phase(self, world: World, journal: Journal, death: Death) -> str:
        call = death.fate.call if death.fate else ""
        if call in ("workspace.pack", "store.backup", "store.heartbeat"):
            return "housekeeping"
        if death.fate in RECOVERY:
            return "recovery"
        return journal.phase(world)

    def _done(self, world: World, experiments: int) -> bool:
        return Journal.read(world).totals.experiments > experiments


def _seen(world: World, name: str) -> list[str]:
    """Files of that name in runs; glob.glob minds no folder that goes while it looks, Path.glob of Python 3.11 does."""
    return glob.glob(f"*/*/{name}", root_dir=world.runs)  # noqa: PTH207


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself just now
        os.kill(pid, signal.SIGKILL)


def schedule(seed: int, count: int, transitions: Iterator[Fate]) -> list[Death]:
    """The deaths of one session: transitions in turn, random instants, sights, each now and then twice in a row."""
    stream = random.Random(seed)
    deaths: list[Death] = [Death(stream.choice(BEGINNING))]
    while len(deaths) < count:
        kind = stream.random()
        if kind < 0.35:
            fate = next(transitions)
            deaths.append(Death(Fate(fate.call, fate.moment, stream.choice((1, 1, 2)))))
        elif kind < 0.70:
            deaths.append(Death(delay=stream.uniform(0.05, 1.2)))
        else:
            deaths.append(Death(sight=stream.choice(SIGHTS)))
        if stream.random() < 0.3:
            deaths.append(Death(stream.choice(RECOVERY)))
    # Long lives at the end, so that each session gets to confirmations.
    late = [Death(stream.choice(CONFIRMING[:8]), delay=LATE_S) for _ in range(LATE)]
    return [*deaths[: count - LATE], *late]

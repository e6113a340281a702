"""A doom that ends its own process at a chosen call, a clock that jumps, and processes that a test kills one by one."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autoresearchd.domain.ports import Event
from autoresearchd.sandbox.process_tree import descendants


@dataclass(frozen=True)
class Fate:
    """When to die. call: ``port.method`` or ``*`` for any; moment: ``before`` or ``after`` it; nth: at which one."""

    call: str = "*"
    moment: str = "after"
    nth: int = 1


@dataclass
class Doom:
    """Counts instants and strikes at one of them."""

    fate: Fate | None
    count: int = 0

    def instant(self, call: str, moment: str) -> None:
        fate = self.fate
        if fate is None or fate.call not in ("*", call) or (fate.call != "*" and fate.moment != moment):
            return
        self.count += 1
        if self.count == fate.nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_files(self, root: Path) -> None:
        """An instant before each file that is opened, made, renamed or removed below a folder."""

        def see(event: str, given: tuple[object, ...]) -> None:
            if event.startswith(("open", "os.", "shutil.")) and given and str(given[0]).startswith(str(root)):
                self.instant(event, "after")

        sys.addaudithook(see)


class JumpingClock:
    """A wall clock that somebody sets to and fro, by up to two days each time that it is looked at."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=self._random.uniform(-48, 48))

    def monotonic(self) -> float:
        return time.monotonic()


class MortalSink:
    def __init__(self, doom: Doom) -> None:
        self._doom = doom

    def emit(self, event: Event) -> None:
        self._doom.instant(f"event.{event.kind.value}", "after")


def command_of(pid: int) -> bytes:
    """A process's command line, empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def below(daemon: int, word: bytes) -> list[int]:
    """Processes below a daemon whose command line holds a word."""
    return [pid for pid in descendants(daemon) if word in command_of(pid)]


def seen(daemon: int, word: bytes, *, seconds: float = 200.0) -> Iterator[int]:
    """Processes with that word as they come, each once, until the daemon is gone or the time is up."""
    known: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end and command_of(daemon):
        for pid in below(daemon, word):
            if pid not in known:
                known.add(pid)
                yield pid


def kill_tree(daemon: int) -> None:
    """SIGKILL a daemon and all below it at one instant, as a power cut does: stopped first, so that none can react."""
    os.kill(daemon, signal.SIGSTOP)
    tree = [daemon, *descendants(daemon)]
    for pid in tree:
        send(pid, signal.SIGSTOP)
    for pid in dict.fromkeys([*descendants(daemon), *reversed(tree)]):
        send(pid)


def send(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; whether the process was still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

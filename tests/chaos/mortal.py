"""A doom that ends its own process with SIGKILL before or after a chosen call, and a clock that jumps."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autoresearchd.domain.events import Event


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

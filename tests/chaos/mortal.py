"""Ports that end their own process with SIGKILL before or after a chosen call, and a clock that jumps."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from autoresearchd.domain.events import Event


@dataclass(frozen=True)
class Fate:
    """When to die. call: ``port.method`` or ``*`` for any; moment: ``before`` or ``after`` it; nth: at which one."""

    call: str = "*"
    moment: str = "after"
    nth: int = 1


@dataclass
class Doom:
    """Counts instants and strikes at one of them. record: a file that takes down every instant that was passed."""

    fate: Fate | None
    record: Path | None = None
    count: int = 0
    passed: list[str] = field(default_factory=list)

    def instant(self, call: str, moment: str) -> None:
        """One instant."""
        if self.record is not None:
            self.passed.append(f"{call} {moment}")
            self.record.write_text("\n".join(self.passed))
        fate = self.fate
        if fate is None or fate.call not in ("*", call) or (fate.call != "*" and fate.moment != moment):
            return
        self.count += 1
        if self.count == fate.nth:
            os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """A port whose every call has an instant before and an instant after it."""

    def __init__(self, inner: Any, port: str, doom: Doom) -> None:
        self._inner, self._port, self._doom = inner, port, doom

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        call = f"{self._port}.{name}"

        def mortal(*arguments: Any, **named: Any) -> Any:
            self._doom.instant(call, "before")
            result = value(*arguments, **named)
            self._doom.instant(call, "after")
            return result

        return mortal


class JumpingClock:
    """A wall clock that somebody sets to and fro, by up to two days each time that it is looked at."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def now(self) -> datetime:
        """Some time."""
        return datetime.now(UTC) + timedelta(hours=self._random.uniform(-48, 48))

    def monotonic(self) -> float:
        """Durations are not touched by that."""
        return time.monotonic()


class MortalSink:
    """Dies at an event."""

    def __init__(self, doom: Doom) -> None:
        self._doom = doom

    def emit(self, event: Event) -> None:
        self._doom.instant(f"event.{event.kind.value}", "after")

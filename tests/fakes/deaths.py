"""Daemons that die: a BaseException ends them before or after any call that they make to a port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fakes.bench import Bench


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing catches it, nothing is cleaned up."""


@dataclass
class Doom:
    """Counts instants and strikes at one of them (0: at none)."""

    at: int = 0
    count: int = 0

    def instant(self, call: str, moment: str) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


class Mortal:
    """A port whose every call has an instant before and an instant after it. doom: is told of each."""

    def __init__(self, inner: Any, doom: Any, port: str = "") -> None:
        self._inner, self._doom, self._port = inner, doom, port

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self._doom.instant(f"{self._port}.{name}", "before")
            result = value(*arguments, **named)
            self._doom.instant(f"{self._port}.{name}", "after")
            return result

        return call


def run_until_killed(bench: Bench, doom: Doom, experiments: int = 3) -> bool:
    """Run a daemon; whether it was killed before it was done."""
    try:
        bench.loop(experiments, bench.laboratory(wrap=lambda port: Mortal(port, doom))).run()
    except Killed:
        return True
    return False

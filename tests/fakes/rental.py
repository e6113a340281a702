"""A rental without machines, which does at once what providers take minutes for; and a stand-in for SkyPilot's SDK."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, Interrupted
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.task import Cloud
from autoresearchd.executor.cloud.rental import Rented

FAKE_SDK = Path(__file__).with_name("skypilot")


def stand_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in in the place of SkyPilot's SDK; the folder where it keeps its machines."""
    (folder := home / "sky").mkdir()
    for name, value in {"PYTHONPATH": FAKE_SDK, "FAKE_SKY": folder, "HOME": home}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.syspath_prepend(str(FAKE_SDK))
    return folder


class FakeRental:
    """there: by name; launches, ended: names in order; kept: minutes that the end of all was put off by last.

    failing: errors that the next launches end with, half-way: the machine is there. hanging: they never end by
    themselves. stuck: no machine can be ended; blind: nobody knows what is there. usd: an hour; ssh: of every machine.
    """

    def __init__(self, *, usd: float | None = 2.0, ssh: Mapping[str, str] | None = None) -> None:
        self.there: dict[str, Rented] = {}
        self.launches: list[str] = []
        self.ended: list[str] = []
        self.kept: int | None = None
        self.failing: list[AutoresearchdError] = []
        self.hanging = self.stuck = self.blind = False
        self.usd, self.ssh = usd, ssh or {"HostName": "127.0.0.1", "Port": "9"}

    def check(self, want: Cloud) -> str:
        if self.failing:
            raise self.failing.pop(0)
        return "nobody"

    def launch(self, name: str, want: Cloud, cancel: Cancel) -> Rented:
        known = self.there.get(name)
        if known is None or not known.up:
            self.launches.append(name)
            fresh = f"{len(self.launches)}"
            self.there[name] = Rented(name, fresh, False, "INIT", "a machine", self.usd, time.time(), self.ssh)
        if self.hanging:
            cancel.wait()
            raise Interrupted("given up")
        if self.failing:
            raise self.failing.pop(0)
        self.there[name] = replace(self.there[name], up=True, state="UP")
        return self.there[name]

    def look(self, prefix: str, keep: int | None = None) -> Sequence[Rented]:
        if self.blind:
            raise EnvironmentFailure("the provider does not answer")
        self.kept = self.kept if keep is None else keep
        return [machine for name, machine in sorted(self.there.items()) if name.startswith(prefix)]

    def down(self, names: Sequence[str]) -> None:
        if self.stuck:
            raise EnvironmentFailure("the provider does not answer")
        for name in names:
            if self.there.pop(name, None) is not None:
                self.ended.append(name)

    def take(self, name: str) -> None:
        """The provider takes a machine away."""
        del self.there[name]

"""What ``--executor ray`` asks of a cluster: where it is, and what each run gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.quantities import counted
from autoresearchd.sandbox.tiers import AUTO, check_name

_ADDRESS = re.compile(r"(?:ray://)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}")
_MOST = 100_000
_HINT = "for instance ray, ray:auto, ray:10.0.0.5:6379, ray:ray://10.0.0.5:10001, 'ray:auto?gpu=A100&gpus=2'"


@dataclass(frozen=True, slots=True)
class Wanted:
    """address: as for ``ray.init``, empty: what is found; gpu: type, as Ray calls it (``A100``); gpus, cpus: of a run.

    dir: where ``.autoresearchd/`` is made on nodes. None: as the cluster has it.
    """

    address: str = ""
    gpu: str = ""
    gpus: int | None = None
    cpus: int | None = None
    dir: str = "~"
    sandbox: str = AUTO
    slots: int | None = None

    @classmethod
    def read(cls, text: str) -> Wanted:
        """From ``[ADDRESS][?KEY=VALUE&…]``. Raises UsageError."""
        address, _, query = text.partition("?")
        if address not in ("", "auto", "local") and not _ADDRESS.fullmatch(address):
            raise UsageError(f"--executor ray:{text}: {address!r} is no address of a Ray cluster", hint=_HINT)
        found: dict[str, Any] = {"address": address}
        for key, value in parse_qsl(query, keep_blank_values=True):
            if key in ("gpus", "cpus", "slots"):
                if not (value.isascii() and value.isdigit() and 1 <= int(value) <= _MOST):
                    raise UsageError(f"--executor ray:{text}: {key}={value} is no number from 1 on", hint=_HINT)
                found[key] = int(value)
            elif key in ("gpu", "dir", "sandbox") and value:
                found[key] = check_name(value) if key == "sandbox" else value
            else:
                raise UsageError(f"--executor ray:{text}: there is no {key}={value}", hint=_HINT)
        return cls(**found)

    def __str__(self) -> str:
        """What `read` reads again."""
        usual = Wanted()
        names = ("gpu", "gpus", "cpus", "dir", "sandbox", "slots")
        told = {name: value for name in names if (value := getattr(self, name)) != getattr(usual, name)}
        return self.address + (f"?{urlencode(told, safe='~/')}" if told else "")


@dataclass(frozen=True, slots=True)
class Share:
    """What each run gets of a cluster, and how many runs at once that makes."""

    slots: int
    gpus: int
    cpus: int
    gpu: str

    @property
    def options(self) -> dict[str, Any]:
        """Of an actor that holds it."""
        typed = {"accelerator_type": self.gpu} if self.gpu else {}
        return {"num_gpus": self.gpus, "num_cpus": self.cpus, **typed}

    def __str__(self) -> str:
        parts = (counted(self.gpus, "GPU") if self.gpus else "", counted(self.cpus, "CPU") if self.cpus else "")
        return " and ".join(part for part in parts if part) + (f" on a node with {self.gpu}" if self.gpu else "")


def share(wanted: Wanted, nodes: Sequence[Mapping[str, float]]) -> Share:
    """Of nodes with these resources; 0 slots where none has enough.

    A slot has a GPU, or what was asked for. Where there are none it has all cores of a node, or with ``--slots`` as
    many as leave enough for the others.
    """
    if wanted.gpu:
        nodes = [node for node in nodes if f"accelerator_type:{wanted.gpu}" in node]
    has_gpus = any(node.get("GPU", 0) >= 1 for node in nodes)
    if wanted.gpu or wanted.gpus or has_gpus:
        gpus, cpus = wanted.gpus or 1, wanted.cpus or 0
        room = sum(_times(node, gpus, cpus) for node in nodes)
        return Share(wanted.slots or room, gpus, cpus, wanted.gpu)
    cores = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    fits = (n for n in range(min(cores, default=1), 0, -1) if sum(core // n for core in cores) >= (wanted.slots or 0))
    each = wanted.cpus or next(fits, 1)
    return Share(wanted.slots or sum(core // each for core in cores), 0, each, "")


def _times(node: Mapping[str, float], gpus: int, cpus: int) -> int:
    times = int(node.get("GPU", 0)) // gpus
    return min(times, int(node.get("CPU", 0)) // cpus) if cpus else times

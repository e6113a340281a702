"""The executor for machines that are reached by ssh: those of ``fleet.slots``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.remote.executor import RemoteExecutor
from autoresearchd.executor.remote.hosts import Host, Times
from autoresearchd.executor.ssh.connection import Address, require_asyncssh
from autoresearchd.executor.ssh.way import SshWay, require_programs
from autoresearchd.sandbox.tiers import AUTO


class SshExecutor(RemoteExecutor):
    """given: its slots; config: of ssh, None: the user's own.

    Raises ConfigError: there are no slots, or two of a name; MissingCapability: a program is missing.
    """

    kind, leave_out = "ssh", "leave slots out of fleet.slots until all are alike, and make a session of the others"
    given: Sequence[RemoteSlot] = ()

    def __init__(
        self, slots: Sequence[RemoteSlot], *, tier: str = AUTO, config: Path | None = None, times: Times | None = None
    ) -> None:
        if not slots:
            hint = "write for instance `fleet: {slots: [{host: gpu-box-1, gpu_id: 0}]}`"
            raise ConfigError("--executor ssh needs this key", key="fleet.slots", hint=hint)
        names = [slot.name for slot in slots]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            what = f"the name {', '.join(twice)} is given twice"
            raise ConfigError(what, key="fleet.slots", hint="give each slot a `name` of its own")
        require_programs()
        require_asyncssh()
        super().__init__(tier, times or Times())
        self.given, self._config = tuple(slots), config

    def _host(self, slots: Sequence[RemoteSlot]) -> Host:
        way = SshWay(Address(slots[0].host), self._config)
        gpus = [slot.gpu_id for slot in slots]
        return Host(way, gpus, slots[0].remote_dir, self._tier, self._times, self._trees)

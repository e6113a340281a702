"""The executor for a Ray cluster: an actor for each slot, which waits for its share and then takes run after run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.ray.bridge import Bridge
from autoresearchd.executor.ray.wanted import Share, Wanted, share
from autoresearchd.executor.ray.way import RayWay
from autoresearchd.executor.remote.executor import Place, RemoteExecutor
from autoresearchd.executor.remote.hosts import Host, Times

TIMES = Times(connect=30.0, cool=2.0, coolest=120.0)
"""A new worker of Ray's takes seconds to start; what was lost is asked for again at once, as it may come elsewhere."""


class RayExecutor(RemoteExecutor):
    """wanted: of the cluster. It is reached at the first use; what it lacks then is told as by `Bridge.up`."""

    kind, leave_out = "ray", "ask for GPUs of one type, as in --executor 'ray:auto?gpu=A100'"

    def __init__(self, wanted: Wanted, *, times: Times = TIMES) -> None:
        super().__init__(wanted.sandbox, times)
        self._wanted, self._bridge = wanted, Bridge(wanted.address, times)

    @cached_property
    def _share(self) -> Share:
        nodes, _ = self._do(self._bridge.ask("nodes"))
        found = share(self._wanted, nodes)
        if not found.slots:
            raise MissingCapability(
                f"{self._bridge.name}: none of its {len(nodes)} nodes has {found} for a run",
                hint="`ray status` shows what they have; --slots N asks for N, and waits for a cluster that can grow",
            )
        return found

    @cached_property
    def given(self) -> Sequence[RemoteSlot]:
        names = [f"ray-{number}" for number in range(1, self._share.slots + 1)]
        return tuple(RemoteSlot(name, "", name, self._wanted.dir) for name in names)

    def _host(self, slots: Sequence[RemoteSlot]) -> Host:
        slot = slots[0]
        if slot.host == slot.name:
            own = self._share
            way = RayWay(self._bridge, self._loop, slot.name, str(own), own.options, gpus=own.gpus > 0)
            cores = 0 if own.gpus else own.cpus
        else:  # of an earlier daemon: only to look what is there
            way = RayWay(self._bridge, self._loop, slot.name, "its node", {"num_cpus": 0}, gpus=False, node=slot.host)
            cores = None
        host = Host(way, [""], slot.remote_dir, self._tier, self._times, self._trees, cores)
        way.placed, way.failed = host.resume, host.failed
        return host

    @property
    def _ways(self) -> list[RayWay]:
        places = self._places if "_places" in vars(self) else []
        return [place.host.way for place in places if isinstance(place.host.way, RayWay)]

    @property
    def waits(self) -> bool:
        return any(way.waits for way in self._ways)

    def _recorded(self, place: Place) -> RemoteSlot:
        assert isinstance(place.host.way, RayWay)
        return replace(place.slot, host=place.host.way.node)

    async def _disconnect(self) -> None:
        for way in self._ways:
            way.give_up()
        await self._bridge.close()

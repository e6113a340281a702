"""NVML as nvidia-ml-py offers it, of a machine that no test has: to be put in its place among the modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest


class NVMLError(Exception):
    """What NVML refuses."""


@dataclass
class Gpu:
    """slices: what it is divided into (MIG), None where nothing was made; pids: of processes that compute on it."""

    name: str
    uuid: str
    slices: list[Gpu | None] | None = None
    pids: list[int] = field(default_factory=list)


class Nvml:
    """The functions that are used here."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *gpus: Gpu, driver: bool = True) -> None:
        self.gpus, self.driver = gpus, driver

    def install(self, patch: pytest.MonkeyPatch) -> Nvml:
        patch.setitem(__import__("sys").modules, "pynvml", self)
        return self

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if index >= len(self.gpus):
            raise NVMLError("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        for gpu in self.gpus:
            for one in (gpu, *(gpu.slices or ())):
                if one is not None and one.uuid == uuid:
                    return one
        raise NVMLError("Not Found")

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        if gpu.name.startswith("GeForce"):
            raise NVMLError("Not Supported")
        return [int(gpu.slices is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return len(gpu.slices or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, place: int) -> Gpu:
        found = (gpu.slices or [])[place]
        if found is None:
            raise NVMLError("Not Found")
        return found

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

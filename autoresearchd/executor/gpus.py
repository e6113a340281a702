"""The GPUs of this machine: which there are, and whether somebody else computes on one.

NVML tells (nvidia-ml-py); where it is not installed, as on hosts behind ssh, nvidia-smi or the driver's files say which
there are, and nobody who uses them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from autoresearchd.domain.cleaning import one_line
from autoresearchd.sandbox.process_tree import TOKEN_VARIABLE, read, stat_fields

_PROGRAM, _OWN, _DAEMON = b"autoresearchd", {b"learn", b"serve"}, {b"start", b"resume"}
"""In the command line of learners and servers of this program, which the daemon makes room for; of daemons."""
_RUN = f"{TOKEN_VARIABLE}=".encode()
"""In the environment of runs; other sessions' share the machine."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of this machine. name: model of the first; ids: what CUDA_VISIBLE_DEVICES calls each."""

    name: str = ""
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"cuda:{self.name}" if self.ids else "cpu"

    def visible(self, slot: int) -> str | None:
        """CUDA_VISIBLE_DEVICES for a slot; None where there is no GPU."""
        return self.ids[slot % len(self.ids)] if self.ids else None


def find_devices() -> Devices:
    """Look for NVIDIA GPUs within the daemon's CUDA_VISIBLE_DEVICES. Of one that is divided (MIG) each slice is one."""
    found = _by_nvml() or {str(i): name for i, name in enumerate(_by_program() or _by_driver())}
    ids, allowed = tuple(found), os.environ.get("CUDA_VISIBLE_DEVICES")
    if found and allowed is not None:
        ids = tuple(part.strip() for part in allowed.split(",") if part.strip() not in ("", "-1", "NoDevFiles"))
    return Devices(found.get(ids[0], next(iter(found.values()))) if ids else "", ids)


def gpu_names() -> list[str]:
    """Models of all NVIDIA GPUs of this machine, in their order."""
    return _by_program() or _by_driver()


def users(gpus: Sequence[str]) -> Mapping[int, str]:
    """Processes of others that compute on any of these GPUs, as CUDA_VISIBLE_DEVICES calls them, with their commands.

    Processes that cannot be seen from here, as those outside of this container, are left out.
    """
    if not gpus or (nvml := _begin_nvml()) is None:
        return {}
    found: dict[int, str] = {}
    for gpu in gpus:
        try:
            of_index, of_id = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
            handle = of_index(int(gpu)) if gpu.isdecimal() else of_id(gpu)
            pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        except nvml.NVMLError:  # a GPU that fell off, or a driver that does not tell
            continue
        for pid in pids:
            words = _command(pid)
            # A daemon, of whatever session, may have the policy's model in itself.
            if any(words) and pid != os.getpid() and not _of_program(words, _DAEMON) and not _is_own(pid):
                found[pid] = one_line(b" ".join(words).decode("utf-8", "replace"), 80)
    return found


def _is_own(pid: int) -> bool:
    """Whether a process, or one that it comes from, is a learner or a server of this program, or a run of a session."""
    while pid > 1:
        words = _command(pid)
        if _of_program(words, _OWN) or any(each.startswith(_RUN) for each in read(f"/proc/{pid}/environ").split(b"\0")):
            return True
        pid = int([*stat_fields(pid), b"0", b"0"][1])
    return False


def _of_program(words: list[bytes], commands: set[bytes]) -> bool:
    """Whether a command line is one of this program's with one of these commands."""
    return not commands.isdisjoint(words) and any(_PROGRAM in word for word in words)


def _command(pid: int) -> list[bytes]:
    return read(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")


# ---------------------------------------------------------------------- who tells
def _begin_nvml() -> Any:
    """NVML, which this process then has for good; None where there is none, or no driver."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _by_nvml() -> dict[str, str]:
    """Names by what CUDA_VISIBLE_DEVICES calls each: its index, a slice by its UUID, which is all that it has."""
    if (nvml := _begin_nvml()) is None:
        return {}
    found: dict[str, str] = {}
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            slices = _slices(nvml, gpu)
            found |= {str(index): str(nvml.nvmlDeviceGetName(gpu))} if slices is None else slices
    except nvml.NVMLError:
        return {}
    return found


def _slices(nvml: Any, gpu: Any) -> dict[str, str] | None:
    """Of a GPU that is divided, which can be used in no other way; None: it is not."""
    try:
        if nvml.nvmlDeviceGetMigMode(gpu)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
    except nvml.NVMLError:  # a kind that cannot be divided
        return None
    found: dict[str, str] = {}
    for place in places:
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            found[str(nvml.nvmlDeviceGetUUID(part))] = str(nvml.nvmlDeviceGetName(part))
        except nvml.NVMLError:  # nothing was made in that place
            continue
    return found


def _by_program() -> list[str]:
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    try:
        done = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]


def _by_driver() -> list[str]:
    count = len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()])
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        text = path.read_text("utf-8", "replace")
        models += [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")]
    return (models + ["NVIDIA GPU"] * count)[:count]

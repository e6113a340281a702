"""What this machine computes with, found without loading torch."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


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
    """Look for NVIDIA GPUs by nvidia-smi, else by the driver's files, within the daemon's CUDA_VISIBLE_DEVICES."""
    names = _by_program() or _by_driver()
    ids = tuple(str(i) for i in range(len(names)))
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names and allowed is not None:
        ids = tuple(part.strip() for part in allowed.split(",") if part.strip() not in ("", "-1", "NoDevFiles"))
    return Devices(names[0] if ids else "", ids)


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


def processor() -> str:
    """The processor's model and how many cores may be used."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    found = re.search(r"^model name[^:\n]*:(.*)$", text, re.MULTILINE)
    model = found[1].strip() if found else platform.machine()
    return f"{model} x{len(os.sched_getaffinity(0))}"

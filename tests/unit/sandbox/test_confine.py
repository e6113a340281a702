"""The launcher fails closed, hands on how its command ended, and shows what it is given and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.sandbox.isolation import confine, kernel
from autoresearchd.sandbox.tiers import Tier, available
from autoresearchd.sandbox.view import View

CONFINED = [pytest.param(tier, id=tier.name.value) for tier in available() if tier.confines]


def run(tier: Tier, view: View, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(tier.command(view, command), capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "name", ["kernel.landlock_version", "seccomp.build", "kernel.drop_privileges", "kernel.enforce"]
)
@pytest.mark.parametrize("tier", CONFINED)
def test_a_restriction_that_cannot_be_put_up_keeps_the_job_from_running(tier: Tier, name: str, tmp_path: Path) -> None:
    words = tier.command(View(cwd=Path("/usr"), home=tmp_path), ("/bin/sh", "-c", "echo RAN"))
    boot = words[words.index("-c") + 1]
    broken = f"""
import sys
sys.path.append(sys.argv[1])
from autoresearchd.sandbox.isolation import confine
def refuse(*arguments, **more):
    raise OSError(1, "refused by a test")
{"confine." + name} = refuse
"""
    changed = tuple(broken + boot if word == boot else word for word in words)
    done = subprocess.run(changed, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (confine.EXIT_NOT_CONFINED, "")
    assert "refused by a test" in done.stderr


@pytest.mark.parametrize("tier", CONFINED)
@pytest.mark.parametrize(
    ("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)]
)
def test_how_the_command_ended_is_handed_on(tier: Tier, command: str, code: int, tmp_path: Path) -> None:
    assert run(tier, View(cwd=Path("/usr"), home=tmp_path), "/bin/sh", "-c", command).returncode == code


@pytest.mark.parametrize("tier", CONFINED)
def test_a_command_that_is_not_there_is_said(tier: Tier, tmp_path: Path) -> None:
    done = run(tier, View(cwd=Path("/usr"), home=tmp_path), "/usr/no-such-program")
    assert done.returncode == confine.EXIT_NOT_CONFINED
    assert "No such file" in done.stderr


@pytest.mark.parametrize("tier", CONFINED)
def test_what_is_hidden_in_a_folder_is_not_read_and_its_neighbours_are(tier: Tier, tmp_path: Path) -> None:
    names = ("data/deep/hidden/val", "data/near", "data/deep/train")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    view = View(cwd=tmp_path / "data", home=tmp_path, hidden=(tmp_path / "data" / "deep" / "hidden",))
    done = run(tier, view, "/bin/sh", "-c", "cat near deep/train deep/hidden/val 2>/dev/null")
    assert done.stdout.split() == ["data/near", "data/deep/train"]


NAMES = """
import os, threading
begun, done = threading.Event(), threading.Event()
threading.Thread(target=lambda: (begun.set(), done.wait())).start()
begun.wait()
try:
    open(f"/proc/self/task/{max(os.listdir('/proc/self/task'), key=int)}/comm", "w").write("cuda")
    print("named")
except PermissionError:
    print("refused")
finally:
    done.set()
"""


@pytest.mark.parametrize("tier", CONFINED)
def test_a_job_on_a_gpu_may_name_its_threads(tier: Tier, tmp_path: Path) -> None:
    """CUDA does that first of all, and does not start where it may not."""
    command = (str(Path(sys.executable).resolve()), "-I", "-S", "-c", NAMES)
    for gpu, said in ((True, "named"), (False, "refused")):
        view = View(cwd=Path("/usr"), home=tmp_path, readable=(Path(sys.base_prefix),), gpu=gpu)
        done = run(tier, view, *command)
        if "Read-only file system" in done.stderr:
            pytest.skip("in a container that lets no job have a /proc of its own no CUDA starts in this tier")
        assert done.stdout == f"{said}\n"


def test_a_kernel_is_not_asked_for_rights_that_it_does_not_know() -> None:
    assert kernel.supported(kernel.WRITE, 1) & (kernel.REFER | kernel.TRUNCATE) == 0
    assert kernel.supported(kernel.WRITE, 3) == kernel.WRITE
    assert kernel.supported(kernel.DEVICE, 4) & kernel.IOCTL_DEV == 0

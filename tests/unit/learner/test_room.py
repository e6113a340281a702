"""What is free is the least that machine and control groups leave."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autoresearchd.errors import MissingCapability
from autoresearchd.learner.room import limit_lifted, room_in_memory, room_on


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_limit_of_a_group_around_the_process_counts_as_its_own_does(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/a/b\n")
    groups = tmp_path / "groups"
    group(groups / "a", memory__max="3000\n", memory__current="1500\n", memory__stat="anon 5\ninactive_file 200\n")
    group(groups / "a/b", memory__max="max\n", memory__current="900\n", memory__stat="inactive_file 0\n")
    found = room_in_memory(tmp_path, groups)
    assert (found.free, found.where) == (1700, "in the control group")


def test_the_first_version_of_control_groups_is_understood(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("5:cpu:/x\n4:memory:/x\n0::/\n")
    stat = "total_inactive_file 10\ninactive_file 1\n"
    group(tmp_path / "groups/memory/x", memory__limit_in_bytes="1000", memory__usage_in_bytes="400", memory__stat=stat)
    assert room_in_memory(tmp_path, tmp_path / "groups").free == 610


@pytest.mark.parametrize("text", ["", "nonsense", "0::/gone\n", "0::/odd\n"])
def test_without_a_limit_the_machine_tells(tmp_path: Path, text: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(text)
    group(tmp_path / "groups/odd", memory__max="much", memory__current="?", memory__stat="")
    found = room_in_memory(tmp_path, tmp_path / "groups")
    assert found.free is not None
    assert found.free > 10**6
    assert found.where == "of the machine's memory"


def test_a_gpu_that_is_not_there_is_told() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(MissingCapability, match="cuda"):
        room_on(torch.device("cuda"))


def test_the_limit_of_the_process_itself_counts(tmp_path: Path) -> None:
    group(tmp_path / "self", cgroup="0::/\n", status="VmPeak:\t9 kB\nVmData:\t  100 kB\nVmStk:\t 132 kB\n")
    limits = "Limit                     Soft Limit           Hard Limit           Units     \n"
    data = f"{'Max data size':<26}{204800:<21}{'unlimited':<21}bytes     \n"
    group(tmp_path / "self", limits=limits + data)
    found = room_in_memory(tmp_path, tmp_path / "groups")
    assert found.free == 204800 - 100 * 1024
    assert "memory_mb" in found.where
    group(tmp_path / "self", limits=limits + data.replace("204800   ", "unlimited"))
    assert "memory_mb" not in room_in_memory(tmp_path, tmp_path / "groups").where


def test_a_limit_that_is_lifted_for_a_while_is_there_again_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, before[1]))
    try:
        with pytest.raises(RuntimeError, match="in the middle"), limit_lifted():
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] == before[1]
            raise RuntimeError("in the middle")
        assert resource.getrlimit(resource.RLIMIT_DATA) == (2**40, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_memory_that_a_learner_frees_is_there_for_others_at_once() -> None:
    program = """
import ctypes
from pathlib import Path
from autoresearchd.learner.room import give_large_blocks_back
def taken():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
give_large_blocks_back()
bytearray(30_000_000)  # which glibc by itself takes for a reason to keep blocks of that size
blocks = [bytearray(b"x") * 4_000_000 for _ in range(40)]
before = taken()
del blocks[:-1:2]
print(before - taken())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 70_000_000, "every other of 40 blocks of 4 MB"

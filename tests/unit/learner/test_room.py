"""What is free is the least that machine and control groups leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autoresearchd.errors import MissingCapability
from autoresearchd.learner.room import room_in_memory, room_on


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

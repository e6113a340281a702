"""File systems of a test's own, to be filled, emptied and broken: what a user's disk does, without harm to ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.timing import wait_until

ROOM = 2**30


@dataclass(frozen=True)
class Disk:
    """A file system in memory that takes as much memory as is written to it."""

    at: Path

    def fill(self, spare: int = 0) -> None:
        """Leave room for nothing but ``spare`` bytes, whatever is being written to it meanwhile."""
        for _ in range(100):
            try:
                self._resize(self.used() + spare)
            except subprocess.CalledProcessError:  # more was written since it was counted: it cannot get as small
                continue
            return
        raise AssertionError(f"{self.at} grows faster than it can be filled")

    def empty(self) -> None:
        self._resize(ROOM)

    def used(self) -> int:
        facts = os.statvfs(self.at)
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize

    def _resize(self, size: int) -> None:
        mount("-o", f"remount,size={max(4096, size)}", str(self.at))


@contextmanager
def memory_disk(at: Path) -> Iterator[Disk]:
    """A disk that can be filled; skips the test where none can be mounted."""
    at.mkdir()
    try_to_mount("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(at))
    try:
        yield Disk(at)
    finally:
        unmount(at)


@dataclass(frozen=True)
class FailingDisk:
    """An ext4 file system on a file, which goes read-only at the first error, as most users' do."""

    at: Path
    image: Path

    def fail(self) -> None:
        """What the kernel does when such a disk reports an error: nothing can be written any more, open files too."""
        subprocess.run(["sync", "-f", str(self.at)], check=True, timeout=60)  # what was whole before it stays whole
        device = Path(_output("findmnt", "-n", "-o", "SOURCE", str(self.at))).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
        with pytest.raises(OSError, match="Read-only"):
            (self.at / "probe").write_text("x")

    def mend(self) -> None:
        """Mounted again, as after a restart of the machine: not before the last process has let go of it.

        Until then, a mount of the image would only show the file system that failed once more.
        """
        wait_until(lambda: subprocess.run(["umount", str(self.at)], capture_output=True, timeout=30).returncode == 0)
        subprocess.run(["fsck.ext4", "-p", "-f", str(self.image)], capture_output=True, timeout=60)
        self.mount()

    def mount(self) -> None:
        try_to_mount("-o", "loop,errors=remount-ro", str(self.image), str(self.at))


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """A disk that can fail; skips the test where none can be made."""
    disk = FailingDisk(folder / "disk", folder / "disk.img")
    disk.at.mkdir()
    with disk.image.open("wb") as image:
        image.truncate(ROOM)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(disk.image)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no ext4 file system can be made here: {error}")
    disk.mount()
    try:
        yield disk
    finally:
        unmount(disk.at)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True, timeout=30)


def try_to_mount(*arguments: str) -> None:
    try:
        mount(*arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {getattr(error, 'stderr', '') or error}")


def unmount(at: Path) -> None:
    done = subprocess.run(["umount", str(at)], capture_output=True, timeout=30)
    if done.returncode != 0:
        subprocess.run(["umount", "-l", str(at)], check=True, capture_output=True, timeout=30)


def _output(*arguments: str) -> str:
    return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=30).stdout.strip()

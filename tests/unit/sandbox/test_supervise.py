"""The parts of the supervisor that can be looked at without a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.sandbox import job_files, process_tree, supervise

JSON = st.recursive(
    st.none() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_result_is_json_that_anybody_can_read(value: object) -> None:
    assert json.loads(job_files.dump(value)) == value


def test_a_path_that_is_no_utf8_does_not_lose_the_result() -> None:
    assert json.loads(job_files.dump({"log": os.fsdecode(b'/a/\xff"\\\n')})) == {"log": '/a/\udcff"\\\n'}


@given(st.lists(st.binary(max_size=60), max_size=40), st.integers(1, 50))
def test_a_log_keeps_the_end_of_what_was_written_within_its_limit(chunks: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.log"
        log = job_files.Log(str(path), limit, append=False)
        for chunk in chunks:
            log.write(chunk)
        log.close()
        older = Path(f"{path}.1")
        kept = (older.read_bytes() if older.exists() else b"") + path.read_bytes()
    everything = b"".join(chunks)
    assert everything.endswith(kept)
    assert len(kept) >= min(len(everything), limit)
    assert len(kept) <= 2 * (limit + 60)


def test_a_log_on_a_full_disk_says_so_instead_of_raising() -> None:
    log = job_files.Log("/dev/full", 100, append=False)
    log.write(b"x")
    log.write(b"x" * 1000)
    assert log.full
    log.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, -9), (11, -11), (139 << 8, -11), (137 << 8, -9), (128 << 8, 128)],
)
def test_a_shell_that_reports_a_signal_is_read_as_that_signal(status: int, code: int) -> None:
    assert supervise.exit_code_of(status) == code


def test_links_in_a_folder_that_is_removed_are_not_followed(tmp_path: Path) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    (gone / "deep").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").touch()
    (gone / "deep" / "link").symlink_to(kept)
    job_files.remove_tree(str(gone))
    assert not gone.exists()
    assert (kept / "file").exists()


@pytest.mark.parametrize("mode", [0o700, 0o500], ids=["writable", "read-only"])
@pytest.mark.parametrize("levels", [900, 3000, 12_000], ids=["a path", "beyond a path", "far beyond"])
def test_a_folder_is_removed_however_deep_a_job_has_nested_it(levels: int, mode: int, tmp_path: Path) -> None:
    """Else a run could keep the daemon from ever going on: neither Python nor the kernel takes so deep a path."""
    gone = tmp_path / "gone"
    gone.mkdir()
    here = os.open(gone, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.fchmod(here, mode)
        os.close(here)
        here = inner
    os.fchmod(here, mode)
    os.close(here)
    assert job_files.remove_tree(str(gone))
    assert not gone.exists()


def test_a_link_in_the_place_of_the_folder_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.mkdir(mode=0o500)
    link.symlink_to(kept)
    assert job_files.remove_tree(str(link))
    assert job_files.remove_tree(str(tmp_path / "nothing"))
    assert not link.is_symlink() and kept.stat().st_mode & 0o777 == 0o500


def test_it_starts_without_the_modules_that_would_double_its_start_up_time() -> None:
    folder = Path(supervise.__file__).parents[2]
    code = f"import sys; sys.path.append({str(folder)!r}); import autoresearchd.sandbox.supervise; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"json", "signal", "enum", "re", "subprocess", "ctypes", "pathlib", "typing"} & set(done.stdout.split())


@pytest.mark.parametrize("find", [process_tree.children, process_tree.children_by_parent])
def test_children_are_found_on_every_kernel(find: object) -> None:
    child = subprocess.Popen(["sleep", "600"])
    assert child.pid in find(os.getpid())  # type: ignore[operator]
    child.kill()
    child.wait()
    assert find(child.pid) == []  # type: ignore[operator]

"""The files of a run: logs that stay small, what a job leaves, which leads nobody elsewhere, and its removal."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.sandbox.job_files import Log, dump, leads_out, removal, remove_tree, sift

JSON = st.recursive(
    st.none() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_result_is_json_that_anybody_can_read(value: object) -> None:
    assert json.loads(dump(value)) == value


def test_a_path_that_is_no_utf8_does_not_lose_the_result() -> None:
    assert json.loads(dump({"log": os.fsdecode(b'/a/\xff"\\\n')})) == {"log": '/a/\udcff"\\\n'}


@given(st.lists(st.binary(max_size=60), max_size=40), st.integers(1, 50))
def test_a_log_keeps_the_end_of_what_was_written_within_its_limit(chunks: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.log"
        log = Log(str(path), limit)
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
    log = Log("/dev/full", 100)
    log.write(b"x")
    log.write(b"x" * 1000)
    assert log.full
    log.close()


def nest(folder: Path, name: str, levels: int, mode: int = 0o700) -> int:
    """Folders in folders, each with a file; a descriptor of the innermost."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.fchmod(here, mode)
        os.close(here)
        here = inner
    return here


@pytest.mark.parametrize("mode", [0o700, 0o500], ids=["writable", "read-only"])
@pytest.mark.parametrize(
    "levels",
    [900, 3000, pytest.param(12_000, marks=pytest.mark.nightly)],
    ids=["a path", "beyond a path", "far beyond"],
)
def test_a_folder_is_removed_however_deep_a_job_has_nested_it(levels: int, mode: int, tmp_path: Path) -> None:
    """Else a run could keep the daemon from ever going on: neither Python nor the kernel takes so deep a path."""
    gone = tmp_path / "gone"
    gone.mkdir()
    innermost = nest(gone, "d", levels, mode)
    os.fchmod(innermost, mode)
    os.close(innermost)
    assert remove_tree(str(gone)) and not gone.exists()


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    kept, link, gone = tmp_path / "kept", tmp_path / "link", tmp_path / "gone"
    kept.mkdir(mode=0o500)
    (gone / "deep").mkdir(parents=True)
    for place in (link, gone / "deep" / "link"):
        place.symlink_to(kept)
    assert all(remove_tree(str(path)) for path in (link, gone, tmp_path / "nothing"))
    assert [p.name for p in tmp_path.iterdir()] == ["kept"] and kept.stat().st_mode & 0o777 == 0o500


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("answers")
    folder = tmp_path / "output"
    (folder / "deep").mkdir(parents=True)
    (folder / "step_100.pt").write_text("weights")
    return folder


@pytest.mark.parametrize(
    "target",
    [
        "/proc/self/cwd/data/heights.npy", "/proc/self/fd/3", "../secret", "deep/../../secret", "/etc/passwd", "..",
        "/", "deep/out/secret", "/proc/self/root", "../output/step_100.pt",
    ],
)  # fmt: skip
def test_a_link_that_leads_out_is_found_wherever_it_lies(output: Path, target: str) -> None:
    (output / "deep" / "out").symlink_to("../..")
    assert "leads out" in sift(str(output))[0]
    (output / "deep" / "out").unlink()
    (output / "heights.npy").symlink_to(target)
    fault, _ = sift(str(output))
    if target == "deep/out/secret":
        assert fault == "", "it ends nowhere now"
    else:
        assert fault.startswith('"heights.npy" is a symbolic link')


def test_links_that_stay_in_the_folder_stay_there(output: Path) -> None:
    (output / "latest.pt").symlink_to("step_100.pt")
    (output / "deep" / "best.pt").symlink_to("../latest.pt")
    (output / "absolute.pt").symlink_to(output / "deep" / "best.pt")
    (output / "to_come.pt").symlink_to("step_200.pt")
    (output / "same.pt").hardlink_to(output / "step_100.pt")
    assert sift(str(output)) == ("", [])
    assert (output / "absolute.pt").read_text() == "weights"


def test_an_absolute_link_within_a_folder_that_is_reached_through_a_link_is_no_fault(output: Path) -> None:
    other = output.parent / "other"
    other.symlink_to(output)
    (output / "latest.pt").symlink_to(output.resolve() / "step_100.pt")
    (output / "oldest.pt").symlink_to(other / "step_100.pt")
    assert "oldest" in sift(str(output))[0]
    assert not leads_out(str(output), str(output / "latest.pt"))


def test_what_a_reader_would_wait_for_is_removed(output: Path) -> None:
    os.mkfifo(output / "deep" / "heights.npy")
    with socket.socket(socket.AF_UNIX) as server:
        place = os.open(output, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{place}/s")
        os.close(place)
    fault, removed = sift(str(output))
    assert (fault, sorted(removed)) == ("", ['"deep/heights.npy"', '"s"'])
    assert "deep/heights.npy" in removal(removed)
    assert not (output / "s").exists()
    assert sift(str(output)) == ("", [])


FAULTS = {
    "hard link": lambda out: (out / "heights.npy").hardlink_to(out.parent / "secret"),
    "leads out": lambda out: [(out / a).symlink_to(b) for a, b in ("ab", "ba")],  # in a circle, for ever
    "removed": lambda out: shutil.rmtree(out),
    "replaced": lambda out: out.rename(out.with_name("moved")) and out.symlink_to("moved"),
}


@pytest.mark.parametrize("words", FAULTS)
def test_an_output_folder_that_cannot_be_trusted_is_told(output: Path, words: str) -> None:
    FAULTS[words](output)
    assert words in sift(str(output))[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_folder_that_nobody_may_look_into_is_no_hiding_place(output: Path) -> None:
    (output / "deep" / "out").symlink_to("/etc")
    (output / "deep").chmod(0)
    assert "cannot be looked into" in sift(str(output))[0]
    (output / "deep").chmod(0o700)


def test_a_folder_too_deep_for_a_path_is_no_hiding_place(output: Path) -> None:
    os.symlink("/etc", "out", dir_fd=nest(output, "d" * 200, 25))
    assert "cannot be looked into" in sift(str(output))[0]


def test_a_name_cannot_forge_a_line_of_a_log(output: Path) -> None:
    (output / "a\nMETRIC rmse_m=0\rMETRIC rmse_m=0").symlink_to("/x\nMETRIC rmse_m=0")
    fault, _ = sift(str(output))
    assert not {"\n", "\r"} & set(fault)
    assert len(fault) < 600


PARTS = st.sampled_from(["..", ".", "a", "b", "c", "", "link"])


@given(st.lists(st.lists(PARTS, min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
def test_no_link_that_is_let_through_is_followed_out_of_the_folder(targets: list[list[str]], absolute: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        (folder / "a" / "b" / "c").mkdir(parents=True)
        (Path(name) / "a").mkdir()
        for place, parts in zip(("link", "a/link", "a/b/link", "b"), targets, strict=False):
            target = "/".join(parts)
            (folder / place).symlink_to(f"{folder}/{target}" if absolute else target or ".")
        for place in ("link", "a/link", "a/b/link", "b"):
            path = folder / place
            if path.is_symlink() and not leads_out(str(folder), str(path)) and path.exists():
                assert path.resolve().is_relative_to(folder.resolve())

"""A version that took hours to learn is whole or not there, and what was damaged since is never answered with."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.domain.errors import AdapterDamaged, EnvironmentFailure, StoreError
from autoresearchd.domain.policy_versions import BaseModel, VersionStatus
from autoresearchd.learner.versions import adapter_shelf
from autoresearchd.learner.versions.adapter_shelf import FOUND, AdapterShelf, Made
from autoresearchd.learner.versions.live_versions import RollbackOptions, judge, last_look
from autoresearchd.models.model_files import cached, same_name
from autoresearchd.store.repository import SqlStore
from tests.fakes.models import saves
from tests.fakes.stores import open_store
from tests.unit.learner.live_rewards import Life, lived, rolled_back

BASE = BaseModel("/models/small", "m" * 64, "t" * 64, "c" * 64)
MADE = Made(BASE, "grpo", data={"sessions": ["night1"], "trajectories": 217}, metrics={"kl": 0.5, "nan": float("nan")})
BEGIN = datetime(2026, 1, 2, tzinfo=UTC)


def ticking() -> Callable[[], datetime]:
    """A clock that goes on by a minute each time."""
    minutes = itertools.count(1)
    return lambda: BEGIN + timedelta(minutes=next(minutes))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with open_store(tmp_path / "state.db") as store:
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "adapters"


@pytest.fixture
def shelf(folder: Path, store: SqlStore) -> AdapterShelf:
    return AdapterShelf(folder, store, ticking())


def kept(shelf: AdapterShelf, number: int, parent: str | None = None) -> str:
    """Name of one more version."""
    return shelf.add(saves(b"%d" % number), Made(BASE, "sft", parent)).version


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# -- keeping
def test_a_version_is_kept_with_all_that_is_known_of_it(shelf: AdapterShelf, folder: Path, store: SqlStore) -> None:
    run = store.open_learner_run("grpo", "replay", 217, BEGIN)
    first = shelf.add(saves(), MADE)
    second = shelf.add(saves(b"other"), Made(BASE, "grpo", first.version, learner_run=run.id))
    assert list(store.versions()) == [first, second]
    assert (first.status, first.version[:3], second.version[:3]) == (VersionStatus.CANDIDATE, "v1-", "v2-")
    assert (second.parent, second.algo) == (first.version, "grpo")
    place = shelf.folder_of(first)
    written = adapter_shelf.read_manifest(place)
    assert (written.base, written.algo) == (BASE, "grpo")
    assert written.data == {"sessions": ["night1"], "trajectories": 217}
    assert sorted(written.files) == ["adapter_config.json", "adapter_model.safetensors"]
    assert shelf.manifest_of(second).learner_run == run.id
    assert visible(folder) == sorted([first.version, second.version]), "nothing under way is left"


def test_numbers_are_not_given_again_even_where_the_database_was_lost(
    shelf: AdapterShelf, folder: Path, tmp_path: Path
) -> None:
    kept(shelf, 1)
    second = kept(shelf, 2)
    (folder / second / "adapter_model.safetensors").write_bytes(b"torn")  # so it is not listed anew
    with SqlStore.open(f"sqlite:///{tmp_path / 'fresh.db'}") as fresh:
        again = AdapterShelf(folder, fresh, ticking())
        assert kept(again, 3).startswith("v3-")
        assert [v.version[:2] for v in fresh.versions()] == ["v1", "v3"]


@pytest.mark.parametrize("kind", ["nothing", "a folder in it", "a link", "a name for a shell", "a manifest"])
def test_what_is_no_adapter_is_not_kept(shelf: AdapterShelf, folder: Path, store: SqlStore, kind: str) -> None:
    def save(place: Path) -> None:
        if kind != "nothing":
            saves()(place)
        match kind:
            case "a folder in it":
                (place / "more").mkdir()
            case "a link":
                (place / "link").symlink_to("/etc/passwd")
            case "a name for a shell":
                (place / "$(x)").write_text("")
            case "a manifest":
                (place / "manifest.json").write_text("{}")

    with pytest.raises(AdapterDamaged, match="adapter"):
        shelf.add(save, MADE)
    assert (visible(folder), list(store.versions())) == ([], [])


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_nothing_and_says_so(shelf: AdapterShelf, folder: Path, error: Exception) -> None:
    def save(place: Path) -> None:
        (place / "adapter_config.json").write_text("{}")
        raise error

    with pytest.raises(EnvironmentFailure, match="is full") as caught:
        shelf.add(save, MADE)
    assert "checkpoint" in caught.value.hint
    assert visible(folder) == []


# -- using
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "manifest.json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "a link", "another beside it"])
def test_damage_is_found_before_use_and_named(shelf: AdapterShelf, folder: Path, name: str, how: str) -> None:
    version = shelf.add(saves(), MADE)
    path = folder / version.version / name
    data = path.read_bytes()
    match how:
        case "flipped":
            path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "gone":
            path.unlink()
        case "another beside it":
            path.with_name(f"{name}.bin").write_bytes(b"a pickle")
        case "a link":
            path.rename(folder.parent / "aside")
            path.symlink_to(folder.parent / "aside")
            if name == "manifest.json":  # it is believed for what it says, wherever it lies
                path.write_text("{}")
    with pytest.raises(AdapterDamaged, match=name) as caught:
        shelf.folder_of(version)
    assert "rollback" in caught.value.hint
    with pytest.raises(AdapterDamaged, match=name):
        shelf.promote(version.version)


def test_a_folder_that_is_a_link_out_of_the_registry_is_not_used_and_not_pruned(
    shelf: AdapterShelf, folder: Path, tmp_path: Path
) -> None:
    version = shelf.add(saves(), MADE)
    (folder / version.version).rename(tmp_path / "aside")
    (folder / version.version).symlink_to(tmp_path / "aside")
    with pytest.raises(AdapterDamaged, match="is a link"):
        shelf.promote(version.version)
    shelf.refuse(version.version)
    assert shelf.prune(0) == []
    assert (tmp_path / "aside/adapter_model.safetensors").is_file()


def test_files_that_fit_their_manifest_but_not_the_database_are_not_used(shelf: AdapterShelf, folder: Path) -> None:
    version, other = shelf.add(saves(), MADE), shelf.add(saves(b"other"), MADE)
    place = folder / version.version
    for path in (folder / other.version).iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    with pytest.raises(AdapterDamaged, match=r"manifest\.json"):
        shelf.folder_of(version)


def test_a_folder_name_from_a_damaged_database_leads_nowhere_else(shelf: AdapterShelf, store: SqlStore) -> None:
    version = shelf.add(saves(), MADE)
    with store._db.write() as c:
        c.exec_driver_sql("UPDATE policy_version SET adapter_path = '../..'")
    with pytest.raises(AdapterDamaged, match="no folder of ours"):
        shelf.folder_of(store.versions()[0])
    assert version.version


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "../v1-00000000"), ("parent", "main"), ("algo", 3), ("created", "2026-01-01T00:00:00"),
        ("created", "soon"), ("learner_run", 2**70), ("learner_run", True), ("files", {"../x": {}}), ("files", {}),
        ("format", 2), ("data", 7), ("base", 7),
    ],
)  # fmt: skip
def test_a_manifest_with_one_wrong_value_is_refused(shelf: AdapterShelf, folder: Path, key: str, value: object) -> None:
    path = folder / shelf.add(saves(), MADE).version / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(AdapterDamaged):
        adapter_shelf.read_manifest(path.parent)


# -- deciding
def test_promoted_refused_and_rolled_back_versions_stand_as_they_should(shelf: AdapterShelf, store: SqlStore) -> None:
    first, second, third = (kept(shelf, number) for number in (1, 2, 3))
    shelf.promote("v1", "better", {"gain": 0.3})
    shelf.refuse("v2", "no better")
    shelf.promote(third)
    assert [v.status for v in store.versions()] == ["retired", "refused", "promoted"]
    assert store.versions()[0].metrics["gain"] == 0.3
    restored = shelf.roll_back(third, "worse")
    assert restored is not None
    assert restored.version == first
    assert shelf.roll_back(first) is None
    with pytest.raises(StoreError, match="not in use"):
        shelf.roll_back(second)


def test_the_lineage_holds_parents_that_were_in_use_nearest_first(shelf: AdapterShelf, store: SqlStore) -> None:
    names: list[str] = []
    for number in range(5):
        names.append(kept(shelf, number, names[-1] if names else None))
    for number in (0, 1, 3, 4):
        shelf.promote(names[number])
    shelf.refuse(names[2])
    assert [v.version for v in shelf.lineage(shelf.find("v5"))] == [names[3], names[1], names[0]]
    with store._db.write() as c:  # no version is its own ancestor, unless the disk says so
        c.exec_driver_sql("UPDATE policy_version SET parent_id = 5 WHERE id = 1")
    assert len(shelf.lineage(shelf.find("v5"))) <= 4


# -- freeing room
def weights(folder: Path) -> set[str]:
    """Numbers of the versions whose files are there."""
    return {path.parent.name.split("-")[0] for path in folder.glob("*/adapter_model.safetensors")}


def test_files_of_refused_and_long_superseded_versions_are_removed_and_their_rows_stay(
    shelf: AdapterShelf, folder: Path, store: SqlStore
) -> None:
    for number in range(1, 9):
        kept(shelf, number)
    for number in (1, 2, 3, 4):
        shelf.promote(f"v{number}")
    for number in (5, 6):
        shelf.refuse(f"v{number}", "no better")
    before = {path: path.stat().st_size for path in folder.glob("*/*") if path.name != "manifest.json"}
    found = shelf.prune(2)
    assert weights(folder) == {"v2", "v3", "v4", "v7", "v8"}, "two for rollbacks, the one in use, two candidates"
    assert [each.version.version.split("-")[0] for each in found] == ["v1", "v5", "v6"]
    after = {path for path in folder.glob("*/*") if path.name != "manifest.json"}
    assert sum(each.bytes for each in found) == sum(size for path, size in before.items() if path not in after)
    assert len(store.versions()) == 8
    assert shelf.find("v5").reason == "no better"
    assert shelf.manifest_of(shelf.find("v1")).data == {}, "what it learned from is still known"
    with pytest.raises(AdapterDamaged, match="removed by `adapters prune`"):
        shelf.promote("v5")
    assert shelf.prune(2) == [], "once is enough"
    assert shelf.sweep() == ()


def test_nothing_is_removed_that_may_have_to_answer(shelf: AdapterShelf, folder: Path) -> None:
    first = kept(shelf, 1)
    second = kept(shelf, 2, first)
    refused = kept(shelf, 3, second)
    kept(shelf, 4, refused)
    at_work = kept(shelf, 5)
    for number in (1, 2, 4):
        shelf.promote(f"v{number}")
    for number in (3, 5):
        shelf.refuse(f"v{number}")
    shelf.prune(0, {at_work})
    assert weights(folder) == {"v2", "v4", "v5"}, "the parent that was in use answers where v4 is damaged"


def test_what_is_damaged_or_not_ours_is_not_removed(shelf: AdapterShelf, folder: Path, store: SqlStore) -> None:
    torn, strange = kept(shelf, 1), kept(shelf, 2)
    for name in (torn, strange):
        shelf.refuse(name)
    (folder / torn / "manifest.json").write_text("{")
    (folder / strange / "mine").mkdir()
    with store._db.write() as c:
        c.exec_driver_sql("INSERT INTO policy_version (version, status, adapter_path, adapter_hash, created_at) "
                          "VALUES ('v9-00000000', 'refused', '../..', 'x', 0)")  # fmt: skip
    assert shelf.prune(0) == []
    assert weights(folder) == {"v1", "v2"}


def test_a_rollback_passes_over_a_version_whose_files_are_gone(shelf: AdapterShelf) -> None:
    for number in (1, 2, 3):
        shelf.promote(kept(shelf, number))
    shelf.prune(1)
    restored = shelf.roll_back("v3")
    assert restored is not None
    assert restored.version.startswith("v2")
    assert shelf.roll_back("v2") is None, "the files of v1 are gone: the plain model answers"
    assert "prune" in shelf.find("v1").reason


# -- fixing
def test_what_a_killed_learner_left_is_swept_and_what_it_finished_is_listed(
    shelf: AdapterShelf, folder: Path, store: SqlStore
) -> None:
    first = kept(shelf, 1)
    second = shelf.add(saves(b"second"), Made(BASE, "grpo", first, {"sessions": ["a"]}, {"kl": 0.5}))
    with store._db.write() as c:  # as if it had been killed between the rename and the row
        c.exec_driver_sql("DELETE FROM policy_version WHERE version = ?", (second.version,))
    (folder / ".staging-0123").mkdir()
    (folder / ".staging-0123" / "adapter_model.safetensors").write_bytes(b"half")
    (folder / ".staging-link").symlink_to(folder.parent)
    (folder / ".staging-file").touch()
    (folder / "mine.txt").write_text("a user's")
    (folder / "v9-00000000").mkdir()
    assert shelf.sweep() == (second.version,)
    assert folder.parent.is_dir(), "what a link leads to stays"
    found = store.versions()[-1]
    assert (found.version, found.parent, found.status, found.reason) == (second.version, first, "candidate", FOUND)
    assert (found.digest, found.created_at, found.metrics) == (second.digest, second.created_at, second.metrics)
    assert visible(folder) == sorted([first, second.version, "mine.txt", "v9-00000000"])
    assert shelf.sweep() == ()


def test_a_version_that_is_being_made_is_not_swept_away(shelf: AdapterShelf, folder: Path) -> None:
    kept(shelf, 1)
    (folder / ".staging-0123").mkdir()
    handle = os.open(folder / ".lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        shelf.sweep()
        assert (folder / ".staging-0123").is_dir()
    finally:
        os.close(handle)
    shelf.sweep()
    assert not (folder / ".staging-0123").exists()


def test_a_learner_that_goes_on_after_it_was_killed_makes_no_second_version(shelf: AdapterShelf) -> None:
    first = shelf.add(saves(), MADE)
    assert shelf.add(saves(), MADE) == first
    assert shelf.add(saves(), Made(BASE, "grpo", parent=first.version)).version != first.version


# ---------------------------------------------------------------------- base names
REVISION = "0123456789abcdef0123456789abcdef01234567"
SNAPSHOT = f"/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-4B/snapshots/{REVISION}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Qwen/Qwen3-4B", SNAPSHOT, True),
        (f"{SNAPSHOT}/", "Qwen/Qwen3-4B", True),
        ("/cache/models--gpt2/snapshots/" + REVISION, "gpt2", True),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", False),
        ("Qwen3-4B", SNAPSHOT, False),
        ("/models/small", "small", False),
        ("/home/models--Qwen--Qwen3-4B/other", "Qwen/Qwen3-4B", False),
        ("", "", False),
    ],
)
def test_a_hubs_name_and_the_folder_that_it_was_fetched_to_are_one_model(one: str, other: str, same: bool) -> None:
    assert same_name(one, other) is same_name(other, one) is same


def test_a_model_of_a_hub_is_found_where_the_hub_keeps_it(tmp_path: Path) -> None:
    place = tmp_path / "hub" / "models--Qwen--Qwen3-4B"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(f"{REVISION}\n")
    assert cached("Qwen/Qwen3-4B", {"HF_HOME": str(tmp_path)}) is None, "named, and not fetched"
    snapshot = place / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    assert cached("Qwen/Qwen3-4B", {"HF_HOME": str(tmp_path)}) == snapshot
    assert cached("Qwen/Qwen3-4B", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == snapshot
    assert cached("Qwen/Qwen3-4B", {"XDG_CACHE_HOME": str(tmp_path)}) is None
    (place / "refs" / "main").write_text("../../..")
    assert cached("Qwen/Qwen3-4B", {"HF_HOME": str(tmp_path)}) is None


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/etc", "a/b/c", "a b", "-rf", "../models--x"])
def test_what_a_server_calls_its_model_leads_to_no_other_folder(tmp_path: Path, name: str) -> None:
    assert cached(name, {"HF_HOME": str(tmp_path)}) is None


# ---------------------------------------------------------------------- rollback
OPTIONS = RollbackOptions(resamples=1000)
SESSIONS = 100


def rate(**change: float) -> tuple[float, float]:
    """How often versions are rolled back, and after how many experiments in the middle."""
    stream, found = np.random.default_rng(7), []
    for _ in range(SESSIONS):
        before, now = lived(stream, Life(**change))
        found.append(rolled_back(now, before, OPTIONS))
    fell = [count for count in found if count]
    return len(fell) / SESSIONS, float(np.median(fell)) if fell else math.nan


def test_a_version_that_is_as_good_or_better_is_left_alone() -> None:
    assert rate()[0] <= 0.05
    assert rate(gain=0.4, bad=0.05)[0] <= 0.01


@pytest.mark.parametrize("drift", [{"slope": -0.005}, {"slope": -0.01}, {"decay": 60.0}])
def test_a_version_is_not_blamed_for_a_session_in_which_less_is_left_to_improve(drift: dict[str, float]) -> None:
    """Rewards fell by 0.3, 0.6 or 1.3 over the 60 experiments before it, and go on falling.

    At most 5% in the long run (``benchmarks/rollback.py``): of a hundred sessions up to 9 by chance.
    """
    assert rate(**drift)[0] <= 0.09


@pytest.mark.parametrize(("bad", "least", "most"), [(0.9, 0.95, 16), (0.6, 0.5, 64)])
def test_a_version_that_crashes_more_often_goes_back_within_a_few_experiments(
    bad: float, least: float, most: int
) -> None:
    """One in five of the version before did."""
    share, count = rate(bad=bad)
    assert share >= least and count <= most


def test_a_fall_that_is_sure_but_small_changes_nothing() -> None:
    verdict = judge([0.45] * 64 + [0.46] * 64, [0.5, 0.51] * 32)
    assert not verdict.fell and verdict.p_value < 0.001
    assert not judge([0.0] * 64, [0.0] * 64).fell
    assert "16 experiments" in judge([-2.0] * 16, [0.5] * 16).reason


def test_too_few_experiments_say_nothing() -> None:
    for now, before in (([], [1.0] * 40), ([-2.0] * 15, [1.0] * 40), ([-2.0] * 40, [1.0] * 11), ([-2.0] * 40, [])):
        verdict = judge(now, before)
        assert (verdict.fell, verdict.looked, verdict.reason) == (False, 0, "")


def test_there_is_a_last_look() -> None:
    looks = [last_look(count) for count in (0, 15, 16, 31, 32, 64, 128, 256, 512, 10_000)]
    assert looks == [0, 0, 1, 1, 2, 3, 4, 4, 4, 4]
    good, bad = [1.0, 0.9] * 128, [-2.0] * 256
    assert not judge(good + bad, [1.0, 0.9] * 20).fell, "what comes after it is for the next learning"

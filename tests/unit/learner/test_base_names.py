"""One model has several names; two models never share one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.learner.versions.base_names import cached, same_name

REVISION = "0123456789abcdef0123456789abcdef01234567"
SNAPSHOT = f"/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-4B/snapshots/{REVISION}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("Qwen/Qwen3-4B", SNAPSHOT),
        (f"{SNAPSHOT}/", "Qwen/Qwen3-4B"),
        ("/models/small/", "/models/small"),
        ("/cache/models--gpt2/snapshots/" + REVISION, "gpt2"),
    ],
)
def test_a_name_of_a_hub_and_the_folder_that_it_was_fetched_to_are_one_model(one: str, other: str) -> None:
    assert same_name(one, other)
    assert same_name(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", SNAPSHOT),
        ("Qwen3-4B", SNAPSHOT),
        ("/models/a/small", "/models/b/small"),
        ("/models/small", "small"),
        ("/home/models--Qwen--Qwen3-4B/other", "Qwen/Qwen3-4B"),
        ("", ""),
        (" ", "/"),
    ],
)
def test_names_that_only_look_alike_are_not_one_model(one: str, other: str) -> None:
    assert not same_name(one, other)


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

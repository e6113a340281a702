"""The commands over versions of the local policy: what they show, what they change, and how they refuse."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.fakes.models import saves
from tests.unit.cli.conftest import HOSTILE, Command

BASE = BaseModel("/models/small", "m" * 64, "t" * 64, "c" * 64)


@pytest.fixture
def shelf(repository: Path) -> Iterator[AdapterShelf]:
    """Three versions, of which the first is in use and the second refused."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        shelf = AdapterShelf(layout.adapters_dir(repository), store, lambda: datetime.now(UTC))
        run = store.open_learner_run("grpo", "replay", 217, datetime.now(UTC))
        parent = None
        for number in range(3):
            made = Made(BASE, "grpo", parent, metrics={"gain": 0.25}, learner_run=run.id)
            parent = shelf.add(saves(b"%d" % number), made).version
        shelf.promote("v1", "better by 0.25")
        shelf.refuse("v2", HOSTILE)
        yield shelf


def listed(command: Command) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(command("adapters", "list", "--json").out)
    return found


def test_versions_are_listed_with_where_they_stand_and_why(shelf: AdapterShelf, command: Command) -> None:
    answer = command("adapters", "list")
    head, *rows = answer.out.splitlines()
    assert head.split()[:4] == ["version", "status", "by", "from"]
    assert [row.split()[1:3] for row in rows] == [["promoted", "grpo"], ["refused", "grpo"], ["candidate", "grpo"]]
    assert rows[0].endswith("better by 0.25")
    assert not any(unicodedata.category(c) == "Cc" for c in answer.out.replace("\n", ""))
    found, versions = listed(command), [shelf.find(name) for name in ("1", "2", "3")]
    assert [v["version"] for v in found] == [version.version for version in versions]
    assert [v["parent"] for v in found] == [None, versions[0].version, versions[1].version]
    assert found[0]["promoted_at"] == str(versions[0].promoted_at).replace(" ", "T")
    assert found[0]["metrics"] == {"gain": 0.25}
    assert [(v["damage"], v["session"]) for v in found] == [("", None)] * 3


def test_a_version_whose_files_are_torn_is_shown_as_damaged(
    repository: Path, shelf: AdapterShelf, command: Command
) -> None:
    (layout.adapters_dir(repository) / shelf.find("2").version / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors" in str(listed(command)[1]["damage"])
    assert "damaged: " in command("adapters", "list").out.splitlines()[2]
    refused = command("adapters", "promote", "v2")
    assert (refused.code, refused.out) == (1, "")
    assert "adapter_model.safetensors" in refused.err
    assert [v["status"] for v in listed(command)] == ["promoted", "refused", "candidate"]


def test_a_version_is_promoted_and_rolled_back_to_the_one_before_and_to_none(
    shelf: AdapterShelf, command: Command
) -> None:
    third, first = shelf.find("3").version, shelf.find("1").version
    promoted = command("adapters", "promote", "3")
    assert promoted.code == 0
    assert promoted.out == "", "messages are no data"
    assert third in promoted.err and "from the next experiment" in promoted.err
    assert "already" in command("adapters", "promote", third).err
    assert [v["status"] for v in listed(command)] == ["retired", "refused", "promoted"]
    assert first in command("adapters", "rollback").err
    assert "the plain model" in command("adapters", "rollback").err
    assert [v["status"] for v in listed(command)] == ["refused", "refused", "refused"]
    none = command("adapters", "rollback")
    assert none.code == 2 and "adapters promote" in none.err


def test_files_that_nothing_needs_are_removed_and_the_versions_stay_listed(
    repository: Path, shelf: AdapterShelf, command: Command
) -> None:
    third = shelf.find("3").version
    shelf.promote("v3")
    shelf.promote("v1")
    weights = layout.adapters_dir(repository) / shelf.find("2").version / "adapter_model.safetensors"
    look = json.loads(command("adapters", "prune", "--keep", "1", "--dry-run", "--json").out)
    assert [(each["version"], each["status"]) for each in look["removed"]] == [(shelf.find("2").version, "refused")]
    assert look["dry_run"]
    assert weights.exists()
    done = command("adapters", "prune", "--keep", "1")
    assert (done.code, done.out) == (0, ""), "messages are no data"
    assert "files of 1 version removed" in done.err
    assert not weights.exists()
    assert [bool(v["pruned"]) for v in listed(command)] == [False, True, False]
    assert [v["damage"] for v in listed(command)] == ["", "", ""], "removed on purpose"
    assert "files removed 20" in command("adapters", "list").out.splitlines()[2]
    assert "there is nothing to remove" in command("adapters", "prune", "--keep", "1").err
    assert third in command("adapters", "rollback").err
    assert command("adapters", "prune", "--keep", "-1").code == 2

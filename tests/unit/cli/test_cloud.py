"""What sessions have left in a cloud is shown, and ended when asked."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from autoresearchd.executor.cloud.rental import prefix_of
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.fakes.rental import stand_in
from tests.unit.cli.conftest import Command, add_session

OTHER = "autoresearchd-t-000000-1"


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in keeps its machines: one of a session ``t`` of another repository, one that is not ours."""
    folder = stand_in(tmp_path, monkeypatch)
    for name in (OTHER, "autoresearchd-mine"):
        rent(folder, name)
    return folder


def rent(folder: Path, name: str) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"status": "UP", "launched_at": time.time() - 1800}))


def left(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))


def test_what_is_rented_is_shown_with_what_it_costs(sky: Path, command: Command) -> None:
    [machine] = json.loads(command("cloud", "list", "--json").out)
    assert (machine["name"], machine["session"], machine["state"]) == (OTHER, "t", "UP")
    assert machine["usd"] == pytest.approx(18.0, abs=1.0)
    assert time.time() - datetime.fromisoformat(machine["since"]).timestamp() == pytest.approx(1800, abs=60)
    assert "$36.00" in command("cloud", "list").out


def test_machines_are_ended_only_with_a_yes_and_never_those_that_are_not_ours(
    sky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "--yes" in command("cloud", "down", "t").err
    assert "nothing is left" in command("cloud", "down", "x", "--yes").err
    assert command("cloud", "down", "t", "--all").code == 2
    assert left(sky) == ["autoresearchd-mine", OTHER]
    assert command("cloud", "down", "--all", "--yes").code == 0
    assert left(sky) == ["autoresearchd-mine"]


def test_in_a_repository_only_the_machines_of_its_own_session_are_ended(
    sky: Path, repository: Path, command: Command
) -> None:
    """Another repository may have a session of the same tag, as it is made of the date."""
    add_session(repository, "t")
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        own = f"{prefix_of(store.session('t'))}1"
    rent(sky, own)
    with SessionLock(layout.lock_path(repository, "t"), "t"):
        assert "is held by" in command("cloud", "down", "t", "--yes").err
    assert command("cloud", "down", "--yes").code == 0
    assert left(sky) == ["autoresearchd-mine", OTHER]

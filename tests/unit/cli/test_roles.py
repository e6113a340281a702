"""With roles at work a user sees who proposed what, and which of them earn their turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoresearchd.domain.labels import Label, Status
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import Command, add_experiment, add_session

HOSTILE = "da\x1b[31mta\x07\n"


@pytest.fixture(autouse=True)
def roles_at_work(repository: Path) -> None:
    """A session in which three roles took turns."""
    add_session(repository, "specialists")
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("specialists").id
        for role, value, status, reward in (
            ("schedule", 0.98, Status.KEEP, 2.0),
            ("optimiser", 0.99, Status.DISCARD, -0.5),
            ("schedule", 0.985, Status.DISCARD, -1.0),
            (HOSTILE, 0.99, Status.DISCARD, None),
        ):
            label = Label.NONE if status is Status.KEEP else Label.NO_GAIN
            add_experiment(store, session, [value], status, label, "an edit", role=role, reward=reward)


def test_the_status_tells_how_each_role_does(command: Command) -> None:
    lines = command("status", "--session", "specialists").out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.split()[:2] == ["role", "tried"])
    rows = [line.split() for line in lines[begin + 1 : begin + 4]]
    assert ["optimiser", "1", "0", "-0.500"] in rows
    assert ["schedule", "2", "1", "+0.500"] in rows


def test_the_experiments_of_one_role_can_be_listed_and_its_newest(command: Command) -> None:
    of_role = ("experiments", "--json", "--session", "specialists", "--role", "schedule")
    assert [e["experiment"] for e in json.loads(command(*of_role).out)] == [5, 7]
    assert [e["experiment"] for e in json.loads(command(*of_role, "--last", "1").out)] == [7]
    assert [e["experiment"] for e in json.loads(command(*of_role, "--status", "keep").out)] == [5]


def test_a_role_that_has_proposed_nothing_is_refused_with_those_that_have(command: Command) -> None:
    answer = command("experiments", "--session", "specialists", "--role", "shedule")
    assert answer.code == 2
    assert "optimiser" in answer.err
    assert "start --roles" in command("experiments", "--session", "mar8", "--role", "schedule").err

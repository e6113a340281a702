"""A session answers with the version that is promoted for its model, whole, and no longer than it pays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.app.compose import make_clients
from autoresearchd.app.learning import prune
from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import SessionLocked
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter, VersionStatus
from autoresearchd.learner.learner_process import hold_learner_lock
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.learner.versions.live_versions import LiveVersions
from autoresearchd.models.model_files import base_model
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.contract.client_contract import QUESTION
from tests.fakes.model_server import ScriptedServer
from tests.fakes.model_turns import loads
from tests.fakes.models import saves
from tests.fakes.stores import open_store
from tests.unit.learner.sessions import make_root
from tests.unit.store.driver import AT, Driver, new_proposal, new_session

BASE = BaseModel("/models/small", "m" * 64, "t" * 64, "c" * 64)
OTHER = BaseModel("/models/other", "n" * 64, "t" * 64, "c" * 64)
WEIGHTS = "adapter_model.safetensors"
GOOD, BAD = [0.5, 0.3, 0.6, 0.2] * 10, [-2.0, -2.0, 0.1, -2.0] * 10


class Bench:
    """A session that answers with versions of its own making."""

    def __init__(self, store: SqlStore, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.now = AT
        self.told: list[str] = []
        session = store.create_session(new_session(), AT)
        store.open_segment(session.id, "f0", "start", "cpu", AT)
        self.lab = Driver(store, session.id)
        self.shelf = AdapterShelf(folder, store, self.tick)
        self.live = self.restarted()

    def restarted(self, place: Path | None = None) -> LiveVersions:
        return LiveVersions(self.shelf, self.store, self.lab.id, "local:m", self.told.append, place=place)

    def tick(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now

    def version(self, parent: str | None = None, base: BaseModel = BASE, *, promote: bool = True) -> str:
        version = self.shelf.add(saves(f"{self.now} {base.name}".encode()), Made(base, "grpo", parent)).version
        if promote:
            self.shelf.promote(version)
        return version

    def answers(self, base: BaseModel = BASE) -> str:
        """The version that would answer now, empty for the plain model."""
        served = self.live.in_use(base)
        assert served is None or served == ServedAdapter(served.version, self.folder / served.version)
        return "" if served is None else served.version

    def earn(self, version: str, rewards: Sequence[float | None], policy: str = "local:m") -> None:
        """Experiments that a version proposed."""
        for reward in rewards:
            e = self.store.open_experiment(self.lab.id, parent="a" * 40, segment=0, at=self.tick())
            self.lab.propose(e, replace(new_proposal(e.number), adapter=version, policy=policy))
            self.lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 1.0, reward=reward))

    def damage(self, version: str, name: str = WEIGHTS) -> None:
        (self.folder / version / name).write_text("torn")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_store(tmp_path / "state.db") as store:
        yield Bench(store, tmp_path / "adapters")


# -- which answers
def test_the_promoted_version_answers_from_the_next_look_on(bench: Bench) -> None:
    assert bench.answers() == ""
    first = bench.version(promote=False)
    assert bench.answers() == "", "a candidate does not answer"
    bench.shelf.promote(first)
    assert bench.answers() == first
    second = bench.version(first)
    assert bench.answers() == second
    bench.shelf.roll_back(second)
    assert bench.answers() == first
    bench.shelf.roll_back(first)
    assert bench.answers() == ""
    assert bench.told == []


def test_each_model_has_its_own_version_and_never_that_of_another(bench: Bench) -> None:
    first = bench.version()
    assert bench.answers(OTHER) == ""
    second = bench.version(base=OTHER)
    assert (bench.answers(), bench.answers(OTHER)) == (first, second)
    for change in ({"model_hash": "x" * 64}, {"tokenizer_hash": "x" * 64}, {"template_hash": "x" * 64}):
        assert bench.answers(replace(BASE, **change)) == ""
    assert bench.answers(replace(BASE, template_hash=None)) == first, "what is not known is not another"


def written_model(place: Path, weights: bytes) -> BaseModel:
    """A folder with the files of a model that hashes are taken of."""
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(weights)
    return base_model(place)


def test_the_folder_that_a_user_names_for_a_server_says_which_model_it_has(bench: Bench, tmp_path: Path) -> None:
    mine = written_model(tmp_path / "mine", b"weights")
    version = bench.version(base=mine)
    assert bench.answers(BaseModel("served")) == ""
    assert "learn: {model: DIR}" in bench.told[-1], "how to say that they are the same"
    named = bench.restarted(tmp_path / "mine")
    served = named.in_use(BaseModel("served"))
    assert served is not None
    assert served.version == version
    assert named.known(BaseModel("served")).model_hash == mine.model_hash, "which its answers are stored with"
    assert bench.restarted(tmp_path / "gone").in_use(BaseModel("served")) is None
    assert any(str(tmp_path / "gone") in line for line in bench.told)


# -- damage
def test_a_damaged_version_is_replaced_by_the_nearest_whole_parent_that_was_in_use(bench: Bench) -> None:
    first = bench.version()
    refused = bench.version(first, promote=False)
    bench.shelf.refuse(refused)
    third = bench.version(refused)
    fourth = bench.version(third)
    bench.damage(fourth)
    bench.damage(third, "adapter_config.json")
    assert bench.answers() == first
    assert bench.answers() == first
    assert [line.split()[1] for line in bench.told] == [fourth, third, first]
    assert WEIGHTS in bench.told[0]
    assert bench.shelf.find(fourth).status is VersionStatus.PROMOTED, "the user decides what becomes of it"


# -- what it earns
def test_a_version_that_earns_less_is_rolled_back_and_the_user_is_told_why(bench: Bench) -> None:
    first = bench.version()
    bench.earn(first, GOOD)
    second = bench.version(first)
    bench.earn(second, BAD[:15])
    assert bench.answers() == second, "too few to say"
    bench.earn(second, BAD[:1])
    assert bench.answers() == first
    assert bench.shelf.find(second).status is VersionStatus.REFUSED
    assert "live reward fell" in bench.shelf.find(second).reason
    assert len(bench.told) == 1
    assert first in bench.told[0]


def test_what_others_earned_is_not_held_against_a_version(bench: Bench) -> None:
    bench.earn("", [3.0] * 30, policy="search")
    bench.earn("", [0.0, 0.1] * 10)
    version = bench.version()
    bench.earn(version, [0.0, 0.1] * 10)
    bench.earn("", [-2.0] * 30, policy="search")
    bench.earn(version, [None] * 10)
    assert bench.answers() == version


# -- freeing room
def test_an_experiment_under_way_keeps_the_version_that_proposed_it(tmp_path: Path) -> None:
    root = make_root(tmp_path / "here")
    database = layout.database_path(root)
    database.parent.mkdir(parents=True)
    with SqlStore.open(f"sqlite:///{database}") as store:
        bench = Bench(store, layout.adapters_dir(root))
        first, second = bench.version(promote=False), bench.version(promote=False)
        for version in (first, second):
            bench.shelf.refuse(version)
        bench.earn(second, [0.1])
        e = store.open_experiment(bench.lab.id, parent="a" * 40, segment=0, at=bench.tick())
        bench.lab.propose(e, replace(new_proposal(e.number), adapter=first, policy="local:m"))
        assert [each.version.version for each in prune(root, 0, dry_run=True)] == [second]
        assert [each.version.version for each in prune(root, 0)] == [second]
        bench.lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 1.0, reward=0.0))
        assert [each.version.version for each in prune(root, 0)] == [first]
        with hold_learner_lock(root / ".git/autoresearchd/locks"), pytest.raises(SessionLocked):
            prune(root, 0)


# -- who asks
def test_an_agent_asks_the_plain_model_since_versions_are_not_judged_as_agents(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    version = bench.version(base=replace(BASE, name="m"))
    answered = []
    with ScriptedServer(model="m", lora=loads()) as scripted:
        settings = ModelSettings(local={"base_url": scripted.url})
        for policy in ("local:m", "agent:local:m"):
            [client] = make_clients(parse_spec(policy), settings, tmp_path, {}, bench.live, bench.told.append)
            answered.append(client.ask(QUESTION, threading.Event()).adapter)
    assert answered == [version, ""]

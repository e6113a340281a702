"""From an adapter that was trained to the next answer: kept, promoted, loaded by the client, damaged, rolled back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.learner.versions.live_versions import LiveVersions
from autoresearchd.models.client import Question
from autoresearchd.models.transformers_client import TransformersClient
from autoresearchd.store.repository import SqlStore
from tests.unit.learner import tiny
from tests.unit.store.driver import AT, new_session

pytestmark = pytest.mark.slow

NEVER = threading.Event()
QUESTION = Question(({"role": "user", "content": "lr = 0.1"},), max_tokens=12, temperature=0.0, seed=1)


@dataclass
class Bench:
    """A model with a shelf of versions, and a client that answers with the one in use."""

    model: Path
    store: SqlStore
    folder: Path
    told: list[str] = field(default_factory=list)
    now: datetime = datetime(2026, 1, 2, tzinfo=UTC)

    def __post_init__(self) -> None:
        session = self.store.create_session(new_session(), AT)
        self.shelf = AdapterShelf(self.folder, self.store, self.tick)
        live = LiveVersions(self.shelf, self.store, session.id, "local:m", self.told.append)
        self.client = TransformersClient(self.model, adapters=live, warn=self.told.append)

    def tick(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now

    def version(self, seed: int) -> str:
        trained = LocalModel.load(self.model, ModelOptions(rank=4, alpha=8, value_head=True))
        trained.load_adapter_state(tiny.state(trained, seed))
        return self.shelf.add(trained.save, Made(BaseModel(str(self.model), *trained.hashes), "grpo")).version

    def ask(self) -> tuple[str, tuple[float, ...] | None]:
        """Who answered the next experiment, and its log-probabilities."""
        self.client.renew()
        reply = self.client.ask(QUESTION, NEVER)
        return reply.adapter, reply.logprobs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bench(model: Path, tmp_path: Path) -> Iterator[Bench]:
    with SqlStore.open(f"sqlite:///{tmp_path / 'state.db'}") as store:
        yield Bench(model, store, tmp_path / "adapters")


def test_promoted_it_answers_from_the_next_experiment_and_rolled_back_no_more(bench: Bench) -> None:
    plain = bench.ask()
    assert plain[0] == ""
    first, second = bench.version(1), bench.version(2)
    assert bench.ask() == plain, "a candidate does not answer"
    bench.shelf.promote(first)
    reply = bench.client.ask(QUESTION, NEVER)
    assert (reply.adapter, reply.logprobs) == plain, "not in the middle of an experiment"
    with_first = bench.ask()
    assert with_first[0] == first
    assert with_first[1] != plain[1]
    bench.shelf.promote(second)
    with_second = bench.ask()
    assert with_second[0] == second
    assert with_second[1] not in (plain[1], with_first[1])
    bench.shelf.roll_back(second)
    assert bench.ask() == with_first
    bench.shelf.roll_back(first)
    assert bench.ask() == plain, "nothing of an adapter is left in the model"
    assert bench.told == []


def test_whole_files_that_peft_cannot_load_leave_the_plain_model_as_it_was(bench: Bench) -> None:
    plain = bench.ask()

    def save(place: Path) -> None:
        (place / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}')
        (place / "adapter_model.safetensors").write_bytes(b"no weights")

    base = bench.shelf.manifest_of(bench.shelf.find(bench.version(1))).base
    version = bench.shelf.add(save, Made(base, "grpo")).version
    bench.shelf.promote(version)
    for _ in range(2):
        assert bench.ask() == plain
    assert len([line for line in bench.told if version in line]) == 1

"""One command from a real session's log to a version that answers, or to one that is refused with its reasons."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.app.learning import learn, promote
from autoresearchd.app.models.spending import SessionAnswers
from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import MissingCapability, SessionLocked, StoreError, UsageError
from autoresearchd.domain.policy_versions import BaseModel, LearnerStatus, VersionStatus
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.learner.data.read_sessions import TRAINED
from autoresearchd.learner.learn import LearnRequest
from autoresearchd.learner.learner_process import hold_learner_lock
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.loop.context import SystemClock
from autoresearchd.loop.proposing.proposals import EditCheck
from autoresearchd.models.client import Message, ModelClient, Question, Reply
from autoresearchd.models.model_files import base_model
from autoresearchd.policy.model_policy import ModelPolicy
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import sqlite_url
from tests.fakes.models import OpenPurse, saves
from tests.integration.bench import TASK, Bench
from tests.integration.held_out import older
from tests.unit.learner import tiny

PROGRAM = "SCALE = 1.0\nprint('score:', (SCALE - 2.0) ** 2)\n"


class Spoken(ModelClient):
    """A model that says what a script has, in the tokens of another model, as if that one had drawn them."""

    name = "m"

    def __init__(self, model: LocalModel, place: Path, texts: Sequence[str]) -> None:
        self._model, self._base, self._texts, self._asked = model, base_model(place), list(texts), 0

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        text = self._texts[self._asked % len(self._texts)]
        self._asked += 1
        ids = self._model.tokens(text)
        return Reply(
            text,
            "m",
            Cost(0.0, 100, len(ids), 0.1),
            token_ids=ids,
            logprobs=(-1.0,) * len(ids),
            sampling={"temperature": 1.0},
            model_hash=self._base.model_hash,
            tokenizer_hash=self._base.tokenizer_hash,
            template_hash=self._base.template_hash,
        )

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return sum(len(message["content"]) for message in messages)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sized_model(tmp_path_factory.mktemp("model"))


def sized_model(folder: Path) -> Path:
    """A tiny random model with room for a brief prompt."""
    config = tiny.write_model(folder) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 4096}))
    return folder


def researched(folder: Path, place: Path, texts: Sequence[str]) -> Bench:
    """A session in which a model said all of the texts, one for each experiment."""
    bench = Bench(folder, TASK, PROGRAM)
    check = EditCheck(bench.task, bench.store, bench.session.id, bench.workspace().pristine(bench.session.base_commit))
    bench.policy = ModelPolicy(
        [Spoken(LocalModel.load(place), place, texts)],
        ModelSettings(prompt="brief", reasks=0, retries=0),
        name="local:m",
        answers=SessionAnswers(bench.store, bench.session.id, SystemClock()),
        purse=OpenPurse(),
        check=check.legal,
    )
    bench.run(len(texts))
    return bench


@dataclass(frozen=True)
class Copy:
    """A copy of a session for one test."""

    root: Path
    store: SqlStore


@pytest.fixture(scope="module")
def mixed(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session in which a model said all sorts of things."""
    bench = researched(tmp_path_factory.mktemp("mixed"), place, MIXED)
    bench.close()
    return bench.root


@pytest.fixture
def session(mixed: Path, tmp_path: Path) -> Iterator[Copy]:
    root = Path(shutil.copytree(mixed, tmp_path / "project", symlinks=True))
    with SqlStore.open(sqlite_url(root / ".git/autoresearchd/state.db")) as store:
        yield Copy(root, store)


def request(place: Path, algo: str = "grpo", steps: int = 2, **options: str) -> LearnRequest:
    usual = {"states": "20", "count": "2", "max_tokens": "16", "micro": "8", "device": "cpu"}
    return LearnRequest(algo, model=str(place), steps=steps, options={**usual, **options})


MIXED = ("SCALE = 1.5", "SCALE = 9.0", "a higher one", "SCALE = 1.6", "SCALE = 1.5", "SCALE = 0.1") * 4


@pytest.mark.parametrize("algo", ["grpo", "ppo", "sdpo"])
def test_each_algorithm_ends_in_a_version_with_the_reasons_for_its_fate(algo: str, place: Path, session: Copy) -> None:
    killed = session.store.open_learner_run("grpo", "replay", 10, SystemClock().now())
    told: list[str] = []
    outcome = learn(request(place, algo), session.root, told.append)
    assert outcome["status"] == "refused"
    assert outcome["steps"] == 2
    assert any("too few held-out states" in reason for reason in outcome["reasons"])
    version = session.store.versions()[-1]
    assert (version.version, version.status, version.algo) == (outcome["version"], VersionStatus.REFUSED, algo)
    assert any("2/2" in line for line in told), "progress is shown"
    before, run = session.store.learner_runs()
    assert (before.id, before.status) == (killed.id, LearnerStatus.FAILED), "a run whose process was killed"
    assert (run.status, run.steps, run.algo) == (LearnerStatus.DONE, 2, algo)
    curves = (session.root / f".autoresearchd/learner/{run.id}/curves.jsonl").read_text().splitlines()
    *steps, gate = [json.loads(line) for line in curves]
    assert [line["step"] for line in (*steps, gate)] == [1, 2, 2]
    assert gate == {"step": 2} | {f"gate/{name}": value for name, value in outcome["figures"].items()}
    assert len(gate) > 1
    left = [path.name for path in (session.root / ".git/autoresearchd/judging").iterdir()]
    assert left == ["lock"], "nothing of the judging is left"


@pytest.mark.slow
def test_what_is_surely_better_on_held_out_states_is_promoted_and_answers(place: Path, tmp_path: Path) -> None:
    """The random model never writes an edit; the one that has imitated the kept answers nearly always does."""
    bench = researched(tmp_path, place, tuple(f"SCALE = {1 + 0.01 * n:.2f}" for n in range(1, 45)))
    told: list[str] = []
    constants = {"learning_rate": "0.005", "batch": "8", "neighbours": "none", "most_kl": "none", "share": "0.5"}
    gate = {"states": "22", "temperature": "0.05", "judge": "checks", "max_tokens": "14"}
    outcome = learn(request(place, steps=80, **constants, **gate), bench.root, told.append)
    assert outcome["status"] == "promoted", outcome["reasons"]
    assert "groups has rewards that differ" in outcome["cold_start"], "single answers alone"
    assert outcome["figures"]["valid_old"] < 0.2 < 0.8 < outcome["figures"]["valid_new"]
    assert outcome["figures"]["reward_low"] > 0
    [version] = bench.store.promoted_versions()
    assert (version.version, version.status) == (outcome["version"], VersionStatus.PROMOTED)
    assert f"{version.version} promoted: the policy local answers with it from the next experiment on" in told
    curves = (bench.root / f".autoresearchd/learner/{bench.store.learner_runs()[-1].id}/curves.jsonl").read_text()
    assert json.loads(curves.splitlines()[-1])["gate/valid_new"] == outcome["figures"]["valid_new"]


def test_a_child_goes_on_from_the_version_in_use_and_is_not_examined_on_what_that_learned_from(
    place: Path, session: Copy
) -> None:
    told: list[str] = []
    first = learn(request(place, share="0.1"), session.root, told.append)
    assert not any(TRAINED in line for line in told)
    promote(session.root, first["version"])
    second = learn(request(place, share="0.5"), session.root, told.append)
    assert (first["parent"], second["parent"]) == (None, first["version"])
    line = next(line for line in told if TRAINED in line)
    assert line.endswith(f"held-out states are not asked about: {TRAINED}")
    assert told.index(line) < next(i for i, text in enumerate(told) if second["version"] in text), "before it learned"
    assert any(TRAINED in reason for reason in second["reasons"])
    assert second["figures"]["not_asked"] > 0
    assert [version.version for version in session.store.promoted_versions()] == [first["version"]]


def test_a_held_out_session_that_goes_is_left_out_and_the_version_is_kept_with_the_reason(
    place: Path, session: Copy, tmp_path: Path
) -> None:
    """On the way it is told which model the version in use is for: another one."""
    other = researched(tmp_path / "other", place, MIXED[:10]).root

    shelf = AdapterShelf(session.root / ".git/autoresearchd/adapters", session.store, SystemClock().now)
    version = shelf.add(saves(), Made(BaseModel("/models/other", "f" * 64), "grpo")).version
    shelf.promote(version)
    shutil.rmtree(other / ".git/autoresearchd/pristine")
    shutil.rmtree(other / ".git/objects")
    (other / ".git/objects").mkdir()
    told: list[str] = []
    outcome = learn(replace(request(place, judge="checks"), places=(other,)), session.root, told.append)
    assert outcome["status"] == "refused"
    said = next(i for i, line in enumerate(told) if "cannot be used" in line)
    assert said < next(i for i, line in enumerate(told) if "1/2" in line), "before a step is taken"
    assert any("cannot be used" in reason for reason in outcome["reasons"])
    assert any(f"{version} for /models/other (hash ffffffff)" in line for line in told)


def test_bad_requests_are_told_before_anything_is_loaded(place: Path, session: Copy, tmp_path: Path) -> None:
    asked, told = request(place), list[str]()
    another = tiny.write_model(tmp_path / "another", seed=1)
    for wrong, words in (
        (replace(asked, options={"learning_rat": "1"}), "no such constant"),
        (replace(asked, options={"batch": "many"}), "a whole number"),
        (replace(asked, model="./nowhere"), "there is nothing at"),
        (replace(asked, model=""), "no model is named"),
        (replace(asked, model="../.."), "holds no model"),
        (replace(asked, model=str(another)), "none of 24 answers can be learned from"),
        (request(place, max_length="16"), "max_length=16 leaves nothing to learn from"),
    ):
        with pytest.raises(UsageError, match=words):
            learn(wrong, session.root, told.append)
    assert not any("of memory are needed" in line for line in told)
    assert session.store.learner_runs()[-1].status is LearnerStatus.FAILED
    with (
        hold_learner_lock(session.root / ".git/autoresearchd/locks"),
        pytest.raises(SessionLocked, match="a learner is at work"),
    ):
        learn(asked, session.root, print)
    with pytest.raises(MissingCapability, match="not installed"):
        learn(replace(asked, options={"trackers": "wandb"}), session.root, print)
    assert session.store.versions() == []


def test_the_database_of_another_version_elsewhere_is_not_changed_and_the_command_that_would_is_named(
    place: Path, session: Copy, mixed: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(mixed, tmp_path / "other", symlinks=True))
    database = other / ".git/autoresearchd/state.db"
    before = older(database)
    with pytest.raises(StoreError, match="was written by an older version") as refused:
        learn(replace(request(place), places=(other,)), session.root, print)
    assert "autoresearchd resume in its repository upgrades it" in refused.value.hint
    assert database.read_bytes() == before

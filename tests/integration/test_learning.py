"""One command from a real session's log to a version that answers, or to one that is refused with its reasons."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.app.learning import learn, promote
from autoresearchd.app.models.spending import SessionAnswers
from autoresearchd.domain.errors import MissingCapability, SessionLocked, StoreError, UsageError
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.policy_versions import BaseModel, LearnerStatus, VersionStatus
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.learner.data.read_sessions import TRAINED
from autoresearchd.learner.learn_options import LearnRequest
from autoresearchd.learner.learner_process import hold_learner_lock
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.learner.versions.base_models import base_model
from autoresearchd.loop.context import SystemClock
from autoresearchd.loop.proposing.proposals import EditCheck
from autoresearchd.loop.session import Backoff, SessionLoop
from autoresearchd.models.client import Message, Question, Reply
from autoresearchd.policy.model_policy import ModelPolicy
from tests.fakes.models import OpenPurse
from tests.integration.bench import TASK, Bench
from tests.integration.held_out import older
from tests.unit.learner import tiny

PROGRAM = "SCALE = 1.0\nprint('score:', (SCALE - 2.0) ** 2)\n"


class Spoken:
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
    limits = Limits(max_experiments=len(texts))
    SessionLoop(bench.laboratory(), limits, backoff=Backoff(first=0.0)).run()
    return bench


def request(place: Path, algo: str = "grpo", steps: int = 2, **options: str) -> LearnRequest:
    usual = {"states": "20", "count": "2", "max_tokens": "16", "micro": "8", "device": "cpu"}
    return LearnRequest(algo, model=str(place), steps=steps, options={**usual, **options})


RISING = tuple(f"SCALE = {1 + 0.01 * n:.2f}" for n in range(1, 13))
"""Each better than the one before: all are kept."""
MIXED = ("SCALE = 1.5", "SCALE = 9.0", "a higher one", "SCALE = 1.6", "SCALE = 1.5", "SCALE = 0.1") * 4


@pytest.mark.parametrize("algo", ["grpo", "ppo", "sdpo"])
def test_each_algorithm_ends_in_a_version_with_the_reasons_for_its_fate(algo: str, place: Path, tmp_path: Path) -> None:
    bench = researched(tmp_path, place, MIXED)
    told: list[str] = []
    outcome = learn(request(place, algo), bench.root, told.append)
    assert outcome["status"] == "refused"
    assert outcome["steps"] == 2
    assert any("too few held-out states" in reason for reason in outcome["reasons"])
    version = bench.store.versions()[-1]
    assert (version.version, version.status, version.algo) == (outcome["version"], VersionStatus.REFUSED, algo)
    assert any("2/2" in line for line in told), "progress is shown"
    run = bench.store.learner_runs()[-1]
    assert (run.status, run.steps, run.algo) == (LearnerStatus.DONE, 2, algo)
    curves = (bench.root / f".autoresearchd/learner/{run.id}/curves.jsonl").read_text().splitlines()
    *steps, gate = [json.loads(line) for line in curves]
    assert [line["step"] for line in (*steps, gate)] == [1, 2, 2]
    assert gate == {"step": 2} | {f"gate/{name}": value for name, value in outcome["figures"].items()}
    assert len(gate) > 1
    assert not list((bench.root / ".git/autoresearchd/judging").glob("learner-*")), "nothing of the judging is left"


@pytest.mark.slow
def test_what_is_surely_better_on_held_out_states_is_promoted_and_answers(place: Path, tmp_path: Path) -> None:
    """The random model never writes an edit; the one that has imitated the kept answers nearly always does."""
    bench = researched(tmp_path, place, tuple(f"SCALE = {1 + 0.01 * n:.2f}" for n in range(1, 45)))
    told: list[str] = []
    constants = {"learning_rate": "0.005", "batch": "8", "neighbours": "none", "most_kl": "none", "share": "0.5"}
    gate = {"states": "22", "temperature": "0.05", "judge": "checks", "max_tokens": "14"}
    outcome = learn(request(place, steps=80, **constants, **gate), bench.root, told.append)
    assert outcome["status"] == "promoted", outcome["reasons"]
    assert outcome["cold_start"], "single answers alone"
    assert outcome["figures"]["valid_old"] < 0.2 < 0.8 < outcome["figures"]["valid_new"]
    assert outcome["figures"]["reward_low"] > 0
    [version] = bench.store.promoted_versions()
    assert (version.version, version.status) == (outcome["version"], VersionStatus.PROMOTED)
    assert f"{version.version} promoted: the policy local answers with it from the next experiment on" in told
    curves = (bench.root / f".autoresearchd/learner/{bench.store.learner_runs()[-1].id}/curves.jsonl").read_text()
    assert json.loads(curves.splitlines()[-1])["gate/valid_new"] == outcome["figures"]["valid_new"]


def test_training_goes_on_from_the_version_in_use(place: Path, tmp_path: Path) -> None:
    bench = researched(tmp_path, place, MIXED)
    first = learn(request(place), bench.root, lambda text: None)
    promote(bench.root, first["version"])
    second = learn(request(place), bench.root, lambda text: None)
    assert (first["parent"], second["parent"]) == (None, first["version"])
    assert [version.version for version in bench.store.promoted_versions()] == [first["version"]]


def test_a_child_is_not_examined_on_what_its_parent_learned_from(place: Path, tmp_path: Path) -> None:
    bench = researched(tmp_path, place, MIXED)
    told: list[str] = []
    first = learn(request(place, share="0.1"), bench.root, told.append)
    assert not any(TRAINED in line for line in told)
    promote(bench.root, first["version"])
    second = learn(request(place, share="0.5"), bench.root, told.append)
    assert second["parent"] == first["version"]
    line = next(line for line in told if TRAINED in line)
    assert line.endswith(f"held-out states are not asked about: {TRAINED}")
    assert told.index(line) < next(i for i, text in enumerate(told) if second["version"] in text), "before it learned"
    assert any(TRAINED in reason for reason in second["reasons"])
    assert second["figures"]["not_asked"] > 0


def test_a_held_out_session_that_goes_is_left_out_and_the_version_is_kept_with_the_reason(
    place: Path, tmp_path: Path
) -> None:
    own, other = researched(tmp_path / "own", place, MIXED), researched(tmp_path / "other", place, MIXED[:10])
    shutil.rmtree(other.root / ".git/autoresearchd/pristine")
    shutil.rmtree(other.root / ".git/objects")
    (other.root / ".git/objects").mkdir()
    told: list[str] = []
    outcome = learn(replace(request(place, judge="checks"), places=(other.root,)), own.root, told.append)
    assert outcome["status"] == "refused"
    said = next(i for i, line in enumerate(told) if "cannot be used" in line)
    assert said < next(i for i, line in enumerate(told) if "1/2" in line), "before a step is taken"
    assert any("cannot be used" in reason for reason in outcome["reasons"])


def test_it_is_told_which_model_the_version_in_use_is_for(place: Path, tmp_path: Path) -> None:
    bench = researched(tmp_path, place, MIXED)

    def save(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")

    shelf = AdapterShelf(bench.root / ".git/autoresearchd/adapters", bench.store, SystemClock().now)
    version = shelf.add(save, Made(BaseModel("/models/other", "f" * 64), "grpo")).version
    shelf.promote(version)
    told: list[str] = []
    learn(request(place), bench.root, told.append)
    assert any(f"{version} for /models/other (hash ffffffff)" in line for line in told)


def test_answers_that_stand_alone_are_learned_from_by_likelihood_and_the_reason_is_told(
    place: Path, tmp_path: Path
) -> None:
    bench = researched(tmp_path, place, RISING)
    outcome = learn(request(place, neighbours="none"), bench.root, lambda text: None)
    assert "groups has rewards that differ" in outcome["cold_start"]


def test_bad_requests_are_told_before_anything_is_loaded(place: Path, tmp_path: Path) -> None:
    bench = researched(tmp_path, place, MIXED[:4])
    asked = request(place)
    for wrong, words in (
        (replace(asked, options={"learning_rat": "1"}), "no such constant"),
        (replace(asked, options={"batch": "many"}), "a whole number"),
        (replace(asked, model="./nowhere"), "there is nothing at"),
        (replace(asked, model=""), "no model is named"),
        (replace(asked, model="../.."), "holds no model"),
    ):
        with pytest.raises(UsageError, match=words):
            learn(wrong, bench.root, print)
    other = tiny.write_model(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match="none of 4 answers can be learned from"):
        learn(replace(asked, model=str(other)), bench.root, print)
    with (
        hold_learner_lock(bench.root / ".git/autoresearchd/locks"),
        pytest.raises(SessionLocked, match="another learner"),
    ):
        learn(asked, bench.root, print)
    with pytest.raises(MissingCapability, match="not installed"):
        learn(replace(asked, options={"trackers": "wandb"}), bench.root, print)
    assert bench.store.versions() == []


def test_a_bound_on_the_length_that_leaves_nothing_is_told_before_the_model_is_loaded(
    place: Path, tmp_path: Path
) -> None:
    bench = researched(tmp_path, place, MIXED)
    told: list[str] = []
    with pytest.raises(UsageError, match="max_length=16 leaves nothing to learn from"):
        learn(request(place, max_length="16"), bench.root, told.append)
    assert not any("of memory are needed" in line for line in told)
    assert bench.store.learner_runs()[-1].status is LearnerStatus.FAILED


def test_a_run_whose_process_was_killed_is_told_as_such(place: Path, tmp_path: Path) -> None:
    from autoresearchd.domain.policy_versions import NewLearnerRun

    bench = researched(tmp_path, place, MIXED)
    killed = bench.store.open_learner_run(NewLearnerRun("grpo", "replay", 10), SystemClock().now())
    learn(request(place), bench.root, lambda text: None)
    found = {run.id: run.status for run in bench.store.learner_runs()}
    assert found[killed.id] is LearnerStatus.FAILED
    assert list(found.values()).count(LearnerStatus.DONE) == 1


def test_the_database_of_another_version_elsewhere_is_not_changed_and_the_command_that_would_is_named(
    place: Path, tmp_path: Path
) -> None:
    own, other = (researched(tmp_path / name, place, MIXED[:4]) for name in ("own", "other"))
    other.close()
    database = other.root / ".git/autoresearchd/state.db"
    before = older(database)
    with pytest.raises(StoreError, match="was written by an older version") as refused:
        learn(replace(request(place), places=(other.root,)), own.root, print)
    assert "autoresearchd resume in its repository upgrades it" in refused.value.hint
    assert database.read_bytes() == before

"""What is said before a session begins, while it can still be set right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.app.start_checks import learning_note, who_measures
from autoresearchd.app.tasks import task_folder
from autoresearchd.app.tasks.search_space import require_tunable
from autoresearchd.app.tasks.task_folder import bundled_tasks, needs_of
from autoresearchd.domain.errors import ConfigError, UsageError
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.task import MetricSource, Search
from autoresearchd.policy.policy_names import parse_spec
from tests.fakes.policies import make_task


@pytest.mark.parametrize(
    ("policy", "temperature", "said"),
    [
        ("local:m", 0.7, "temperature 0.7"),
        ("local:m", None, "the server's own temperature"),
        ("local:m", 1.0, ""),
        ("local:./model", 0.7, ""),
        ("local:./model", None, ""),
        ("local:./model", 0.0, "temperature 0:"),
        ("litellm:openai/m", None, ""),
        ("agent:local:m", 0.7, ""),
        ("search", 0.7, ""),
    ],
)
def test_answers_that_cannot_be_learned_from_are_told_of_before_any_is_paid_for(
    policy: str, temperature: float | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    told = learning_note(parse_spec(policy), ModelSettings(temperature=temperature), tmp_path)
    assert said in told
    assert ("set `temperature: 1` in config.yaml" in told) == bool(said)
    assert told.count("\n") == bool(said), "one sentence"


@pytest.mark.parametrize(
    ("policy", "path", "text", "refused"),
    [
        ("search", "train.py", "print(1)\n", True),
        ("random", "prompt.txt", "Answer in one sentence.\n", True),
        ("search", "train.py", "RATE = 0.1\n", False),
        ("search", "train.py", "def (:\n", False),  # the baseline's error says more
        ("command:./tool", "prompt.txt", "Answer in one sentence.\n", False),
        ("litellm:openai/m", "train.py", "print(1)\n", False),
    ],
)
def test_a_policy_that_could_never_propose_anything_is_refused_before_a_baseline_is_measured(
    policy: str, path: str, text: str, refused: bool
) -> None:
    task, spec = make_task(editable=(path,)), parse_spec(policy)
    if not refused:
        require_tunable(spec, task, {path: text})
        return
    with pytest.raises(UsageError, match=f"the policy {policy} cannot be used: {path}") as caught:
        require_tunable(spec, task, {path: text})
    assert "polic" in str(caught.value.hint)
    assert ("LEARNING_RATE" in caught.value.hint) == (text == "print(1)\n"), "a prompt has no constants to write"


def test_what_a_score_of_its_own_does_not_protect_is_said_with_what_is_left_alone() -> None:
    """Who reads a gain in the morning should have been told that the data behind it could be edited."""
    task = make_task()
    told = " ".join(who_measures(task, {"train.py": "SEED = 1\nN_VAL = 400\nLR = 0.1\n"}))
    assert "val_loss is self-reported" in told
    assert "an edit can change the data or the score" in told
    assert "evaluation.command" in told
    assert told.endswith("leave alone what reaches it: SEED, N_VAL")
    assert "leave alone" not in " ".join(who_measures(task, {"train.py": "LR = 0.1\n"}))
    owned = replace(task, scoring=replace(task.scoring, source=MetricSource.EVALUATOR))
    assert who_measures(owned, {"train.py": "SEED = 1\n"}) == ()


@pytest.mark.parametrize("policy", ["search", "random"])
@pytest.mark.parametrize(
    ("text", "search", "words"),
    [
        ("LR = 0.1\n", Search(fixed=("RL",)), "no constant of train.py is called 'RL'"),
        ("LR = 0.1  # range: 1..0.1\n", Search(), "train.py:1: LR: a comment gives a range"),
        ("LR = 0.1\n", Search(ranges={"train.py:LR": (1.0, 2.0)}), "0.1 is outside of the range 1..2"),
    ],
)
def test_a_night_is_not_begun_with_bounds_that_hold_nothing(policy: str, text: str, search: Search, words: str) -> None:
    task = replace(make_task(editable=("train.py",)), search=search)
    with pytest.raises(ConfigError) as caught:
        require_tunable(parse_spec(policy), task, {"train.py": text})
    assert words in str(caught.value)


def test_what_is_missing_is_named_as_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import os\ndef f():\n    from sklearn.svm import SVC\n    import numpy as np\n")
    (tmp_path / "broken.py").write_text("import torch (\n")
    monkeypatch.setattr(task_folder, "find_spec", lambda name: None if name == "sklearn" else object())
    assert needs_of(tmp_path).words == "train, tasks (missing: scikit-learn)"
    (tmp_path / "train.py").write_text("import json\nfrom .torch import x\n")
    assert needs_of(tmp_path).words == "—"


@pytest.mark.parametrize(("name", "extra"), [("autoresearch", "train"), ("baseball-pitch-synthetic", "tasks")])
def test_the_bundled_tasks_are_told_with_their_extra(name: str, extra: str) -> None:
    (folder,) = [folder for folder in bundled_tasks() if folder.name == name]
    assert extra in needs_of(folder).extras

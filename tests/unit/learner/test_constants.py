"""A constant that nobody knows, or that cannot be, is refused before anything is read, and without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.training.constant_values import KNOWN, OWNERS, values_of


def test_texts_become_values() -> None:
    given = {"learning_rate": "1e-4", "batch": "8", "cold_start": "false", "neighbours": "none", "max_length": "2048"}
    assert values_of(given) == {
        "learning_rate": 1e-4, "batch": 8, "cold_start": False, "neighbours": None, "max_length": 2048,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("learning_rat", "1"), ("batch", "many"), ("batch", "0"), ("learning_rate", "nan"), ("cold_start", "maybe"),
        ("share", "0.9"), ("level", "word"), ("scale", "1"), ("dtype", "float16"), ("device", "../x"),
        ("generated", "0"), ("max_length", "1"), ("trackers", "nobody"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_could_be(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name if name != "trackers" else "nobody") as caught:
        values_of({name: text})
    assert caught.value.hint


def test_every_constant_arrives_in_the_options_of_a_run() -> None:
    pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")
    from autoresearchd.learner.learn import LearnRequest, constants_of

    other = {
        "shuffle_rewards": "true", "leave_one_out": "true", "cold_start": "false", "checkpointing": "true",
        "level": "sequence", "scale": "none", "device": "cuda:1", "dtype": "bfloat16", "judge": "real",
        "neighbours": "3", "target_kl": "0.5", "least_entropy": "none", "most_kl": "none", "share": "0.1",
        "learning_rate": "0.01", "weight_decay": "0.1", "clip": "0.5", "clip_low": "0.3", "clip_high": "0.4",
        "beta": "0.1", "c1": "0.1", "c2": "0.2", "gamma": "0.5", "lam": "0.5", "teacher_rate": "0.5",
        "valid_share": "0.5", "alpha": "8", "dropout": "0.1", "temperature": "0.5", "run_foreign": "true",
        "share_prompts": "false", "sdpo_alpha": "0.5",
    }  # fmt: skip
    for name in KNOWN.keys() - {"trackers"}:
        text = other.get(name, "77" if name != "count" else "7")
        for algo in OWNERS.get(name, ("grpo", "ppo", "sdpo")):
            assert constants_of(LearnRequest(algo, options={name: text})) != constants_of(LearnRequest(algo)), name


def test_a_constant_that_two_algorithms_have_is_held_to_the_bounds_of_its_own() -> None:
    pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")
    from autoresearchd.learner.learn import LearnRequest, constants_of

    assert constants_of(LearnRequest("ppo", options={"clip_high": "2.5"})).train.ppo.clip_high == 2.5


@pytest.mark.parametrize(
    ("algo", "name", "owners"),
    [("ppo", "beta", "grpo"), ("grpo", "gamma", "ppo"), ("grpo", "top", "sdpo"), ("sdpo", "level", "grpo and ppo")],
)
def test_a_constant_of_another_algorithm_is_refused_with_the_one_that_has_it(algo: str, name: str, owners: str) -> None:
    text = {"level": "token", "top": "5"}.get(name, "0.5")
    with pytest.raises(UsageError, match=f"{algo} has no such constant") as caught:
        values_of({name: text}, algo)
    assert caught.value.hint.endswith(f"one of {owners}")
    assert name in values_of({name: text})


def test_they_are_read_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from autoresearchd.learner.training.constant_values import values_of"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

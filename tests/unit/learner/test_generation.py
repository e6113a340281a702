"""Completions depend on their prompt and seed, and on nothing beside them."""

from __future__ import annotations

import threading
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.models.client import Question
from autoresearchd.models.transformers_client import TransformersClient
from tests.unit.learner import tiny
from tests.unit.learner.tiny import MESSAGES

pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")
pytestmark = pytest.mark.slow

PROMPTS = ((2, 40, 41, 1, 4), (3, 90), (2, 77, 78, 79, 80, 81, 82, 1, 4), (3, 12, 4))
SEEDS = (11, 12, 13, 14)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LocalModel:
    return LocalModel.load(folder, ModelOptions(generated=3))


def test_the_same_seed_writes_the_same_whatever_is_written_beside_it(model: LocalModel) -> None:
    together = model.generate(PROMPTS, max_tokens=20, temperature=0.9, seeds=SEEDS)
    turned = model.generate(PROMPTS[::-1], max_tokens=20, temperature=0.9, seeds=SEEDS[::-1])
    alone = [
        model.generate([prompt], max_tokens=20, temperature=0.9, seeds=[seed])[0]
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    ]
    assert [each.ids for each in together] == [each.ids for each in turned[::-1]] == [each.ids for each in alone]
    others = model.generate(PROMPTS, max_tokens=20, temperature=0.9, seeds=[1, 2, 3, 4])
    assert [each.ids for each in together] != [each.ids for each in others]


def test_the_same_seed_writes_what_the_client_that_answers_would(folder: Path, model: LocalModel) -> None:
    question = Question(MESSAGES, max_tokens=30, temperature=0.8, seed=7)
    reply = TransformersClient(folder).ask(question, threading.Event())
    [written] = model.generate([model.encode(MESSAGES)], max_tokens=30, temperature=0.8, seeds=[7])
    assert (written.ids, written.text) == (reply.token_ids, reply.text)
    assert written.logprobs == pytest.approx(reply.logprobs, abs=1e-5)


def test_a_prompt_that_is_answered_several_times_is_read_once_and_answered_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LocalModel.load(folder, ModelOptions(generated=8))
    assert model.sharing is not None
    prompts, seeds = [PROMPTS[0], PROMPTS[2]] * 3 + [PROMPTS[1]], list(range(7))
    read: list[int] = []
    decoder = type(model._decoder)
    forward = decoder.forward

    @wraps(forward)
    def counted(self: Any, input_ids: Any = None, **more: Any) -> Any:
        read.append(input_ids.numel())
        return forward(self, input_ids=input_ids, **more)

    monkeypatch.setattr(decoder, "forward", counted)
    together = model.generate(prompts, max_tokens=20, temperature=0.9, seeds=seeds)
    assert read[:2] == [3 * 8, 7], "each prompt but its last token, filled up to 9; then the last of all"
    apart = LocalModel.load(folder, ModelOptions(generated=8, share_prompts=False))
    alone = apart.generate(prompts, max_tokens=20, temperature=0.9, seeds=seeds)
    assert [each.ids for each in together] == [each.ids for each in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert len({each.ids for each in together}) == 7


def test_a_completion_ends_where_the_model_ends_it_or_where_it_is_cut_off(model: LocalModel) -> None:
    seeds = list(range(20))
    written = model.generate([PROMPTS[0]] * 20, max_tokens=150, temperature=1.5, seeds=seeds)
    assert {each.finished for each in written} == {True, False}
    for each in written:
        assert len(each.ids) == len(each.logprobs)
        assert not set(each.ids[:-1]) & model.ends
        assert each.finished == (each.ids[-1] in model.ends)
        assert each.finished or len(each.ids) == 150
        assert "<|" not in each.text


@pytest.mark.parametrize("prompt", [(), (40,) * tiny.CONTEXT])
def test_a_prompt_that_leaves_no_room_is_refused(model: LocalModel, prompt: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="prompt 1 has"):
        model.generate([PROMPTS[0], prompt], max_tokens=20, temperature=1.0, seeds=[1, 2])

"""Completions depend on their prompt and seed, and on nothing beside them."""

from __future__ import annotations

import threading
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.training.generation import batches
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.models.client import Question
from autoresearchd.models.transformers_client import TransformersClient
from tests.unit.learner import tiny
from tests.unit.learner.tiny import MESSAGES, logprobs, state

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


def test_prompts_of_a_single_token_are_answered_too(model: LocalModel) -> None:
    together = model.generate([(40,), (40,)], max_tokens=6, temperature=0.9, seeds=[1, 2])
    alone = [model.generate([(40,)], max_tokens=6, temperature=0.9, seeds=[seed])[0] for seed in (1, 2)]
    assert [each.ids for each in together] == [each.ids for each in alone]


def test_log_probabilities_are_those_that_scoring_finds(model: LocalModel) -> None:
    written = model.generate(PROMPTS, max_tokens=20, temperature=0.7, seeds=SEEDS)
    samples = [Sample(tuple(p), w.ids, temperature=0.7) for p, w in zip(PROMPTS, written, strict=True)]
    for found, each in zip(logprobs(model, *samples), written, strict=True):
        assert found == pytest.approx(list(each.logprobs), abs=1e-4)


def test_a_completion_ends_where_the_model_ends_it_or_where_it_is_cut_off(model: LocalModel) -> None:
    seeds = list(range(40))
    written = model.generate([PROMPTS[0]] * 40, max_tokens=150, temperature=1.5, seeds=seeds)
    assert {each.finished for each in written} == {True, False}
    for each in written:
        assert len(each.ids) == len(each.logprobs)
        assert not set(each.ids[:-1]) & model.ends
        assert each.finished == (each.ids[-1] in model.ends)
        assert each.finished or len(each.ids) == 150
        assert "<|" not in each.text


def test_at_temperature_zero_the_likeliest_token_is_taken(model: LocalModel) -> None:
    one = model.generate(PROMPTS, max_tokens=8, temperature=0.0, seeds=SEEDS)
    other = model.generate(PROMPTS, max_tokens=8, temperature=0.0, seeds=[5, 6, 7, 8])
    assert [each.ids for each in one] == [each.ids for each in other]


def test_base_and_teacher_write_with_their_own_weights(folder: Path) -> None:
    model = LocalModel.load(folder)
    plain = model.generate(PROMPTS, max_tokens=20, temperature=0.9, seeds=SEEDS)
    model.load_adapter_state(state(model, 1))
    model.set_teacher(state(model, 2))
    found = {who: model.generate(PROMPTS, max_tokens=20, temperature=0.9, seeds=SEEDS, who=who) for who in Who}
    assert [each.ids for each in found[Who.BASE]] == [each.ids for each in plain]
    assert len({str(each) for each in found.values()}) == 3


def test_a_long_prompt_gets_what_the_context_has_left(model: LocalModel) -> None:
    long = (40,) * (tiny.CONTEXT - 4)
    written = model.generate([long, PROMPTS[1]], max_tokens=20, temperature=1.0, seeds=[1, 2])
    assert len(written[0].ids) <= 4
    [alone] = model.generate([PROMPTS[1]], max_tokens=20, temperature=1.0, seeds=[2])
    assert written[1].ids == alone.ids


@pytest.mark.parametrize("prompt", [(), (40,) * tiny.CONTEXT])
def test_a_prompt_that_leaves_no_room_is_refused(model: LocalModel, prompt: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="prompt 1 has"):
        model.generate([PROMPTS[0], prompt], max_tokens=20, temperature=1.0, seeds=[1, 2])


def test_nothing_is_written_of_nothing(model: LocalModel) -> None:
    assert model.generate([], max_tokens=5, temperature=1.0, seeds=[]) == []


@given(
    st.lists(st.integers(1, 99), max_size=30),
    st.integers(1, 120),
    st.one_of(st.none(), st.just(100)),
    st.integers(1, 8),
)
def test_every_prompt_is_answered_once_and_within_the_context(
    lengths: list[int], wanted: int, context: int | None, rows: int
) -> None:
    prompts = [[7] * length for length in lengths]
    found = batches(prompts, wanted, context, rows)
    assert sorted(number for _, numbers in found for number in numbers) == list(range(len(prompts)))
    for room, numbers in found:
        assert 1 <= len(numbers) <= rows
        for number in numbers:
            assert room == (wanted if context is None else min(wanted, context - lengths[number]))

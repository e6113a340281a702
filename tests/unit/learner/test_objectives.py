"""Each algorithm learns from what it should: rounds, the order of a session, feedback, kept answers; no more."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.labels import Label
from autoresearchd.learner.algorithms.grpo import GrpoObjective, advantages_of, group_advantages, nearest
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.algorithms.ppo import PpoObjective, gae, normalised, windows
from autoresearchd.learner.algorithms.scoring import batches
from autoresearchd.learner.algorithms.sdpo import SdpoObjective, lessons, with_feedback
from autoresearchd.learner.algorithms.train_options import (
    Algo,
    ColdStart,
    GrpoOptions,
    PpoOptions,
    Scale,
    SdpoOptions,
    TrainOptions,
)
from autoresearchd.learner.data.examples import Example, imitable, replayable, within
from autoresearchd.learner.data.trajectories import Split, Trajectory
from autoresearchd.learner.training.prompt_sharing import Sharing
from tests.fakes.learnable import TinyLearnable
from tests.unit.learner.played import messages, played, trained


def examples_of(data: list[Trajectory]) -> list[Example]:
    return replayable(TinyLearnable(), data)[0]


def numbered(*rewards: float, group: str = "", session: str = "one") -> list[Trajectory]:
    """One answer for each reward, in groups of their own unless they are given one."""
    made = played(TinyLearnable(), rounds=len(rewards), group=1, session=session)
    return [replace(each, reward=reward, group=group or each.group) for each, reward in zip(made, rewards, strict=True)]


# -- examples
def test_tokens_that_the_model_does_not_have_are_left_out_and_counted_and_end_no_training() -> None:
    data = played(TinyLearnable(), rounds=4, group=1)
    data[0] = replace(data[0], token_ids=(2**40,), logprobs=(-0.5,))
    data[1] = replace(data[1], token_ids=(-1,), logprobs=(-0.5,))
    data[2] = replace(data[2], token_ids=(TinyLearnable().vocabulary,), logprobs=(-0.5,))
    kept, left_out = replayable(TinyLearnable(), data)
    assert [each.trajectory.number for each in kept] == [4]
    assert left_out == {"unknown_tokens": 3}


def test_only_kept_answers_with_a_reward_are_imitated_and_text_without_tokens_is_tokenized() -> None:
    model = TinyLearnable()
    data = numbered(1.0, 2.0, -0.5, 0.7)
    data[0] = replace(data[0], label=Label.NONE, token_ids=None, logprobs=None, completion="abc")
    data[1] = replace(data[1], label=Label.NONE, error="no block was found")
    data[2] = replace(data[2], label=Label.NONE)
    data[3] = replace(data[3], label=Label.NO_GAIN)
    kept, left_out = imitable(model, data)
    assert [each.sample.completion for each in kept] == [model.tokens("abc")]
    assert left_out == {"not_kept": 3}


def test_what_is_longer_is_left_out_and_fresh_answers_are_no_longer_than_what_stays() -> None:
    usual = numbered(0.0)[0]

    def answer(number: int, prompt: int, tokens: int) -> Trajectory:
        return replace(usual, number=number, messages=({"content": "x" * prompt},), token_ids=(1,) * tokens)

    train, held_out = (
        (answer(1, 100, 20), answer(2, 300, 40), answer(3, 100, 250)),
        (answer(4, 120, 30), answer(5, 390, 30)),
    )
    found = within(Split(train, held_out, "time"), lambda each: len(each.messages[0]["content"]), most=342)
    assert [each.number for each in found.parts.train] == [1, 2]
    assert [each.number for each in found.parts.held_out] == [4]
    assert (found.left_out, found.answer) == (2, 40)


# -- batches
@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 5))
@settings(deadline=None)  # the first example pays for what torch sets up
def test_each_pass_has_every_example_once_and_units_are_never_parted(sizes: list[int], size: int, seed: int) -> None:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    units = [list(range(start, start + each)) for start, each in zip(starts, sizes, strict=True)]
    total, endless = sum(sizes), batches(units, size, seed)
    for _ in range(3):
        seen: list[int] = []
        while len(seen) < total:
            batch = next(endless)
            assert len(batch) <= size + max(sizes)
            assert all(set(unit) <= set(batch) or not set(unit) & set(batch) for unit in units)
            seen += batch
        assert sorted(seen) == list(range(total))


@pytest.mark.parametrize("algo", list(Algo))
def test_batches_of_whole_groups_are_taken_where_prompts_are_shared(algo: Algo) -> None:
    """One step on all answers is the same step, however they are put into batches and parts."""
    states = []
    for sharing in (None, Sharing(64)):
        model = TinyLearnable(sharing=sharing)
        data = played(model, rounds=3, feedback="Say a.")
        plan = TrainOptions(
            algo, steps=1, batch=12, micro=4, warmup=0, cold_start=ColdStart(allowed=algo is Algo.SFT),
            ppo=PpoOptions(horizon=12),
        )  # fmt: skip
        assert trained(model, data, plan).steps == 1
        states.append(model.adapter_state())
    torch.testing.assert_close(states[0], states[1], rtol=1e-9, atol=1e-12)


# -- GRPO
def test_groups_are_rounds_of_one_session_and_those_without_a_difference_are_in_no_batch() -> None:
    data = numbered(1.0, -1.0, group="r1") + numbered(1.0, 1.0, group="r1", session="two")
    options = TrainOptions(grpo=GrpoOptions(neighbours=None))
    examples = examples_of(data)
    found = advantages_of(examples, options.grpo)
    assert (found.counts["groups"], found.counts["zero_variance"]) == (2, 1)
    assert list(GrpoObjective(TinyLearnable(), examples, options, found).units) == [[0, 1]]


# -- PPO
def rounds_of_two() -> list[Trajectory]:
    """Two rounds of two experiments; the first answer of the first one was given back to be fixed."""
    data = numbered(-2.0, 0.0, 1.0, 3.0, -1.0)
    shape = [(1, 0, "r1"), (1, 1, "r1#1.1.1"), (2, 0, "r1"), (3, 0, "r2"), (4, 0, "r2")]
    return [
        replace(each, number=number, index=index, group=group)
        for each, (number, index, group) in zip(data, shape, strict=True)
    ]


def test_an_answer_is_followed_by_its_repair_and_then_by_the_next_round() -> None:
    data = rounds_of_two()
    after = {0: (1,), 1: (3, 4), 2: (3, 4), 3: (), 4: ()}
    assert windows(examples_of(data), 8) == ([(0, 1, 2, 3, 4)], after)
    assert windows(examples_of(data), 4) == ([(0, 1, 2), (3, 4)], after)
    assert windows(examples_of(data), 1) == ([(0, 1, 2), (3, 4)], after), "rounds are never cut"


def returns_of(data: list[Trajectory]) -> list[float]:
    """What PPO takes each answer to have been worth, of a model whose values are all 0."""
    ppo = PpoOptions(horizon=8, gamma=0.9, lam=0.8, centred=False)
    objective = PpoObjective(TinyLearnable(), examples_of(data), TrainOptions(algo=Algo.PPO, ppo=ppo))
    objective.begin(range(len(data)))
    return [objective._returns[place] for place in range(len(data))]


def test_members_of_a_round_are_paid_for_the_next_round_and_not_for_each_other() -> None:
    data = rounds_of_two()
    found = returns_of(data)
    mean = (3.0 - 1.0) / 2
    assert found == pytest.approx([-2.0 + 0.72 * 0.72 * mean, 0.72 * mean, 1.0 + 0.72 * mean, 3.0, -1.0])
    changed = returns_of([data[0], data[1], replace(data[2], reward=5.0), *data[3:]])
    assert [one == other for one, other in zip(found, changed, strict=True)] == [True, True, False, True, True]


# -- SDPO
def test_the_teacher_reads_the_feedback_before_the_question_which_stays_the_last_that_it_reads() -> None:
    system = {"role": "system", "content": "You do research."}
    told = with_feedback([system, {"role": "user", "content": "Improve it."}], "It was {worse}.", 100)
    assert [each["role"] for each in told] == ["system", "user"]
    assert told[1]["content"] == (
        "The following is feedback from a previous attempt at the problem below:\n\nIt was {worse}.\n\n"
        "Using this information, provide the best possible solution.\n\nImprove it."
    )
    after = with_feedback([system, {"role": "assistant", "content": "I did."}], "x" * 500, 7)
    assert [each["role"] for each in after] == ["system", "assistant", "user"]
    assert after[-1]["content"].count("x") == 7


def test_the_teacher_scores_the_students_own_tokens_whatever_stands_before_them() -> None:
    model, part = TinyLearnable(), (4, 1, 2)
    data = [
        replace(each, feedback="ab" * (1 + n), messages=messages(n) * (1 + n % 3))
        for n, each in enumerate(played(model, rounds=5, group=1))
    ]
    examples = examples_of(data)
    taught = lessons(model, examples, 1000)
    objective = SdpoObjective(model, examples, TrainOptions(algo=Algo.SDPO, sdpo=SdpoOptions(top=3)), taught)
    said = objective.policy(part, top=3)
    together = objective._taught(part, said)
    assert said.top_indices is not None
    for row, place in enumerate(part):
        lesson = taught[place]
        assert lesson is not None
        for spot, here in enumerate(said.batch.mask[row].nonzero().flatten().tolist()):
            for k, token in enumerate(said.top_indices[row, here].tolist()):
                prompt = (*lesson.prompt, *lesson.completion[:spot])
                alone = model.statistics([Sample(prompt, (token,), temperature=0.8)], who=Who.TEACHER)
                expected = float(alone.logprobs[alone.batch.mask][0])
                assert float(together[row, here, k]) == pytest.approx(expected, abs=1e-12)
    assert not together[~said.batch.mask].any()


# ---------------------------------------------------------------------- advantages


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------ groups
def test_advantages_are_deviations_from_the_groups_mean_in_its_standard_deviations() -> None:
    found = group_advantages(column(1.0, 10.0, 3.0, 20.0, 2.0), ["a", "b", "a", "b", "a"])
    deviation = statistics.stdev([10.0, 20.0]) + 1e-6
    expected = [-1 / (1 + 1e-6), -5 / deviation, 1 / (1 + 1e-6), 5 / deviation, 0.0]
    assert found.advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.signal.all()
    assert found.counts == {"groups": 2, "zero_variance": 0, "singles": 0, "approximated": 0, "alone": 0}


def test_groups_with_equal_rewards_give_no_signal_and_are_counted() -> None:
    found = group_advantages(column(0.1 + 0.2, 0.3, 1.0, 2.0, -2.0, -2.0), [0, 0, 1, 1, 2, 2])
    assert found.signal.tolist() == [False, False, True, True, False, False]
    assert found.advantages[[0, 1, 4, 5]].tolist() == [0.0] * 4
    assert (found.counts["groups"], found.counts["zero_variance"]) == (3, 2)


# ------------------------------------------------------------------ single answers
def test_single_answers_are_compared_with_those_nearest_in_time() -> None:
    near = nearest(["s"] * 5, [0.0, 10.0, 11.0, 12.0, 100.0], 2)
    assert near == {0: [1, 2], 1: [2, 3], 2: [1, 3], 3: [2, 1], 4: [3, 2]}
    found = group_advantages(column(1.0, 2.0, 3.0, 4.0, 9.0), range(5), scale=Scale.NONE, neighbours=near)
    assert found.advantages.tolist() == pytest.approx([-1.5, -1.5, 0.0, 1.5, 5.5])
    assert (found.counts["approximated"], found.counts["singles"]) == (5, 5)


def test_neighbours_are_of_the_same_session_only() -> None:
    assert nearest(["s", "t", "s", "t"], [0.0, 0.1, 9.0, 9.1], 5) == {0: [2], 2: [0], 1: [3], 3: [1]}


# ------------------------------------------------------------------ GAE
def test_a_session_with_rounds_solved_by_hand() -> None:
    # Steps 0 and 1 answer one state, 2 fixes 0, then 3 and 4 answer the next state; of what follows 3 only 5 is left,
    # in another window, and behind 4 the record ends.
    values = dict(enumerate([0.5, 0.5, 0.25, 1.0, 1.0, 2.0]))
    rewards = dict(enumerate([-2.0, 1.0, 0.0, 3.0, -1.0]))
    after = {0: (2,), 1: (3, 4), 2: (3, 4), 3: (5,), 4: ()}
    found = gae(range(5), rewards, values, after, gamma=0.9, lam=0.8)
    last = [3 + 0.9 * 2 - 1, -1 + 0.9 - 1]
    mean = sum(last) / 2  # γλ = 0.72
    fixed = 0 + 0.9 - 0.25 + 0.72 * mean
    expected = [-2 + 0.9 * 0.25 - 0.5 + 0.72 * fixed, 1 + 0.9 - 0.5 + 0.72 * mean, fixed, *last]
    assert [found[t] for t in range(5)] == pytest.approx(expected, abs=1e-12)


def test_normalised_advantages_have_mean_zero_and_deviation_one() -> None:
    found = normalised(column(1.0, 2.0, 6.0)).tolist()
    assert statistics.fmean(found) == pytest.approx(0.0, abs=1e-9)
    assert statistics.stdev(found) == pytest.approx(1.0, abs=1e-6)
    assert [normalised(column(*same)).tolist() for same in ([3.0], [0.3, 0.1 + 0.2])] == [[0.0], [0.0, 0.0]]

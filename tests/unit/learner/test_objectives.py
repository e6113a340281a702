"""Each algorithm learns from what it should: rounds, the order of a session, feedback, kept answers; no more."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.labels import Label
from autoresearchd.learner.algorithms.advantages import gae, normalised
from autoresearchd.learner.algorithms.grpo import GrpoObjective, advantages_of
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.algorithms.ppo import PpoObjective, windows
from autoresearchd.learner.algorithms.scoring import Scorer, batches
from autoresearchd.learner.algorithms.sdpo import SdpoObjective, lessons, with_feedback
from autoresearchd.learner.algorithms.train_options import (
    Algo,
    ColdStart,
    GroupOptions,
    MdpOptions,
    SftOptions,
    TeacherOptions,
    TrainOptions,
)
from autoresearchd.learner.data.examples import good, imitable, replayable
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.training.packing import Sharing
from autoresearchd.learner.training.train import train
from tests.fakes.learnable import TinyLearnable
from tests.unit.learner.played import messages, played


def scorer_of(model: TinyLearnable, data: list[Trajectory], micro: int = 4) -> Scorer:
    return Scorer(model, replayable(model, data).kept, micro)


def numbered(*rewards: float, group: str = "", session: str = "one") -> list[Trajectory]:
    """One answer for each reward, in groups of their own unless they are given one."""
    made = played(TinyLearnable(), rounds=len(rewards), group=1, session=session)
    return [replace(each, reward=reward, group=group or each.group) for each, reward in zip(made, rewards, strict=True)]


# -- examples


def test_tokens_that_the_model_does_not_have_are_left_out_and_counted_and_end_no_training() -> None:
    data = played(TinyLearnable(), rounds=4, group=1)
    data[0] = replace(data[0], token_ids=(2**40,), logprobs=(-0.5,))
    data[1] = replace(data[1], token_ids=(-1,), logprobs=(-0.5,))
    data[2] = replace(data[2], prompt_ids=(TinyLearnable().vocabulary, 1))
    found = replayable(TinyLearnable(), data)
    assert [each.trajectory.number for each in found.kept] == [4]
    assert found.left_out == {"unknown_tokens": 3}


def test_only_kept_answers_with_a_reward_are_imitated_and_text_without_tokens_is_tokenized() -> None:
    model = TinyLearnable()
    data = numbered(1.0, 2.0, -0.5, 0.7)
    data[0] = replace(data[0], label=Label.NONE, token_ids=None, logprobs=None, completion="abc")
    data[1] = replace(data[1], label=Label.NONE, error="no block was found")
    data[2] = replace(data[2], label=Label.NONE)
    data[3] = replace(data[3], label=Label.NO_GAIN)
    found = imitable(model, data, SftOptions())
    assert [each.sample.completion for each in found.kept] == [model.tokens("abc")]
    assert found.left_out == {"not_kept": 3}
    assert good(data[3], SftOptions(kept=False)) and not good(data[1], SftOptions(kept=False))


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
            algo, steps=1, batch=12, micro=4, warmup=0, cold_start=ColdStart(allowed=False),
            mdp=MdpOptions(horizon=12),
        )  # fmt: skip
        assert train(model, data, plan, on_step=lambda _: None).steps == 1
        states.append(model.adapter_state())
    torch.testing.assert_close(states[0], states[1], rtol=1e-9, atol=1e-12)


# -- scoring
def test_the_base_is_asked_once_for_each_example_and_remembered_over_a_restart() -> None:
    model = TinyLearnable()
    scorer = scorer_of(model, played(model, rounds=2))
    part = [3, 0, 2]
    found = scorer.policy(part)
    base = scorer.base(part, found)
    torch.testing.assert_close(base, found.tokens.logprobs.detach(), rtol=0, atol=0)  # the adapter is still 0
    other = scorer_of(model, played(model, rounds=2))
    other.load(scorer.state())
    assert torch.equal(other.base(part, found), base)
    assert set(other.state()) == {"base.0", "base.2", "base.3"}


# -- GRPO
def test_groups_are_rounds_of_one_session_and_those_without_a_difference_are_in_no_batch() -> None:
    data = numbered(1.0, -1.0, group="r1") + numbered(1.0, 1.0, group="r1", session="two")
    options = TrainOptions(groups=GroupOptions(neighbours=None))
    scorer = scorer_of(TinyLearnable(), data)
    found = advantages_of(scorer.examples, options.groups)
    assert (found.groups, found.zero_variance) == (2, 1)
    assert list(GrpoObjective(scorer, found, options).units) == [[0, 1]]


def test_the_first_step_of_grpo_follows_the_weighted_policy_gradient() -> None:
    model = TinyLearnable()
    data = [replace(each, logprobs=tuple(p - 0.1 for p in each.logprobs or ())) for each in played(model, rounds=4)]
    scorer = scorer_of(model, data)
    options = TrainOptions()
    found = advantages_of(scorer.examples, options.groups)
    objective = GrpoObjective(scorer, found, options)
    batch = [place for unit in objective.units for place in unit]
    objective.begin(batch)
    objective.loss(batch, divergence=False).loss.backward()
    ours = model.trainable()[1].grad
    assert ours is not None
    model.trainable()[1].grad = None
    said = scorer.policy(batch)
    weights = torch.tensor([math.exp(0.1)], dtype=torch.float64)  # π/μ of each token is e^0.1, within the range
    plain = said.tokens.logprobs * found.advantages[batch].unsqueeze(-1) * weights
    (-plain[said.batch.mask].mean()).backward()
    theirs = model.trainable()[1].grad
    assert theirs is not None
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)  # stored log-probabilities are float32


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
    [window] = windows(replayable(TinyLearnable(), data).kept, 8)
    assert (window.steps, window.following) == ((0, 1, 2, 3, 4), ((1,), (3, 4), (3, 4), (), ()))
    first, second = windows(replayable(TinyLearnable(), data).kept, 4)
    assert (first.steps, first.following, first.after) == ((0, 1, 2), ((1,), (), ()), (3, 4))
    assert (second.steps, second.after) == ((3, 4), ())
    whole = [window.steps for window in windows(replayable(TinyLearnable(), data).kept, 1)]
    assert whole == [(0, 1, 2), (3, 4)], "rounds are never cut"


def returns_of(data: list[Trajectory]) -> list[float]:
    """What PPO takes each answer to have been worth, of a model whose values are all 0."""
    scorer = scorer_of(TinyLearnable(), data)
    mdp = MdpOptions(horizon=8, gamma=0.9, lam=0.8, centred=False)
    objective = PpoObjective(scorer, TrainOptions(algo=Algo.PPO, mdp=mdp))
    objective.begin(range(len(data)))
    return [objective._returns[place] for place in range(len(data))]


def test_members_of_a_round_are_paid_for_the_next_round_and_not_for_each_other() -> None:
    data = rounds_of_two()
    found = returns_of(data)
    mean = (3.0 - 1.0) / 2
    assert found == pytest.approx([-2.0 + 0.72 * 0.72 * mean, 0.72 * mean, 1.0 + 0.72 * mean, 3.0, -1.0])
    changed = returns_of([data[0], data[1], replace(data[2], reward=5.0), *data[3:]])
    assert [one == other for one, other in zip(found, changed, strict=True)] == [True, True, False, True, True]


def test_advantages_are_gae_over_each_window_with_the_next_state_at_its_end() -> None:
    model = TinyLearnable()
    with torch.no_grad():
        model.trainable()[2].normal_(generator=torch.Generator().manual_seed(1))
    rewards = [1.0, -1.0, 0.5, 2.0, -2.0]
    scorer = scorer_of(model, numbered(*rewards))
    options = TrainOptions(algo=Algo.PPO, mdp=MdpOptions(horizon=2, gamma=0.9, lam=0.8, centred=False))
    objective = PpoObjective(scorer, options)
    values = scorer.values([each.sample.prompt for each in scorer.examples])
    assert values is not None
    objective.begin([2, 3, 4])
    kept = {"gamma": 0.9, "lam": 0.8}
    first = gae(torch.tensor(rewards[2:4]), values[2:4], bootstrap=values[4], **kept)
    last = gae(torch.tensor(rewards[4:]), values[4:], bootstrap=values[4], **kept)  # the record ends: worth the same
    expected = normalised(torch.cat([first.advantages, last.advantages]))
    torch.testing.assert_close(
        torch.tensor([objective._advantages[i] for i in (2, 3, 4)]), expected.float(), rtol=1e-5, atol=1e-6
    )
    assert objective._returns[3] == pytest.approx(float(first.returns[1]), rel=1e-5)


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


def test_answers_without_feedback_or_without_room_for_it_are_not_taught() -> None:
    model = TinyLearnable(context=200)
    data = numbered(1.0, 1.0, 1.0)
    data[0] = replace(data[0], feedback="worse")
    data[1] = replace(data[1], feedback="w" * 500)
    scorer = scorer_of(model, data)
    taught = lessons(model, scorer.examples, 1000)
    assert [lesson is not None for lesson in taught] == [True, False, False]
    assert taught[0] is not None and taught[0].completion == data[0].token_ids
    assert list(SdpoObjective(scorer, taught, TrainOptions(algo=Algo.SDPO)).units) == [[0]]


def test_the_teacher_scores_the_students_own_tokens_whatever_stands_before_them() -> None:
    model = TinyLearnable()
    data = [
        replace(each, feedback="ab" * (1 + n), messages=messages(n) * (1 + n % 3))
        for n, each in enumerate(played(model, rounds=5, group=1))
    ]
    scorer = scorer_of(model, data)
    taught = lessons(model, scorer.examples, 1000)
    objective = SdpoObjective(scorer, taught, TrainOptions(algo=Algo.SDPO, teacher=TeacherOptions(top=3)))
    found = scorer.policy([4, 1, 2], top=3)
    together = objective._taught([4, 1, 2], found)
    assert found.tokens.top_indices is not None
    for row, place in enumerate((4, 1, 2)):
        lesson = taught[place]
        assert lesson is not None
        for spot, here in enumerate(found.batch.mask[row].nonzero().flatten().tolist()):
            for k, token in enumerate(found.tokens.top_indices[row, here].tolist()):
                prompt = (*lesson.prompt, *lesson.completion[:spot])
                alone = model.statistics([Sample(prompt, (token,), temperature=0.8)], who=Who.TEACHER)
                expected = float(alone.tokens.logprobs[alone.batch.mask][0])
                assert float(together[row, here, k]) == pytest.approx(expected, abs=1e-12)
    assert not together[~found.batch.mask].any()


# -- SFT, and all

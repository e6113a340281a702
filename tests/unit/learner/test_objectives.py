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
from autoresearchd.learner.algorithms.scoring import NotFinite, Scorer, batches, parts, together
from autoresearchd.learner.algorithms.sdpo import SdpoObjective, lessons, with_feedback
from autoresearchd.learner.algorithms.sft import SftObjective
from autoresearchd.learner.algorithms.train_options import (
    Algo,
    ColdStart,
    GroupOptions,
    MdpOptions,
    SftOptions,
    TeacherOptions,
    TrainOptions,
)
from autoresearchd.learner.data.examples import Example, good, imitable, replayable, shuffled
from autoresearchd.learner.data.reward_signal import usable
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
def test_what_has_no_tokens_or_no_room_or_was_not_drawn_is_left_out_and_counted() -> None:
    data = played(TinyLearnable(), rounds=5, group=1)
    data[0] = replace(data[0], token_ids=None)
    data[1] = replace(data[1], logprobs=(-0.5,), token_ids=(2, 3))
    data[2] = replace(data[2], temperature=0.0)
    data[3] = replace(data[3], messages=({"role": "user", "content": "a" * 50},))
    found = replayable(TinyLearnable(context=20), data)
    assert [each.trajectory.number for each in found.kept] == [5]
    assert found.left_out == {"without_tokens": 2, "not_sampled": 1, "too_long": 1}


def test_tokens_that_the_model_does_not_have_are_left_out_and_counted_and_end_no_training() -> None:
    data = played(TinyLearnable(), rounds=4, group=1)
    data[0] = replace(data[0], token_ids=(2**40,), logprobs=(-0.5,))
    data[1] = replace(data[1], token_ids=(-1,), logprobs=(-0.5,))
    data[2] = replace(data[2], prompt_ids=(TinyLearnable().vocabulary, 1))
    found = replayable(TinyLearnable(), data)
    assert [each.trajectory.number for each in found.kept] == [4]
    assert found.left_out == {"unknown_tokens": 3}


def test_stored_prompt_tokens_are_taken_as_they_are() -> None:
    data = [replace(each, prompt_ids=(7, 7, 1)) for each in played(TinyLearnable(), rounds=1)]
    assert {each.sample.prompt for each in replayable(TinyLearnable(), data).kept} == {(7, 7, 1)}


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


def test_an_answer_without_an_edit_that_applies_is_not_usable() -> None:
    fine, malformed, illegal = numbered(1.0, -2.0, -2.0)
    assert usable(fine)
    assert not usable(replace(malformed, error="no block was found"))
    assert not usable(replace(illegal, label=Label.ILLEGAL_EDIT))


def test_shuffling_moves_whole_outcomes_and_nothing_else() -> None:
    data = [replace(each, feedback=f"of {each.number}", reward=float(each.number)) for each in numbered(*[0.0] * 30)]
    mixed = shuffled(data, 3)
    assert sorted(each.reward for each in mixed) == [each.reward for each in data]
    assert sum(one.reward != other.reward for one, other in zip(data, mixed, strict=True)) > 20
    assert all(each.feedback == f"of {each.reward:.0f}" for each in mixed)
    assert [each.token_ids for each in mixed] == [each.token_ids for each in data]
    assert shuffled(data, 3) == mixed != shuffled(data, 4)


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


def test_the_parts_of_a_batch_hold_it_once_the_longest_first() -> None:
    model = TinyLearnable()
    data = [
        replace(each, messages=({"role": "user", "content": "a" * 9 * n},))
        for n, each in enumerate(numbered(*[1.0] * 7))
    ]
    assert parts(replayable(model, data).kept, [0, 2, 4, 6, 1], 2) == [[6, 4], [2, 1], [0]]


def test_where_prompts_are_shared_a_part_is_the_answers_to_one_of_them() -> None:
    model = TinyLearnable(sharing=Sharing(64))
    data = [
        replace(each, messages=({"role": "user", "content": "a" * 20 * (1 + n % 2)},))
        for n, each in enumerate(numbered(*[1.0] * 7))
    ]
    kept = replayable(model, data).kept
    assert parts(kept, range(7), 2, model.sharing) == [[1, 3, 5], [0, 2, 4, 6]], "whole, though micro is 2"
    assert together(kept, range(7), 32, model.sharing) == [[0, 2, 4, 6], [1, 3, 5]]
    assert together(kept, range(1, 7), 2, model.sharing) == [[1, 3], [5], [2, 4], [6]], "no unit is above the batch"
    assert together(kept, [3, 5], 32, None) == [[3], [5]]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 64),
)
@settings(deadline=None)
def test_a_part_has_no_more_tokens_than_so_many_answers_with_their_prompts(
    rows: list[tuple[int, int]], size: int, width: int
) -> None:
    trajectory = numbered(1.0)[0]
    examples = [Example(trajectory, Sample((7,) * 10 * state, (8,) * own)) for state, own in rows]
    found = parts(examples, range(len(rows)), size, Sharing(width))
    assert sorted(place for part in found for place in part) == list(range(len(rows)))
    for part in found:
        [prompt] = {examples[place].sample.prompt for place in part}
        own = [examples[place].tokens for place in part]
        longest = max(len(prompt) + own for other, own in rows if 10 * other == len(prompt))
        assert len(prompt) + sum(own) <= size * longest


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


def test_what_an_update_began_with_stays_until_the_next_one_begins() -> None:
    model = TinyLearnable()
    scorer = scorer_of(model, played(model, rounds=2))
    first = scorer.policy([0, 1])
    began = scorer.began([0, 1], first)
    with torch.no_grad():
        model.trainable()[1].normal_(generator=torch.Generator().manual_seed(0))
    second = scorer.policy([1, 0])
    again = scorer.began([1, 0], second)
    torch.testing.assert_close(again[second.batch.mask].sum(), began[first.batch.mask].sum())
    assert not torch.allclose(again, second.tokens.logprobs.detach())
    scorer.begin()
    assert torch.equal(scorer.began([1, 0], second), second.tokens.logprobs.detach())


def test_a_model_that_says_nan_is_noticed_before_any_loss() -> None:
    model = TinyLearnable(nan_calls=[1])
    with pytest.raises(NotFinite, match="NaN"):
        scorer_of(model, played(model, rounds=1)).policy([0])


# -- GRPO
def test_groups_are_rounds_of_one_session_and_those_without_a_difference_are_in_no_batch() -> None:
    data = numbered(1.0, -1.0, group="r1") + numbered(1.0, 1.0, group="r1", session="two")
    options = TrainOptions(groups=GroupOptions(neighbours=None))
    scorer = scorer_of(TinyLearnable(), data)
    found = advantages_of(scorer.examples, options.groups)
    assert (found.groups, found.zero_variance) == (2, 1)
    assert list(GrpoObjective(scorer, found, options).units) == [[0, 1]]


def test_single_answers_are_compared_with_their_neighbours_or_left_out() -> None:
    scorer = scorer_of(TinyLearnable(), numbered(1.0, -1.0, 0.5))
    assert advantages_of(scorer.examples, GroupOptions()).approximated == 3
    assert advantages_of(scorer.examples, GroupOptions(past_only=True)).alone == 1
    assert not advantages_of(scorer.examples, GroupOptions(neighbours=None)).signal.any()


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
def test_windows_follow_the_order_of_a_session_and_know_what_comes_after_them() -> None:
    data = numbered(*range(5)) + numbered(*range(2), session="two")
    mixed = [data[i] for i in (4, 0, 6, 2, 5, 1, 3)]
    mixed[1] = replace(mixed[1], number=9)  # the first answer of session one is now its last
    found = windows(replayable(TinyLearnable(), mixed).kept, 2)
    assert [(window.steps, window.following, window.after) for window in found] == [
        ((5, 3), ((1,), ()), (6,)),
        ((6, 0), ((1,), ()), (1,)),
        ((1,), ((),), ()),
        ((4, 2), ((1,), ()), ()),
    ]


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


def test_nothing_of_a_segment_is_paid_for_what_came_in_the_next_one() -> None:
    data = [replace(each, segment=int(each.number > 2)) for each in numbered(1.0, 2.0, 3.0)]
    found = windows(replayable(TinyLearnable(), data).kept, 8)
    assert [(window.steps, window.after) for window in found] == [((0, 1), ()), ((2,), ())]


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


def test_answers_of_one_experiment_are_steps_of_their_own_in_the_order_given() -> None:
    data = [replace(each, number=1, index=index) for each, index in zip(numbered(-2, -2, 1), (2, 0, 1), strict=True)]
    assert windows(replayable(TinyLearnable(), data).kept, 8)[0].steps == (1, 2, 0)


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


def test_a_model_without_a_value_head_is_told_apart() -> None:
    model = TinyLearnable(value_head=False)
    objective = PpoObjective(scorer_of(model, numbered(1.0, 2.0)), TrainOptions(algo=Algo.PPO))
    with pytest.raises(Exception, match="value head"):
        objective.begin([0, 1])


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


def test_a_teacher_follows_the_policy_slowly_or_stays_where_it_began() -> None:
    for rate in (0.0, 0.25):
        model = TinyLearnable()
        data = [replace(each, feedback="worse") for each in played(model, rounds=1)]
        scorer = scorer_of(model, data)
        options = TrainOptions(algo=Algo.SDPO, teacher=TeacherOptions(rate=rate))
        objective = SdpoObjective(scorer, lessons(model, scorer.examples, 100), options)
        with torch.no_grad():
            model.trainable()[1].add_(1.0)
        objective.end()
        up = objective.state()["teacher.up"]
        torch.testing.assert_close(up, torch.full_like(up, rate))


# -- SFT, and all
def test_imitation_is_the_mean_negative_log_likelihood_of_all_tokens() -> None:
    model = TinyLearnable()
    scorer = scorer_of(model, played(model, rounds=2))
    objective = SftObjective(scorer, 32)
    objective.begin(range(8))
    found = scorer.policy(range(8))
    whole = float(objective.loss(range(8), divergence=False).loss.detach())
    assert whole == pytest.approx(-float(found.tokens.logprobs[found.batch.mask].mean().detach()))
    halves = [float(objective.loss(part, divergence=False).loss.detach()) for part in ([0, 1, 2], [3, 4, 5, 6, 7])]
    assert sum(halves) == pytest.approx(whole)


def test_the_divergence_from_the_base_is_told_where_it_is_asked_for() -> None:
    model = TinyLearnable()
    scorer = scorer_of(model, played(model, rounds=1))
    objective = SftObjective(scorer, 32)
    objective.begin([0, 1])
    assert "kl_base" not in objective.loss([0, 1], divergence=False).figures
    with torch.no_grad():
        model.trainable()[1].normal_(generator=torch.Generator().manual_seed(0))
    said = objective.loss([0, 1], divergence=True).figures["kl_base"][0]
    samples = [scorer.examples[place].sample for place in (0, 1)]
    mask = scorer.policy([0, 1]).batch.mask
    every = torch.arange(16).expand(*mask.shape, 16)
    policy, base = (model.statistics(samples, who=who, at=every).tokens.top_logprobs for who in (Who.POLICY, Who.BASE))
    assert policy is not None and base is not None
    whole = (policy.exp() * (policy - base)).sum(dim=-1)[mask]
    assert said == pytest.approx(float(whole.mean().detach())) and said > 0

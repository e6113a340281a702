"""Before hours are spent: whether the rewards tell anything apart, and whether the policy would start cold."""

from __future__ import annotations

from autoresearchd.domain.labels import Label
from autoresearchd.learner.data.reward_signal import cold_start, lacking, outlook, signal
from autoresearchd.learner.data.trajectories import Trajectory, trajectory
from tests.unit.learner.records import record


def made(*rewards: float, round_id: str = "", **more: object) -> list[Trajectory]:
    """One trajectory for each reward, of one round where it is named."""
    shared = {"round_id": round_id, "state_id": round_id} if round_id else {}
    return [trajectory(record(n, reward=reward, **shared, **more)) for n, reward in enumerate(rewards, 1)]


def test_a_round_with_different_rewards_is_what_grpo_learns_from() -> None:
    found = signal(made(1.0, -1.0, round_id="r"))
    assert (found.groups, found.informative, found.singles) == (1, 1, 0)
    assert lacking(found, "grpo") == ""


def test_rounds_of_equal_rewards_teach_grpo_nothing_and_so_it_starts_cold() -> None:
    found = signal([*made(-2.0, -2.0, round_id="r"), *made(-2.0, session="two")])
    assert (found.groups, found.informative, found.singles, found.comparable) == (1, 0, 1, 0)
    assert "in no group do rewards differ" in cold_start(found, "grpo")
    assert cold_start(found, "ppo") == "all rewards are equal"
    (_, line) = outlook(found, "grpo")
    assert line.startswith("nothing can be learned: ")


def test_single_answers_are_compared_with_others_of_their_session() -> None:
    found = signal([*made(1.0, -1.0), *made(0.5, session="two")])
    assert (found.singles, found.comparable) == (3, 2)
    assert "2 of 3 single answers with their neighbours, which is an approximation" in outlook(found, "grpo")[0]


def test_a_policy_that_can_hardly_write_an_edit_is_first_shown_how() -> None:
    bad = made(*[-2.0] * 9, label=Label.MALFORMED_ANSWER, error="no edit")
    good = trajectory(record(20, reward=2.0, label=Label.NONE))
    found = signal([*bad, good])
    assert (found.usable, found.good) == (1, 1)
    assert cold_start(found, "grpo") == "only 1 of 10 answers held an edit that could be used"
    assert "for its first steps it imitates the 1 kept answer" in outlook(found, "grpo")[-1]
    assert cold_start(found, "grpo", least=0.05) == ""


def test_feedback_is_what_sdpo_learns_from_whatever_the_rewards_are() -> None:
    found = signal([*made(-2.0, -2.0), *made(-2.0, session="two", feedback=" ")])
    assert found.taught == 2
    assert lacking(found, "sdpo") == ""
    assert cold_start(found, "sdpo") == ""
    assert outlook(found, "sdpo") == ["SDPO is taught by the feedback on 2 of 3 answers"]
    silent = signal(made(-2.0, 1.0, feedback=""))
    assert outlook(silent, "sdpo")[-1] == "nothing can be learned: no answer has feedback"

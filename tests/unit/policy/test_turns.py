"""Roles take turns, and ten failures in a row change something, in words that the log can show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.policy.turn_rules import INCUMBENT, PUCT, next_turn

ROLES = ["architecture", "optimiser", "data"]


def failed(*roles: str) -> list[tuple[str, float]]:
    return [(role, 0.0) for role in roles]


def test_roles_take_turns_and_go_on_after_the_last_one() -> None:
    history = failed("architecture", "optimiser")
    assert next_turn(2, ROLES, INCUMBENT, [], 0).role == "architecture"
    assert next_turn(2, ROLES, INCUMBENT, history, 0).role == "data"
    assert next_turn(3, ROLES, INCUMBENT, [*history, ("data", 0.0)], 0).role == "architecture"
    assert next_turn(3, ROLES, INCUMBENT, [*history, ("gone", 0.0), ("", 0.0)], 0).role == "data"


def test_a_usual_turn_needs_no_words_and_keeps_the_parents_as_they_were_set() -> None:
    for parents in (INCUMBENT, PUCT):
        turn = next_turn(9, ROLES, parents, failed(*ROLES), 0)
        assert (turn.parent, turn.reason) == (parents, "")


def test_without_roles_there_is_none() -> None:
    assert next_turn(0, [], INCUMBENT, [], 0).role == ""


def test_roles_that_pay_get_the_turns_where_that_was_asked_for() -> None:
    history = [(role, 0.0) for role in ROLES] * 8 + [("data", 1.0), ("optimiser", 0.0)] * 8
    chosen = [next_turn(1, ROLES, INCUMBENT, history, seed, bandit=True).role for seed in range(50)]
    assert chosen.count("data") > 30


def test_after_ten_failures_a_role_that_had_no_turn_in_that_time_gets_one() -> None:
    history = [("data", 1.0), *failed(*["architecture", "optimiser"] * 5)]
    turn = next_turn(10, ROLES, INCUMBENT, history, 0)
    assert (turn.role, turn.parent) == ("data", INCUMBENT)
    assert turn.reason == (
        "10 experiments in a row without a keep: the turn goes to data, which has had none in that time"
    )


def test_where_all_roles_had_their_turn_the_parent_changes_for_once() -> None:
    history = failed(*ROLES * 4)
    turn = next_turn(10, ROLES, INCUMBENT, history, 0)
    assert turn.parent == PUCT
    assert "chosen from the whole tree" in turn.reason
    assert next_turn(11, ROLES, INCUMBENT, history, 0).parent == INCUMBENT
    assert next_turn(20, [], INCUMBENT, [], 0).parent == PUCT
    assert next_turn(10, [], PUCT, [], 0).parent == INCUMBENT


@given(
    st.integers(-1, 100),
    st.lists(st.sampled_from(ROLES), unique=True),
    st.sampled_from([INCUMBENT, PUCT]),
    st.lists(st.tuples(st.sampled_from([*ROLES, "", "gone"]), st.floats(0, 1)), max_size=40),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_a_turn_is_always_one_that_can_be_taken(
    streak: int, roles: list[str], parents: str, history: list[tuple[str, float]], seed: int, bandit: bool
) -> None:
    turn = next_turn(streak, roles, parents, history, seed, bandit=bandit)
    assert turn.role in roles or (turn.role == "" and not roles)
    assert turn.parent in (INCUMBENT, PUCT)
    assert bool(turn.reason) == (streak > 0 and streak % 10 == 0)
    assert turn == next_turn(streak, roles, parents, history, seed, bandit=bandit)

"""A specialist has its own view of the history: what it tried itself in full, of the others what came of it."""

from __future__ import annotations

import dataclasses

from autoresearchd.domain.state import ResearchState
from autoresearchd.domain.task import Role
from autoresearchd.policy import chat, prompt
from autoresearchd.policy.edits.parse import FORMS
from autoresearchd.policy.fit import estimate_tokens
from tests.fakes.policies import make_state, make_task
from tests.unit.policy.histories import experiment

OWN = "# What you tried yourself lately, oldest first"
OTHERS = "# What the others tried lately, oldest first"


def state(role: str = "schedule", count: int = 30) -> ResearchState:
    """The turn of a role after experiments of two in turn."""
    task = dataclasses.replace(make_task(), roles=(Role("schedule", "warmup"), Role("optimiser", "rates")))
    recent = tuple(
        experiment(n, f"try {n}", value=1.0, delta=-0.1, role=("schedule", "optimiser")[n % 2], hint=f"hint {n}")
        for n in range(count)
    )
    return dataclasses.replace(make_state("LR = 1.0\n", task=task), role=role, recent=recent)


def user(asked: ResearchState, budget: int = 64_000) -> str:
    return chat.messages(asked, forms=FORMS, budget=budget, count=estimate_tokens)[1]["content"]


def section(text: str, title: str) -> str:
    return text.split(title, 1)[1].split("\n# ", 1)[0]


def test_a_role_is_told_its_own_experiments_apart_and_in_full() -> None:
    own, others = (section(user(state()), title) for title in (OWN, OTHERS))
    assert "- 28 (schedule): try 28" in own
    assert "next_action_hint: hint 28" in own
    assert "(optimiser)" not in own
    assert "- 29 (optimiser): try 29" in others
    assert "hint 29" not in others


def test_where_room_is_short_a_roles_own_experiments_stay_longest() -> None:
    whole = estimate_tokens(chat.messages(state(), forms=FORMS, budget=64_000, count=estimate_tokens))
    text = user(state(), budget=whole - 700)
    assert text.count("(optimiser)") < text.count("(schedule)")
    assert "- 0 (schedule)" in section(text, OWN)


def test_without_roles_there_is_one_history() -> None:
    text = user(state(role=""))
    assert "# Latest experiments, oldest first" in text
    assert OWN not in text
    assert OTHERS not in text


def test_a_role_at_its_first_turn_has_tried_nothing() -> None:
    assert OWN not in user(state(role="meta"))


def test_what_a_role_tried_long_ago_is_shown_though_others_have_filled_the_window_since() -> None:
    asked = dataclasses.replace(state(role="optimiser", count=64))
    of_others = tuple(e for e in asked.recent if e.number % 2 == 0)
    own = tuple(e for e in asked.recent if e.number % 2)
    asked = dataclasses.replace(asked, recent=of_others, own=own)
    for text in (user(asked), prompt.render(asked)):
        shown = section(text, OWN)
        assert shown.count("(optimiser)") == 32
        assert shown.index("- 1 (optimiser): try 1:") < shown.index("- 63 (optimiser): try 63:")
        assert "next_action_hint: hint 63\n" in shown
        assert "next_action_hint: hint 1\n" not in shown, "of old ones the outcome is told"
        assert "(optimiser)" not in section(text, OTHERS)
    assert [e["experiment"] for e in prompt.as_json(asked)["own"]] == list(range(1, 64, 2))
    # Where room is short the old ones are not kept for the latest of the others.
    whole = estimate_tokens(chat.messages(asked, forms=FORMS, budget=64_000, count=estimate_tokens))
    less = user(asked, budget=whole - 1_000)
    assert "- 1 (optimiser)" not in section(less, OWN)
    assert "- 63 (optimiser)" in section(less, OWN)
    assert "- 62 (schedule)" in section(less, OTHERS)


def test_no_more_than_thirty_two_of_its_own_are_shown() -> None:
    asked = state(count=40)
    old = tuple(experiment(n, f"long ago {n}", role="schedule") for n in range(-32, 0))
    shown = section(user(dataclasses.replace(asked, own=old)), OWN)
    assert shown.count("(schedule)") == 32
    assert "long ago -16" in shown
    assert "long ago -17" not in shown


def test_tools_of_the_users_own_are_shown_the_same_view() -> None:
    text = prompt.render(state())
    assert "try 28" in section(text, OWN)
    assert "try 28" not in section(text, OTHERS)
    assert [e["role"] for e in prompt.as_json(state())["recent"][:2]] == ["schedule", "optimiser"]

"""A conversation fits into its budget: old output goes first, what was said last stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autoresearchd.errors import PolicyError
from autoresearchd.policy.agent_words import ANSWER_LEFT_OUT, LEFT_OUT, Conversation
from autoresearchd.policy.client import Message

PROMPT: tuple[Message, ...] = ({"role": "system", "content": "rules"}, {"role": "user", "content": "the task"})


def count(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def talk(budget: int, turns: int = 4, size: int = 100) -> Conversation:
    conversation = Conversation(PROMPT, budget=budget, count=count)
    for turn in range(turns):
        conversation.add(f"answer {turn}", f"{turn}" * size)
    return conversation


def test_nothing_is_left_out_while_it_fits() -> None:
    messages = talk(10_000).messages()
    assert messages[:2] == PROMPT
    assert [m["role"] for m in messages[2:]] == ["assistant", "user"] * 4
    assert LEFT_OUT not in str(messages)


def test_the_oldest_output_goes_first_and_enough_of_it_that_the_next_turns_fit() -> None:
    told = [m["content"] for m in talk(420).messages() if m["role"] == "user"][1:]
    assert told == [LEFT_OUT, LEFT_OUT, LEFT_OUT, "3" * 100]


def test_answers_go_when_output_alone_does_not_do() -> None:
    conversation = Conversation(PROMPT, budget=1000, count=count)
    for turn in range(3):
        conversation.add(f"{turn}" * 400, "short")
    messages = conversation.messages()
    assert ANSWER_LEFT_OUT in str(messages)
    assert messages[:2] == PROMPT
    assert messages[-2]["content"] == "2" * 400


def test_a_conversation_that_cannot_fit_says_so() -> None:
    with pytest.raises(PolicyError, match="context_tokens"):
        talk(60, turns=1).messages()


def test_what_was_left_out_stays_so_that_the_beginning_does_not_change_at_each_turn() -> None:
    conversation = talk(420)
    before = conversation.messages()
    conversation.add("answer 4", "short")
    assert conversation.messages()[: len(before)] == before


def test_a_model_that_finds_it_too_long_is_sent_less() -> None:
    conversation = talk(10_000)
    before = count(conversation.messages())
    conversation.too_long()
    assert count(conversation.messages()) < 0.75 * before


def test_an_answer_of_megabytes_is_not_repeated_at_each_turn() -> None:
    conversation = Conversation(PROMPT, budget=10**9, count=count)
    conversation.add("x" * 5_000_000, "too long")
    assert count(conversation.messages()) < 100_000

"""An agent's answer is one command or one exact error, and no output is too long for the model to be shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.redaction import Redactor
from autoresearchd.models.client import Message
from autoresearchd.policy.agent.dialogue import (
    LEFT_OUT,
    MOST_ANSWER,
    SENTINEL,
    Conversation,
    explain_not_submitted,
    has_submitted,
    read,
    show_printed,
)
from tests.fakes.shells import fake_run


@pytest.mark.parametrize("language", ["bash", "sh", "Shell", " bash", "bash title=x"])
def test_a_block_may_be_marked_in_the_ways_that_models_mark_it(language: str) -> None:
    assert read(f"```{language}\nls\n```").command == "ls"


@pytest.mark.parametrize(
    ("answer", "finish", "words"),
    [
        ("", "stop", "empty"),
        ("I would raise the learning rate.", "stop", "no ```bash block"),
        ("```python\nx = 1\n```", "stop", "no ```bash block"),
        ("```bash\nls\n```\n```bash\npwd\n```", "stop", "2 ```bash blocks"),
        ("```bash\n \n```", "stop", "is empty"),
        ("```bash\nls", "stop", "not closed"),
        ("```bash\ncat > train.py <<'EOF'\nx", "length", "cut off"),
        ("```bash\nls \0\n```", "stop", "zero byte"),
        ("x" * (MOST_ANSWER + 1), "stop", "longer than"),
        ("<think>```bash\nls\n```</think>I am done.", "stop", "no ```bash block"),
    ],
)
def test_an_answer_without_one_command_is_told_what_is_wrong_with_it(answer: str, finish: str, words: str) -> None:
    step = read(answer, finish)
    assert words in step.error
    assert step.command == ""


def test_a_command_that_writes_backticks_is_not_run_in_half() -> None:
    half = "```bash\ncat > notes.md <<'EOF'\n```\ncode\n```\nEOF\n```"
    odd = half.replace("code\n```\n", "code\n")
    for answer in (half, odd):
        assert read(answer).command == ""
        assert "four backticks" in read(answer).error
    whole = "````bash\ncat > notes.md <<'EOF'\n```\ncode\n```\nEOF\n````"
    assert read(whole).command == "cat > notes.md <<'EOF'\n```\ncode\n```\nEOF"


def test_it_is_submitted_only_when_the_command_succeeded_up_to_the_sentinel() -> None:
    assert has_submitted(fake_run(f"edited\n{SENTINEL}\n"))
    assert not has_submitted(fake_run("sed: no such file\n", exit_code=2))
    assert not has_submitted(fake_run(f"{SENTINEL}\n", exit_code=1))
    assert not has_submitted(fake_run(f"{SENTINEL}\n", exit_code=None, ended="it took longer than 30 s"))
    assert not has_submitted(fake_run(f"grep: {SENTINEL} not found\n"))
    assert "exit code 2" in explain_not_submitted(fake_run(exit_code=2))


@given(st.text(alphabet=st.sampled_from("`\n bash{}\"'x<\\0~"), max_size=200), st.sampled_from(["stop", "length"]))
def test_any_answer_is_one_command_or_one_error(answer: str, finish: str) -> None:
    step = read(answer, finish)
    assert bool(step.command.strip()) != bool(step.error)
    assert isinstance(step.words(), dict)


# -- output ----------------------------------------------------------------------------------------------------------


def test_a_secret_in_the_output_is_not_shown_to_the_model() -> None:
    key = "correct-horse-battery-staple"
    redactor = Redactor([key])
    assert key not in show_printed(fake_run(f"KEY={key}\n"), redactor, 1000)
    cut = fake_run(f"first\nKEY={key[:12]}", tail=f"{key[12:]}\nlast\n", omitted=5)
    assert key[:12] not in show_printed(cut, redactor, 1000)
    assert key[12:] not in show_printed(cut, redactor, 1000)


@given(st.text(max_size=300), st.text(max_size=300), st.integers(0, 10**9), st.integers(1, 400))
def test_no_output_is_shown_longer_than_the_limit(head: str, tail: str, omitted: int, most: int) -> None:
    run = fake_run(head, tail=tail if omitted else "", omitted=omitted)
    text = show_printed(run, Redactor(), most)
    assert len(text.encode("utf-8", "replace")) <= most + 100


PROMPT: tuple[Message, ...] = ({"role": "system", "content": "rules"}, {"role": "user", "content": "the task"})


def count(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def talk(budget: int, turns: int = 4, size: int = 100) -> Conversation:
    conversation = Conversation(PROMPT, budget=budget, count=count)
    for turn in range(turns):
        conversation.add(f"answer {turn}", f"{turn}" * size)
    return conversation


def test_the_oldest_output_goes_first_and_enough_of_it_that_the_next_turns_fit() -> None:
    told = [m["content"] for m in talk(420).messages() if m["role"] == "user"][1:]
    assert told == [LEFT_OUT, LEFT_OUT, LEFT_OUT, "3" * 100]


def test_what_was_left_out_stays_so_that_the_beginning_does_not_change_at_each_turn() -> None:
    conversation = talk(420)
    before = conversation.messages()
    conversation.add("answer 4", "short")
    assert conversation.messages()[: len(before)] == before

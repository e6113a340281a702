"""An agent's submitted edit is a proposal, everything else is an exact word to the model or a recorded outcome."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import Interrupted, Passed, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.outlook import Outlook
from autoresearchd.domain.ports import Policy, ResearchState, TrialHistory
from autoresearchd.domain.proposal import Cost, Proposal, Repair
from autoresearchd.domain.redaction import Redactor
from autoresearchd.models.client import Message
from autoresearchd.policy.agent_policy import (
    LEFT_OUT,
    MOST_ANSWER,
    SENTINEL,
    AgentPolicy,
    Conversation,
    has_submitted,
    read,
    show_printed,
)
from tests.contract.policy_contract import SAMPLE, PolicyContract
from tests.fakes.models import Step
from tests.fakes.policies import make_state
from tests.fakes.shells import Act, FakeShells, fake_run
from tests.unit.policy.model_bench import Bench

CODE = "DEPTH = 4\nWIDTH = 64\n"
SETTINGS = ModelSettings(agent={"turns": 6, "seconds": 100.0}, reasks=2, retries=0, repairs=2)
KEY = "correct-horse-battery-staple"


def say(command: str, before: str = "I do this.") -> str:
    return f"{before}\n```bash\n{command}\n```"


def submit(**words: object) -> str:
    return say(f"echo {SENTINEL}", json.dumps(words) if words else "Done.")


def writes(text: str, path: str = "train.py") -> Act:
    def act(folder: Path) -> None:
        (folder / path).write_text(text)

    return act


class Agent(Bench):
    """An agent in a fake shell. acts: what its commands do, beside ``edit``."""

    code = CODE

    def __init__(self, *answers: Step, acts: Mapping[str, Act] | None = None, **options: Any) -> None:
        self.shells = FakeShells({"edit": writes("DEPTH = 6\nWIDTH = 64\n"), **(acts or {})})
        usual = {"make": AgentPolicy, "open_shell": self.shells.open, "clock": lambda: 0.0, "settings": SETTINGS}
        super().__init__(*answers, **{**usual, **options})

    def propose(self, state: ResearchState | None = None) -> Proposal:
        try:
            return super().propose(state)
        finally:
            assert self.shells.open_copies == 0, "the copy was left behind"


class TestContract(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        edit = writes(SAMPLE.replace("DEPTH = 4", "DEPTH = 6"))
        return Agent(acts={"edit": edit}, then=lambda q: submit() if len(q.messages) > 2 else say("edit")).policy


# -- what becomes a proposal
def test_what_was_submitted_is_the_proposal_and_the_whole_trajectory_is_stored_and_paid() -> None:
    words = {"hypothesis": "deeper is better", "description": "DEPTH 6", "expected_delta": 0.02, "x": [1]}
    cat = {"cat train.py": lambda folder: (folder / "train.py").read_text()}
    agent = Agent(say("cat train.py"), say("edit"), "no block", submit(**words), acts=cat)
    proposal = agent.propose()
    assert proposal.files == {"train.py": "DEPTH = 6\nWIDTH = 64\n"}
    assert (proposal.hypothesis, proposal.description, proposal.expected_delta) == ("deeper is better", "DEPTH 6", 0.02)
    assert (proposal.changes, proposal.asi.extra) == ({"train.py:DEPTH": 6}, {"x": [1]})
    assert proposal.charged
    assert proposal.cost == Cost(usd=0.04, tokens_in=400, tokens_out=40, seconds=4.0)
    assert agent.told(1).startswith("Exit code 0.")
    assert CODE in agent.told(1)
    stored = agent.answers.answers
    assert [answer.form for answer in stored] == ["command", "command", "", "submit"]
    assert "no ```bash block" in stored[2].error
    assert [len(answer.generation.messages) for answer in stored] == [2, 4, 6, 8]
    assert proposal.generation == stored[3].generation
    assert stored[3].generation.messages[:6] == stored[2].generation.messages


def test_answers_without_a_command_are_bounded() -> None:
    agent = Agent(then="I cannot use a shell.")
    error = agent.fails(PolicyError)
    assert error.label is Label.MALFORMED_ANSWER
    assert len(agent.answers.items) == 3
    assert error.cost.usd == pytest.approx(0.03)


# -- submissions that cannot be taken
@pytest.mark.parametrize(
    ("act", "label", "words"),
    [
        (lambda folder: None, Label.NO_OP, "nothing differs"),
        (writes("# changed\n", "prepare.py"), Label.ILLEGAL_EDIT, "prepare.py"),
        (writes("DEPTH = = 6\n"), Label.ILLEGAL_EDIT, "line 1"),
        (writes(CODE + "# a comment\n"), Label.NO_OP, "comments"),
        (lambda folder: (folder / "train.py").unlink(), Label.ILLEGAL_EDIT, "deleted"),
    ],
)
def test_an_illegal_submission_gets_its_exact_error_back_and_the_second_ends_it(
    act: Act, label: Label, words: str
) -> None:
    agent = Agent(say("spoil"), submit(), submit(), acts={"spoil": act})
    assert agent.fails(PolicyError).label is label
    assert words in agent.told(2) and "the next one is the last" in agent.told(2)
    assert Agent(submit(), say("edit"), submit()).propose().files, "it may be put right"


def test_beside_a_search_a_submission_without_a_change_leaves_the_turn_to_it() -> None:
    state = replace(make_state(CODE), outlook=Outlook((), {"train.py:DEPTH": 5}))
    agent = Agent(say("ls"), submit(), say("edit"), submit())
    assert isinstance(agent.fails(Passed, state), Passed) and len(agent.answers.answers) == 2
    assert "submit at once, without a change" in agent.told(0) and "PASS" not in agent.told(0)
    broken = Agent(say("spoil"), submit(), say("clean"), submit(), acts={
        "spoil": writes("DEPTH = = 6\n"), "clean": writes(CODE)
    })  # fmt: skip
    assert not isinstance(broken.fails(PolicyError, state), Passed), "it had meant to change something"


def test_what_is_not_new_in_a_submission_is_pointed_out_once_and_it_may_be_submitted_again() -> None:
    words = "brings back 2 lines that experiment 1, a keep, had removed: `a`; `b`"
    found = iter((words, ""))
    agent = Agent(say("edit"), submit(), submit(), near=lambda state, files, changes: next(found))
    assert agent.propose().files
    assert agent.told(2).startswith(
        "Your submission brings back 2 lines that experiment 1, a keep, had removed: `a`; `b`"
    )


# -- limits
def test_an_agent_that_does_not_submit_ends_after_its_turns_and_its_edit_is_not_used() -> None:
    agent = Agent(say("edit"), then=say("ls"))
    error = agent.fails(PolicyError)
    assert error.label is Label.ERROR
    assert len(agent.answers.items) == 6
    assert all(words in str(error) for words in ("within 6 answers", "train.py, which is not used", "agent.turns"))


def test_a_command_and_a_question_get_no_more_than_the_time_that_is_left() -> None:
    now = [0.0]

    def slow(_: Path) -> None:
        now[0] += 90.0

    agent = Agent(say("slow"), say("edit"), submit(), acts={"slow": slow}, clock=lambda: now[0])
    agent.propose()
    assert agent.shells.ran[1] == ("edit", pytest.approx(10.0))
    assert agent.client.questions[1].timeout == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("usd", "asked", "words"), [(0.01, 2, "for $0.02"), (None, 6, "price of 6 of its answers is not known")]
)
def test_money_is_looked_at_before_each_question_and_an_unknown_price_is_said(
    usd: float | None, asked: int, words: str
) -> None:
    limits = SETTINGS.agent.model_copy(update={"usd": 0.02})
    agent = Agent(then=say("ls"), settings=SETTINGS.model_copy(update={"agent": limits}), cost=Cost(usd, 10, 10))
    error = agent.fails(PolicyError)
    assert len(agent.answers.items) == asked
    assert words in str(error)
    assert (error.cost.usd is None) is (usd is None)


# -- troubles
def test_a_stop_request_ends_it_at_the_next_step() -> None:
    cancel = threading.Event()
    agent = Agent(say("stop"), acts={"stop": lambda _: cancel.set()})
    with pytest.raises(Interrupted):
        agent.policy.propose(make_state(CODE), cancel)
    assert agent.shells.open_copies == 0


def test_secrets_in_the_output_reach_neither_the_model_nor_the_store() -> None:
    state = make_state(CODE, redactor=Redactor([KEY]))
    agent = Agent(say("env"), say("edit"), submit(), acts={"env": lambda _: f"KEY={KEY}\n"})
    agent.propose(state)
    assert KEY not in str(agent.client.questions) + str(agent.answers.items)
    cut = show_printed(fake_run(f"first\nKEY={KEY[:12]}", tail=f"{KEY[12:]}\nlast\n", omitted=5), state.redactor, 1000)
    assert KEY[:12] not in cut and KEY[12:] not in cut


def test_a_repair_begins_with_the_failed_edit_and_is_counted_from_the_parent() -> None:
    files = {"train.py": "DEPTH = 6\nWIDTH = 60\n", "prepare.py": "stolen\n"}
    failed = Repair(2, files, "error", "RuntimeError: 60 is not divisible by 8", description="DEPTH 6")
    look = {"look": lambda folder: (folder / "train.py").read_text() + (folder / "prepare.py").read_text()}
    agent = Agent(say("look"), say("edit"), submit(), acts=look)
    proposal = agent.propose(make_state(CODE, repair=failed))
    assert "DEPTH = 6\nWIDTH = 60\n# protected\n" in agent.told(1)
    assert proposal.files == {"train.py": "DEPTH = 6\nWIDTH = 64\n"}
    assert (proposal.attempt, proposal.hypothesis, agent.policy.repairs) == (2, "DEPTH 6", 2)
    assert [answer.attempt for answer in agent.answers.answers] == [2, 2, 2]


# ---------------------------------------------------------------------- agent words
@pytest.mark.parametrize("language", ["bash", "sh", "Shell", " bash", "bash title=x"])
def test_a_block_may_be_marked_in_the_ways_that_models_mark_it(language: str) -> None:
    assert read(f"```{language}\nls\n```").command == "ls"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "empty"),
        ("I would raise the learning rate.", "no ```bash block"),
        ("```python\nx = 1\n```", "no ```bash block"),
        ("```bash\nls\n```\n```bash\npwd\n```", "2 ```bash blocks"),
        ("```bash\n \n```", "is empty"),
        ("```bash\nls", "not closed"),
        ("```bash\nls \0\n```", "zero byte"),
        ("x" * (MOST_ANSWER + 1), "longer than"),
        ("<think>```bash\nls\n```</think>I am done.", "no ```bash block"),
    ],
)
def test_an_answer_without_one_command_is_told_what_is_wrong_with_it(answer: str, words: str) -> None:
    step = read(answer)
    assert words in step.error
    assert step.command == ""


@pytest.mark.parametrize("answer", ["", "<think>\n```bash\nls\n```\nor else"])
def test_a_limit_that_thoughts_used_up_is_told_as_such_and_no_thought_is_run(answer: str) -> None:
    step = read(answer, "length")
    assert "max_tokens" in step.error and "thinking" in step.error and step.command == ""


def test_a_command_may_write_the_tags_of_thoughts() -> None:
    """Chat templates and rewards of reasoning have them."""
    command = "cat > prompt.py <<'EOF'\nPATTERN = '<think>.*</think>'\n</think>\nEOF"
    drafts = "```bash\nls\n```\nno."
    for thoughts in ("", f"<think>\n{drafts}\n</think>\n", "I look.\n</think>\n", f"{drafts}</think>\n\n",
                     f"<think>a</think>\nso\n<think>\n{drafts}\n</think>\n"):  # fmt: skip
        assert read(f"{thoughts}```bash\n{command}\n```").command == command


def test_a_command_that_writes_backticks_is_not_run_in_half() -> None:
    half = "```bash\ncat > notes.md <<'EOF'\n```\ncode\n```\nEOF\n```"
    for answer in (half, half.replace("code\n```\n", "code\n")):
        assert read(answer).command == ""
        assert "four backticks" in read(answer).error
    whole = "````bash\ncat > notes.md <<'EOF'\n```\ncode\n```\nEOF\n````"
    assert read(whole).command == "cat > notes.md <<'EOF'\n```\ncode\n```\nEOF"


def test_it_is_submitted_only_when_the_command_succeeded_up_to_the_sentinel() -> None:
    assert has_submitted(fake_run(f"edited\n{SENTINEL}\n"))
    assert not has_submitted(fake_run(f"{SENTINEL}\n", exit_code=1))
    assert not has_submitted(fake_run(f"{SENTINEL}\n", exit_code=None, ended="it took longer than 30 s"))
    assert not has_submitted(fake_run(f"grep: {SENTINEL} not found\n"))


@given(st.text(alphabet=st.sampled_from("`\n bash{}\"'x<\\0~"), max_size=200), st.sampled_from(["stop", "length"]))
def test_any_answer_is_one_command_or_one_error(answer: str, finish: str) -> None:
    step = read(answer, finish)
    assert bool(step.command.strip()) != bool(step.error)
    assert isinstance(step.words(), dict)


@given(st.text(max_size=300), st.text(max_size=300), st.integers(0, 10**9), st.integers(1, 400))
def test_no_output_is_shown_longer_than_the_limit(head: str, tail: str, omitted: int, most: int) -> None:
    run = fake_run(head, tail=tail if omitted else "", omitted=omitted)
    assert len(show_printed(run, Redactor(), most).encode("utf-8", "replace")) <= most + 100


def test_the_oldest_output_goes_first_and_stays_away_so_that_the_beginning_does_not_change_at_each_turn() -> None:
    def count(messages: Sequence[Message]) -> int:
        return sum(len(message["content"]) for message in messages)

    conversation = Conversation([{"role": "system", "content": "rules"}, {"role": "user", "content": "task"}], count)
    for turn in range(4):
        conversation.add(f"answer {turn}", f"{turn}" * 100)
    before = conversation.messages(420)
    assert [m["content"] for m in before if m["role"] == "user"][1:] == [LEFT_OUT, LEFT_OUT, LEFT_OUT, "3" * 100]
    conversation.add("answer 4", "short")
    assert conversation.messages(420)[: len(before)] == before

"""An agent's submitted edit is a proposal, everything else is an exact word to the model or a recorded outcome."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Policy, Purse, ResearchState, TrialHistory
from autoresearchd.domain.proposal import Cost, Proposal, Repair
from autoresearchd.domain.redaction import Redactor
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.models.client import Message
from autoresearchd.policy.agent_policy import (
    LEFT_OUT,
    MOST_ANSWER,
    SENTINEL,
    AgentPolicy,
    Conversation,
    explain_not_submitted,
    has_submitted,
    read,
    show_printed,
)
from autoresearchd.policy.exchange import Near
from tests.contract.policy_contract import SAMPLE, PolicyContract
from tests.fakes.models import MemoryAnswers, OpenPurse, ScriptedClient, Step
from tests.fakes.policies import make_state
from tests.fakes.shells import Act, FakeShells, fake_run

CODE = "DEPTH = 4\nWIDTH = 64\n"
SETTINGS = ModelSettings(agent_turns=6, agent_seconds=100.0, reasks=2, retries=0, repairs=2)


def say(command: str, before: str = "I do this.") -> str:
    return f"{before}\n```bash\n{command}\n```"


def submit(**words: object) -> str:
    return say(f"echo {SENTINEL}", json.dumps(words) if words else "Done.")


def writes(text: str, path: str = "train.py") -> Act:
    def act(folder: Path) -> None:
        (folder / path).write_text(text)

    return act


def check(state: ResearchState, files: Mapping[str, str]) -> None:
    check_edit(state.task, state.code, {**state.code, **files})


class Agent:
    """A policy with all its fakes."""

    def __init__(
        self,
        answers: Iterable[Step],
        acts: Mapping[str, Act] | None = None,
        *,
        settings: ModelSettings = SETTINGS,
        purse: Purse | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        cost: Cost = Cost(usd=0.01, tokens_in=100, tokens_out=10, seconds=1.0),  # noqa: B008 - frozen
        then: Step | None = None,
        near: Near | None = None,
        fallback: Sequence[Step] = (),
    ) -> None:
        self.client = ScriptedClient(answers, cost=cost, then=then)
        self.second = ScriptedClient(fallback, name="second", cost=cost)
        self.shells = FakeShells({"edit": writes("DEPTH = 6\nWIDTH = 64\n"), **(acts or {})})
        self.answers, self.purse = MemoryAnswers(), purse or OpenPurse()
        self.policy = AgentPolicy(
            [self.client, self.second] if fallback else [self.client],
            settings,
            name="agent:scripted",
            answers=self.answers,
            purse=self.purse,
            check=check,
            near=near,
            open_shell=self.shells.open,
            clock=clock,
        )

    def propose(self, state: ResearchState | None = None) -> Proposal:
        try:
            return self.policy.propose(state or make_state(CODE, number=7), threading.Event())
        finally:
            assert self.shells.open_copies == 0, "the copy was left behind"

    def refused(self, state: ResearchState | None = None) -> PolicyError:
        with pytest.raises(PolicyError) as caught:
            self.propose(state)
        return caught.value

    def told(self, question: int) -> str:
        """The last message of a question (0: the first)."""
        return self.client.questions[question].messages[-1]["content"]


class TestContract(PolicyContract):
    deterministic = True

    def make_policy(self, history: TrialHistory) -> Policy:
        edit = writes(SAMPLE.replace("DEPTH = 4", "DEPTH = 6"))
        return Agent([], {"edit": edit}, then=lambda q: submit() if len(q.messages) > 2 else say("edit")).policy


# -- what becomes a proposal
def test_what_was_submitted_is_the_proposal_with_its_words_and_its_whole_cost() -> None:
    agent = Agent(
        [
            say("cat train.py"),
            say("edit"),
            submit(hypothesis="deeper is better", description="DEPTH 6", expected_delta=0.02, cost_usd=99, x=[1]),
        ],
        {"cat train.py": lambda folder: (folder / "train.py").read_text()},
    )
    proposal = agent.propose()
    assert proposal.files == {"train.py": "DEPTH = 6\nWIDTH = 64\n"}
    assert (proposal.hypothesis, proposal.description, proposal.expected_delta) == ("deeper is better", "DEPTH 6", 0.02)
    assert proposal.policy == agent.policy.name == "agent:scripted"
    assert proposal.changes == {"train.py:DEPTH": 6}
    assert proposal.asi.extra == {"x": [1]}
    assert proposal.charged
    assert proposal.cost == Cost(usd=pytest.approx(0.03), tokens_in=300, tokens_out=30, seconds=3.0)  # type: ignore[arg-type]
    assert CODE in agent.told(1)
    assert agent.told(1).startswith("Exit code 0.")


def test_the_whole_trajectory_is_stored_answer_by_answer() -> None:
    agent = Agent([say("edit"), "no block", submit()])
    proposal = agent.propose()
    stored = agent.answers.items
    assert [number for number, _ in stored] == [7, 7, 7]
    assert [answer.form for _, answer in stored] == ["command", "", "submit"]
    assert "no ```bash block" in stored[1][1].error
    assert stored[1][1].generation.completion == "no block"
    assert proposal.generation == stored[2][1].generation
    lengths = [len(answer.generation.messages) for _, answer in stored]
    assert lengths == [2, 4, 6]
    assert stored[2][1].generation.messages[:4] == stored[1][1].generation.messages


# -- answers that cannot be used
def test_answers_without_a_command_are_bounded() -> None:
    agent = Agent([], then="I cannot use a shell.")
    error = agent.refused()
    assert error.label is Label.MALFORMED_ANSWER
    assert len(agent.answers.items) == 3
    assert error.cost is not None
    assert error.cost.usd == pytest.approx(0.03)


# -- submissions that cannot be taken
def test_a_submission_without_a_change_is_told_once_and_then_recorded() -> None:
    agent = Agent([submit(), say("edit"), submit()])
    assert agent.propose().files
    assert "nothing differs" in agent.told(1)
    again = Agent([submit(), submit()])
    assert again.refused().label is Label.NO_OP


@pytest.mark.parametrize(
    ("act", "label", "words"),
    [
        (writes("# changed\n", "prepare.py"), Label.ILLEGAL_EDIT, "prepare.py"),
        (writes("DEPTH = = 6\n"), Label.ILLEGAL_EDIT, "line 1"),
        (writes("x" * 2_000_000), Label.ILLEGAL_EDIT, "larger"),
        (writes(CODE + "# a comment\n"), Label.NO_OP, "comments"),
        (lambda folder: (folder / "train.py").unlink(), Label.ILLEGAL_EDIT, "deleted"),
    ],
)
def test_an_illegal_submission_gets_its_exact_error_back_and_the_second_ends_it(
    act: Act, label: Label, words: str
) -> None:
    agent = Agent([say("spoil"), submit(), submit()], {"spoil": act})
    error = agent.refused()
    assert error.label is label
    assert words in agent.told(2)
    assert "the next one is the last" in agent.told(2)


def test_a_link_in_place_of_the_program_is_refused_and_can_be_fixed() -> None:
    def link(folder: Path) -> None:
        (folder / "train.py").unlink()
        (folder / "train.py").symlink_to("/etc/passwd")

    def hint(folder: Path) -> None:
        (folder / "train.py").unlink()
        (folder / "train.py").write_text("DEPTH = 6\n")

    agent = Agent([say("link"), submit(), say("hint"), submit()], {"link": link, "hint": hint})
    assert agent.propose().files == {"train.py": "DEPTH = 6\n"}
    assert "symbolic link" in agent.told(2)
    assert "root:" not in str(agent.client.questions)


# -- limits
def test_an_agent_that_does_not_submit_ends_after_its_turns_and_its_edit_is_not_used() -> None:
    agent = Agent([say("edit")], then=say("ls"))
    error = agent.refused()
    assert error.label is Label.ERROR
    assert len(agent.answers.items) == 6
    assert "within 6 answers" in str(error)
    assert "train.py, which is not used" in str(error)
    assert "agent.turns" in str(error)


def test_a_command_and_a_question_get_no_more_than_the_time_that_is_left() -> None:
    now = [0.0]

    def slow(_: Path) -> None:
        now[0] += 90.0

    agent = Agent([say("slow"), say("edit"), submit()], {"slow": slow}, clock=lambda: now[0])
    agent.propose()
    assert agent.shells.ran[1] == ("edit", pytest.approx(10.0))
    assert agent.client.questions[1].timeout == pytest.approx(10.0)


def test_money_is_looked_at_before_each_question() -> None:
    settings = dataclasses.replace(SETTINGS, agent_usd=0.02)
    agent = Agent([], then=say("ls"), settings=settings)
    error = agent.refused()
    assert len(agent.answers.items) == 2
    assert "for $0.02" in str(error)


def test_an_unknown_price_counts_as_nothing_and_is_said() -> None:
    settings = dataclasses.replace(SETTINGS, agent_usd=0.02)
    agent = Agent([], then=say("ls"), settings=settings, cost=Cost(usd=None, tokens_in=10, tokens_out=10))
    error = agent.refused()
    assert len(agent.answers.items) == 6
    assert "price of 6 of its answers is not known" in str(error)
    assert error.cost is not None
    assert error.cost.usd is None


# -- troubles
def test_a_stop_request_ends_it_at_the_next_step() -> None:
    cancel = threading.Event()
    agent = Agent([say("stop")], {"stop": lambda _: cancel.set()})
    with pytest.raises(Interrupted):
        agent.policy.propose(make_state(CODE), cancel)
    assert agent.shells.open_copies == 0


def test_secrets_in_the_output_reach_neither_the_model_nor_the_store() -> None:
    key = "correct-horse-battery-staple"
    state = make_state(CODE)
    state = dataclasses.replace(state, redactor=state.redactor.with_values([key]))
    agent = Agent([say("env"), say("edit"), submit()], {"env": lambda _: f"KEY={key}\n"})
    agent.propose(state)
    assert key not in str(agent.client.questions)
    assert key not in str(agent.answers.items)


# -- repairs
def repair(attempt: int = 1) -> ResearchState:
    failed = Repair(
        attempt=attempt,
        files={"train.py": "DEPTH = 6\nWIDTH = 60\n", "prepare.py": "stolen\n"},
        label="error",
        reason="RuntimeError: 60 is not divisible by 8",
        description="DEPTH 6",
    )
    return dataclasses.replace(make_state(CODE), repair=failed)


def test_a_repair_begins_with_the_failed_edit_and_is_counted_from_the_parent() -> None:
    seen: list[str] = []
    agent = Agent(
        [say("look"), say("edit"), submit()],
        {"look": lambda folder: seen.append((folder / "train.py").read_text() + (folder / "prepare.py").read_text())},
    )
    proposal = agent.propose(repair(attempt=2))
    assert seen == ["DEPTH = 6\nWIDTH = 60\n# protected\n"]
    assert proposal.files == {"train.py": "DEPTH = 6\nWIDTH = 64\n"}
    assert proposal.attempt == 2
    assert [answer.attempt for answer in agent.answers.answers] == [2, 2, 2]
    assert proposal.hypothesis == "DEPTH 6"
    assert agent.policy.repairs == 2


# ---------------------------------------------------------------------- agent words
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


# -- output
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


def talk(turns: int = 4, size: int = 100) -> Conversation:
    conversation = Conversation(PROMPT, count)
    for turn in range(turns):
        conversation.add(f"answer {turn}", f"{turn}" * size)
    return conversation


def test_the_oldest_output_goes_first_and_enough_of_it_that_the_next_turns_fit() -> None:
    told = [m["content"] for m in talk().messages(420) if m["role"] == "user"][1:]
    assert told == [LEFT_OUT, LEFT_OUT, LEFT_OUT, "3" * 100]


def test_what_was_left_out_stays_so_that_the_beginning_does_not_change_at_each_turn() -> None:
    conversation = talk()
    before = conversation.messages(420)
    conversation.add("answer 4", "short")
    assert conversation.messages(420)[: len(before)] == before

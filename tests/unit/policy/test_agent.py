"""An agent's submitted edit is a proposal, everything else is an exact word to the model or a recorded outcome."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Policy, Purse, TrialHistory
from autoresearchd.domain.proposal import Cost, Proposal, Repair
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.policy.agent.agent_policy import AgentPolicy
from autoresearchd.policy.agent.dialogue import SENTINEL
from autoresearchd.policy.exchange import Near
from tests.contract.policy_contract import SAMPLE, PolicyContract
from tests.fakes.models import MemoryAnswers, OpenPurse, ScriptedClient, Step
from tests.fakes.policies import make_state
from tests.fakes.shells import Act, FakeShells

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
            shells=self.shells,
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


# -- what becomes a proposal -----------------------------------------------------------------------------------------


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


# -- answers that cannot be used -------------------------------------------------------------------------------------


def test_answers_without_a_command_are_bounded() -> None:
    agent = Agent([], then="I cannot use a shell.")
    error = agent.refused()
    assert error.label is Label.MALFORMED_ANSWER
    assert len(agent.answers.items) == 3
    assert error.cost is not None
    assert error.cost.usd == pytest.approx(0.03)


# -- submissions that cannot be taken --------------------------------------------------------------------------------


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


# -- limits ----------------------------------------------------------------------------------------------------------


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


# -- troubles --------------------------------------------------------------------------------------------------------


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


# -- repairs ---------------------------------------------------------------------------------------------------------


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

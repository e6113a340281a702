"""A policy that fails by its own fault does not use up the night: the loop waits, says why, and ends with an error."""

from __future__ import annotations

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, ModelsRefused, PolicyError
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.loop.session import Backoff, SessionLoop
from tests.fakes.bench import Bench, ByNumber

EXIT_3 = "the command ended with exit code 3:\n    no API key"


class Sick(ByNumber):
    """Fails with an exit code until an experiment, then proposes."""

    def __init__(self, until: int, label: Label = Label.ERROR) -> None:
        self.until, self.label = until, label

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if state.number < self.until:
            raise PolicyError(EXIT_3, label=self.label)
        return super().propose(state, cancel)


def waits(bench: Bench) -> list[float]:
    return [e.data["seconds"] for e in bench.events.events if e.kind is EventKind.BACKING_OFF]


def research(bench: Bench, experiments: int) -> None:
    backoff = Backoff(first=0.01, most=0.04)
    SessionLoop(bench.laboratory(), Limits(max_experiments=experiments), backoff=backoff).run()


def test_after_three_failures_in_a_row_it_waits_longer_each_time_until_a_proposal_comes(bench: Bench) -> None:
    bench.policy = Sick(until=7)
    research(bench, 8)
    assert waits(bench) == [0.01, 0.02, 0.04, 0.04], "after the third, fourth, fifth and sixth failure"
    reason = next(e.data["reason"] for e in bench.events.events if e.kind is EventKind.BACKING_OFF)
    assert "3 times in a row" in reason
    assert "exit code 3" in reason
    seventh = bench.experiment(7)
    assert seventh.runs, "the first usable proposal is run"


def test_a_usable_proposal_ends_the_row(bench: Bench) -> None:

    class Every(ByNumber):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            if state.number % 3:
                raise PolicyError(EXIT_3)
            return super().propose(state, cancel)

    bench.policy = Every()
    research(bench, 8)
    assert waits(bench) == []


def test_an_answer_that_is_refused_is_no_fault_to_wait_for(bench: Bench) -> None:
    bench.policy = Sick(until=5, label=Label.MALFORMED_ANSWER)
    research(bench, 5)
    assert waits(bench) == []


def test_the_table_says_the_cause_in_a_few_words(bench: Bench) -> None:
    bench.policy = Sick(until=2)
    research(bench, 2)
    first = bench.experiment(1)
    assert first.proposal.description == "the command ended with exit code 3"
    assert (first.decision.status, first.decision.label) == (Status.CRASH, Label.ERROR)
    assert "no API key" in first.decision.reason


def test_a_session_in_which_every_proposal_failed_is_no_success(bench: Bench) -> None:
    bench.policy = Sick(until=99)
    with pytest.raises(PolicyError, match=r"4 experiments done.*exit code 3") as found:
        research(bench, 4)
    assert found.value.exit_code != 0
    assert len(waits(bench)) == 1, "nothing is waited for once the limit is reached"


@pytest.mark.parametrize("label", [Label.MALFORMED_ANSWER, Label.ILLEGAL_EDIT, Label.NO_OP])
def test_a_session_in_which_no_answer_could_be_used_is_no_success(bench: Bench, label: Label) -> None:
    bench.policy = Sick(until=99, label=label)
    with pytest.raises(PolicyError, match=r"2 experiments done.*none of 2 proposals could be used") as found:
        research(bench, 2)
    assert found.value.exit_code != 0
    assert "show N --answers" in found.value.hint


class Refused(ByNumber):
    """Raises an error each time that it is asked, so many times; then it proposes."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return super().propose(state, cancel)


def test_models_that_refuse_for_good_end_the_session_instead_of_using_up_the_night(bench: Bench) -> None:
    bench.policy = policy = Refused(*[ModelsRefused("no model gave a reply: m: the key was refused")] * 99)
    with pytest.raises(ModelsRefused, match="the key was refused") as found:
        research(bench, 5)
    assert found.value.exit_code == 1
    assert policy.asked == 3
    latest = bench.store.latest(bench.session.id)
    assert latest.decision is None, "`resume` goes on with it"


def test_a_gateway_that_refuses_while_it_restarts_does_not_end_the_session(bench: Bench) -> None:
    refused, down = ModelsRefused("404"), EnvironmentFailure("overloaded")
    bench.policy = Refused(refused, refused, down, refused, refused)
    research(bench, 1)
    assert len(waits(bench)) == 5

"""A policy that fails by its own fault does not use up the night, and a slip is given back to be fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, ModelsRefused, PolicyError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel, EventKind, Policy, ResearchState
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.loop.run import Slot
from autoresearchd.loop.session import Backoff
from tests.fakes.bench import Bench, ByNumber, Failing, failing
from tests.unit.policy.model_bench import Bench as ModelBench
from tests.unit.policy.model_bench import reply

GARBLED = "v1-0000000a"
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
    bench.loop(experiments, backoff=Backoff(first=0.01, most=0.04)).run()


def test_after_three_failures_in_a_row_it_waits_longer_each_time_until_a_proposal_comes(bench: Bench) -> None:
    bench.policy = Sick(until=7)
    research(bench, 8)
    assert waits(bench) == [0.01, 0.02, 0.04, 0.04], "after the third, fourth, fifth and sixth failure"
    reason = next(e.data["reason"] for e in bench.events.events if e.kind is EventKind.BACKING_OFF)
    assert "3 times in a row" in reason and "exit code 3" in reason
    assert bench.experiment(7).runs, "the first usable proposal is run"


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


KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"


class Illegal(ByNumber):
    """A version of the local policy whose edits are none."""

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        text, asi = f"SCALE = = 2\n{KEY}", ASI(next_action_hint="then 3")
        return Proposal({"train.py": text}, "It may be better", self.name, asi=asi, adapter=GARBLED)


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        (ModelBench(then=reply("?", adapter=GARBLED), name="scripted").policy, Label.MALFORMED_ANSWER),
        (Illegal(), Label.ILLEGAL_EDIT),
    ],
)
def test_an_answer_that_cannot_be_used_is_the_versions_that_gave_it(bench: Bench, policy: Policy, label: Label) -> None:
    """Else a version that writes nothing else loses nothing by it, and is never rolled back."""
    bench.policy = policy
    with pytest.raises(PolicyError, match="none of 2 proposals"):
        research(bench, 2)
    assert bench.experiment(2).decision.label is label
    refused = bench.experiment(2)
    assert refused.commit is None and refused.proposal.files == {}
    if label is Label.ILLEGAL_EDIT:  # what was tried can be looked at
        assert (refused.proposal.hypothesis, refused.asi.next_action_hint) == ("It may be better", "then 3")
        assert "\n+SCALE = = 2\n" in (diff := bench.store.diff(bench.session.id, 2))
        assert "c2VjcmV0" not in diff, "an edit may be refused for what it holds"
    earned = bench.store.rewards(bench.session.id)[-2:]
    assert [(one.version, one.reward < 0) for one in earned] == [(GARBLED, True)] * 2


@pytest.mark.parametrize("label", [Label.ERROR, Label.MALFORMED_ANSWER, Label.ILLEGAL_EDIT, Label.NO_OP])
def test_a_session_in_which_no_proposal_could_be_used_is_no_success(bench: Bench, label: Label) -> None:
    bench.policy = Sick(until=99, label=label)
    with pytest.raises(PolicyError, match=r"4 experiments done.*none of 4 proposals could .*exit code 3") as found:
        research(bench, 4)
    assert found.value.exit_code != 0
    assert "show N --answers" in found.value.hint
    assert len(waits(bench)) == (label is Label.ERROR), "nothing is waited for once the limit is reached"


@pytest.mark.parametrize(("policy", "hint"), [("search", "task space"), ("command:./propose.sh", "by hand")])
def test_who_asked_no_model_is_not_sent_to_its_answers(bench: Bench, policy: str, hint: str) -> None:
    bench.policy = Sick(until=99)
    bench.policy.name = policy
    with pytest.raises(PolicyError, match="none of 2 proposals") as found:
        research(bench, 2)
    assert "--answers" not in found.value.hint and hint in found.value.hint


def test_models_that_refuse_for_good_end_the_session_instead_of_using_up_the_night(bench: Bench) -> None:
    bench.policy = policy = Failing(*[ModelsRefused("no model gave a reply: m: the key was refused")] * 99)
    with pytest.raises(ModelsRefused, match="the key was refused") as found:
        research(bench, 5)
    assert found.value.exit_code == 2, "else a service begins it again all night"
    assert len(policy.errors) == 96, "three times in a row"
    assert bench.store.latest(bench.session.id).decision is None, "`resume` goes on with it"


def test_a_gateway_that_refuses_while_it_restarts_does_not_end_the_session(bench: Bench) -> None:
    refused, down = ModelsRefused("404"), EnvironmentFailure("overloaded")
    bench.policy = Failing(refused, refused, down, refused, refused)
    research(bench, 1)
    assert len(waits(bench)) == 5


NAME_ERROR = (
    "Traceback (most recent call last):\n  File \"train.py\", line 2\nNameError: name 'SCALES' is not defined\n"
)
MEMORY = "Traceback (most recent call last):\nMemoryError\n"


class Clumsy:
    """Writes a broken program first; each repair is the next of ``repairs_with``."""

    name = "clumsy"

    def __init__(self, *repairs_with: str | Exception, repairs: int = 2) -> None:
        self._with, self.repairs = list(repairs_with), repairs
        self.asked: list[ResearchState] = []

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if state.repair is None:
            text = "SCALE = 2.0\nBROKEN = 1\n"
        else:
            self.asked.append(state)
            answer = self._with.pop(0)
            if isinstance(answer, Exception):
                raise answer
            text = answer
        return Proposal({"train.py": text}, "it may be better", self.name, description="an edit")


def run(tmp_path: Path, policy: Clumsy, log: str = NAME_ERROR) -> tuple[Bench, Experiment]:
    bench = Bench(tmp_path)
    bench.policy, bench.job = policy, failing("BROKEN", log)
    bench.run(1)
    return bench, bench.experiment(1)


def test_a_program_is_fixed_by_who_sees_how_it_failed_and_kept_under_the_same_number(tmp_path: Path) -> None:
    policy = Clumsy("SCALE = 2.0\n")
    bench, first = run(tmp_path, policy)
    assert first.decision.status is Status.KEEP
    assert first.proposal.attempt == 1
    assert bench.store.totals(bench.session.id).experiments == 2
    assert bench.program() == "SCALE = 2.0\n"
    repair = policy.asked[0].repair
    assert repair.files == {"train.py": "SCALE = 2.0\nBROKEN = 1\n"}
    assert "NameError: name 'SCALES' is not defined" in repair.reason
    assert "Traceback" in repair.log
    assert policy.asked[0].code["train.py"] == "SCALE = 1.0\n", "edits are against the parent"


def test_it_is_given_back_twice_and_then_it_is_a_crash(tmp_path: Path) -> None:
    policy = Clumsy("SCALE = 2.0\nBROKEN = 2\n", "SCALE = 2.0\nBROKEN = 3\n", "SCALE = 2.0\n")
    _, first = run(tmp_path, policy)
    assert len(policy.asked) == 2
    assert (first.decision.status, first.decision.label) == (Status.CRASH, Label.ERROR)
    assert len(first.runs) == 3


def test_what_is_no_slip_is_not_given_back(tmp_path: Path) -> None:
    policy = Clumsy("SCALE = 2.0\n")
    _, first = run(tmp_path, policy, MEMORY)
    assert policy.asked == []
    assert first.decision.label is Label.OOM


def test_a_failed_proposal_keeps_its_label_when_the_daemon_dies_before_the_decision(bench: Bench) -> None:
    bench.policy = Clumsy(repairs=0)
    bench.run(0)
    loop, failed = bench.loop(1), PolicyError("no block was found", label=Label.MALFORMED_ANSWER)
    loop._cycle._proposals.record_failure(loop._cycle.open(slot := Slot(0.0)), slot, failed)
    with pytest.raises(PolicyError, match="none of 1 proposal"):
        bench.run(1)
    first = bench.experiment(1)
    assert (first.decision.status, first.decision.label) == (Status.CRASH, Label.MALFORMED_ANSWER)
    assert first.runs == ()

"""A proposal that fails for a simple reason is given back to be fixed, at most twice, within its experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.loop.session import Backoff, SessionLoop
from tests.fakes.bench import Bench, job
from tests.fakes.executors import Script, prints

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
    bench.policy = policy

    def broken(request: RunRequest) -> Script | str:
        if "BROKEN" in (request.workspace / "train.py").read_text():
            return prints(log, outcome="failed", exit_code=1)
        return job(request)

    bench.job = broken
    bench.run(1)
    return bench, bench.experiment(1)


def test_a_fixed_program_is_run_and_kept_under_the_same_number(tmp_path: Path) -> None:
    policy = Clumsy("SCALE = 2.0\n")
    bench, first = run(tmp_path, policy)
    assert first.decision.status is Status.KEEP
    assert first.proposal.attempt == 1
    assert bench.store.totals(bench.session.id).experiments == 2
    assert bench.program() == "SCALE = 2.0\n"


def test_the_policy_is_shown_its_own_edit_and_how_it_failed(tmp_path: Path) -> None:
    policy = Clumsy("SCALE = 2.0\n")
    run(tmp_path, policy)
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
    lab = bench.laboratory()
    loop = SessionLoop(lab, Limits(max_experiments=1), backoff=Backoff(first=0.0))
    e = loop._cycle.open(loop._slot)
    loop._cycle._proposals.record_failure(
        e, loop._slot, PolicyError("no block was found", label=Label.MALFORMED_ANSWER)
    )
    with pytest.raises(PolicyError, match="none of 1 proposal"):
        bench.run(1)
    first = bench.experiment(1)
    assert (first.decision.status, first.decision.label) == (Status.CRASH, Label.MALFORMED_ANSWER)
    assert first.runs == ()

"""A model changes the structure, and the search tunes the constants around what was kept of it."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Decision, Experiment, Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Policy
from autoresearchd.domain.proposal import Proposal, Repair
from autoresearchd.policy.hybrid_policy import HybridPolicy
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.search_policies import SearchPolicy
from tests.fakes.policies import MemoryHistory, ScriptedPolicy, make_state

from .histories import experiment
from .synthetic import TOY

BASE = "a" * 40
GATED = f"GATE_LR = 0.001\nGATE_SCALE = 1.0\n{TOY}"
MODEL = "litellm:m"


def loss(text: str) -> float:
    """A gate is worth having, and more so once its constants fit."""
    v = {p.label: p.value for p in find(text)}
    if "GATE_LR" not in v:
        return 1.0
    return 0.5 + 0.02 * math.log2(float(v["GATE_LR"]) / 0.02) ** 2 + 0.02 * math.log2(float(v["GATE_SCALE"]) / 4) ** 2


class Session:
    """Experiments one after the other, each better one kept."""

    def __init__(self, steps: list[str], *, tuned: bool = True) -> None:
        self.history, self.codes = MemoryHistory(), {BASE: {"train.py": TOY}}
        model = ScriptedPolicy(steps, name=MODEL, repairs=2)
        search = SearchPolicy(self.history, self.codes.__getitem__)
        self.policy: Policy = HybridPolicy(model, search) if tuned else model
        self.recent = [replace(experiment(0, "baseline", Label.NONE, value=1.0, policy="baseline"), parent=BASE)]
        self.history.add(Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0))
        self.parent, self.value = BASE, 1.0

    def ask(self, number: int, repair: Repair | None = None) -> Proposal:
        """The proposal of an experiment."""
        code, recent = self.codes[self.parent], tuple(self.recent)
        same = {"parent": self.parent, "incumbent_value": self.value, "sigma": 0.004, "recent": recent}
        return self.policy.propose(
            make_state(code, number=number, seed=number, repair=repair, **same), threading.Event()
        )

    def go(self, count: int) -> list[Proposal]:
        """What is proposed in so many experiments."""
        return [self.decide(number, self.ask(number)) for number in range(1, count + 1)]

    def decide(self, number: int, proposal: Proposal) -> Proposal:
        value, commit = loss(proposal.files["train.py"]), f"{number:040x}"
        kept = value < self.value - 0.002
        status, label = (Status.KEEP, Label.NONE) if kept else (Status.DISCARD, Label.NO_GAIN)
        self.history.add(Trial(number, self.parent, commit, proposal.changes, status, label, value))
        done = experiment(number, proposal.description, label, value=value, policy=proposal.policy)
        self.recent.append(replace(done, proposal=proposal, decision=Decision(status, label, value), commit=commit))
        if kept:
            self.parent, self.value, self.codes[commit] = commit, value, dict(proposal.files)
        return proposal


def moved(proposals: list[Proposal]) -> Counter[str]:
    return Counter(name for p in proposals for name in p.changes)


def test_what_a_model_brought_is_worth_more_once_its_constants_are_tuned() -> None:
    steps = [GATED, *(f"{GATED}# {i}\n" for i in range(8))]
    tuned, plain = Session(steps), Session(steps, tuned=False)
    proposals = tuned.go(8)
    plain.go(8)
    assert [p.policy for p in proposals] == [MODEL, *4 * ["search"], *3 * [MODEL]]
    assert any(name.startswith("train.py:GATE") for name in moved(proposals[1:3]))
    assert tuned.value < plain.value - 0.1


def test_a_keep_that_fell_is_not_tuned() -> None:
    session = Session([GATED, f"{GATED}# again\n"])
    session.go(1)
    session.recent[-1] = replace(session.recent[-1], confirmed=False)
    assert session.ask(2).policy == MODEL


def test_a_program_without_constants_is_the_models_alone() -> None:
    session = Session(["import math\nprint(1)\n", "import math\nprint(2)\n"])
    session.go(1)
    session.codes[session.parent] = {"train.py": "import math\nprint(1)\n"}
    kept: Experiment = session.recent[-1]
    session.recent[-1] = replace(kept, decision=Decision(Status.KEEP, Label.NONE, 0.9))
    assert session.ask(2).policy == MODEL


def test_a_model_repairs_its_own_edit() -> None:
    session = Session([GATED, f"{GATED}# repaired\n"])
    session.go(1)
    broken: Mapping[str, str] = {"train.py": "x"}
    assert session.ask(2, Repair(1, broken, "error", "NameError: name 'x' is not defined")).policy == MODEL


def test_a_policy_is_named_with_search_around_it() -> None:
    spec = parse_spec("hybrid:litellm:anthropic/claude-sonnet-4-5")
    assert (spec.kind, spec.argument, spec.tuned) == ("litellm", "anthropic/claude-sonnet-4-5", True)
    assert parse_spec(str(spec)) == spec
    for nothing in ("hybrid", "hybrid:", "hybrid:search", "hybrid:hybrid:litellm:m"):
        with pytest.raises(UsageError, match="cannot be tuned by search"):
            parse_spec(nothing)

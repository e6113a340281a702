"""A policy that asks a scripted model, with all that it needs, and answers of every kind for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.proposal import Cost, Proposal
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.models.client import Reply
from autoresearchd.policy.exchange import AskingPolicy
from autoresearchd.policy.model_policy import ModelPolicy
from tests.fakes.models import MemoryAnswers, OpenPurse, PatientCancel, ScriptedClient, Step
from tests.fakes.policies import make_state

CODE = "LR = 0.1\nDEPTH = 4\n\n\ndef train() -> float:\n    return LR * DEPTH\n"
HIGHER = CODE.replace("0.1", "0.2")
COST = Cost(usd=0.01, tokens_in=100, tokens_out=10, seconds=1.0)


def edit(old: str, new: str, path: str = "train.py", **words: object) -> str:
    block = f"{path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"
    return f"{block}\n{json.dumps(words)}\n" if words else block


GOOD = edit("LR = 0.1", "LR = 0.2", hypothesis="a higher rate learns faster", expected_delta=0.01)
NOT_THERE = edit("LR = 0.7", "LR = 0.8")
BROKEN = edit("LR = 0.1", "LR = = 0.2")


def reply(text: str, **options: Any) -> Reply:
    return Reply(text, **{"model": "provider/model-0201", "cost": COST, **options})


def legal(state: ResearchState, files: Mapping[str, str]) -> None:
    check_edit(state.task, state.code, {**state.code, **files})


class Bench:
    """A policy with all that it needs, and what it did with it. options: further fields of the policy."""

    code = CODE

    def __init__(
        self,
        *steps: Step,
        fallback: Sequence[Step] = (),
        then: Step | None = None,
        cost: Cost = COST,
        settings: ModelSettings = ModelSettings(),  # noqa: B008 - frozen
        make: Callable[..., AskingPolicy] = ModelPolicy,
        **options: Any,
    ) -> None:
        self.client = ScriptedClient(steps, name="m/one", then=then, cost=cost)
        self.second = ScriptedClient(fallback, name="m/two")
        self.answers, self.cancel = MemoryAnswers(), PatientCancel()
        clients = [self.client, self.second] if fallback else [self.client]
        usual = {"name": "litellm:m/one", "answers": self.answers, "purse": OpenPurse(), "check": legal}
        self.policy = make(clients, settings, **{**usual, **options})

    def propose(self, state: ResearchState | None = None) -> Proposal:
        return self.policy.propose(state or make_state(self.code, number=5), self.cancel)

    def fails(self, kind: type[Exception], state: ResearchState | None = None) -> Any:
        with pytest.raises(kind) as caught:
            self.propose(state)
        return caught.value

    @property
    def errors(self) -> list[str]:
        return [answer.error for answer in self.answers.answers]

    def told(self, question: int) -> str:
        """The last message of a question (from 0)."""
        return self.client.questions[question].messages[-1]["content"]

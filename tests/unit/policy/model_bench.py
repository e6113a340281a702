"""A policy that asks a scripted model, with all that it needs, and answers of every kind for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Cancel, Purse, ResearchState
from autoresearchd.domain.proposal import Cost, Proposal
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.models.client import Reply
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
    """A policy with all that it needs, and what it did with it."""

    def __init__(
        self,
        *steps: Step,
        settings: ModelSettings = ModelSettings(),  # noqa: B008 - frozen
        purse: Purse | None = None,
        fallback: Sequence[Step] = (),
        check: Callable[[ResearchState, Mapping[str, str]], None] = legal,
        near: Callable[[ResearchState, Mapping[str, str], Mapping[str, Any]], str] | None = None,
        ending: Cancel | None = None,
    ) -> None:
        self.client, self.second = ScriptedClient(steps, name="m/one"), ScriptedClient(fallback, name="m/two")
        self.answers, self.purse, self.cancel = MemoryAnswers(), purse or OpenPurse(), PatientCancel()
        ticks = iter(range(10_000))
        self.policy = ModelPolicy(
            [self.client, self.second] if fallback else [self.client],
            settings,
            name="litellm:m/one",
            answers=self.answers,
            purse=self.purse,
            check=check,
            near=near,
            clock=lambda: float(next(ticks)),
            ending=ending,
        )

    def propose(self, state: ResearchState | None = None) -> Proposal:
        return self.policy.propose(state or make_state(CODE, number=5), self.cancel)

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

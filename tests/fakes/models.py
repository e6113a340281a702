"""Fakes for policies that ask a model: a scripted model, an answer log in memory, an open purse, a clockless cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Answer, Cost
from autoresearchd.models.client import Message, ModelClient, Question, Reply

Step = str | Reply | Exception | Callable[[Question], str]
"""What a scripted model does with a question: a text, a whole reply, an error, or a text that depends on it."""


class ScriptedClient(ModelClient):
    """A model that answers from a script.

    then: what it does after the last step (None: that is a mistake of the test); cost: of a reply given as a text.
    """

    name = ""

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        name: str = "scripted",
        then: Step | None = None,
        cost: Cost = Cost(usd=0.01, tokens_in=100, tokens_out=10, seconds=1.0),  # noqa: B008 - frozen
    ) -> None:
        self._steps, self.name, self._then, self._cost = list(steps), name, then, cost
        self.questions: list[Question] = []

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """The next step; all questions are kept in ``questions``."""
        if cancel.is_set():
            raise Interrupted("the script was asked to stop")
        step = self._steps[len(self.questions)] if len(self.questions) < len(self._steps) else self._then
        self.questions.append(question)
        if step is None:
            raise AssertionError(f"the script of {self.name} has no reply to question {len(self.questions)}")
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Reply):
            return step
        return Reply(step if isinstance(step, str) else step(question), self.name, self._cost)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """One token for each four characters, rounded up."""
        return -(-sum(len(message["content"]) for message in messages) // 4)


class MemoryAnswers:
    """An answer log in a list of (number of the experiment, answer)."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Answer]] = []

    def record(self, number: int, answer: Answer) -> None:
        self.items.append((number, answer))

    @property
    def answers(self) -> list[Answer]:
        return [answer for _, answer in self.items]

    @property
    def usd(self) -> float:
        return sum(answer.cost.usd or 0.0 for answer in self.answers)


class OpenPurse:
    """A purse without a cap. checks: how often it was looked into."""

    def __init__(self) -> None:
        self.checks = 0

    def check(self) -> None:
        self.checks += 1


class PatientCancel:
    """A cancel whose waits take no time: their lengths are kept in ``waits``; it is set in the ``stop_after``-th."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self._stop_after, self._set = stop_after, False
        self.waits: list[float] = []

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout if timeout is not None else float("inf"))
        self._set = self._set or len(self.waits) == self._stop_after
        return self._set


@dataclass
class Chosen:
    """Says which version of the local policy is in use. bases: models whose hashes are known, by name."""

    version: ServedAdapter | None = None
    asked: list[BaseModel] = field(default_factory=list)
    bases: dict[str, BaseModel] = field(default_factory=dict)

    def known(self, base: BaseModel) -> BaseModel:
        return self.bases.get(base.name, base)

    def in_use(self, base: BaseModel) -> ServedAdapter | None:
        self.asked.append(base)
        return self.version


def saves(weights: bytes = b"weights") -> Callable[[Path], None]:
    """What a model writes when it is told to save its adapter."""

    def save(folder: Path) -> None:
        (folder / "adapter_config.json").write_text('{"r": 16}')
        (folder / "adapter_model.safetensors").write_bytes(weights)

    return save

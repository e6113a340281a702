"""Fakes for policies that ask a model: a scripted model, an answer log in memory, an open purse, a clockless cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Answer, Cost
from autoresearchd.models.client import Message, Question, Reply

Step = str | Reply | Exception | Callable[[Question], str]
"""What a scripted model does with a question: a text, a whole reply, an error, or a text that depends on it."""


class ScriptedClient:
    """A model that answers from a script.

    Args:
        steps: one for each question, in order.
        name: the model's name.
        then: what it does after the last step; None: that is a mistake of the test.
        cost: of each reply that is given as a text.
    """

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        name: str = "scripted",
        then: Step | None = None,
        cost: Cost = Cost(usd=0.01, tokens_in=100, tokens_out=10, seconds=1.0),  # noqa: B008 - frozen
    ) -> None:
        self._steps, self._name, self._then, self._cost = list(steps), name, then, cost
        self.questions: list[Question] = []

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """The next step; all questions are kept in ``questions``."""
        if cancel.is_set():
            raise Interrupted("the script was asked to stop")
        step = self._steps[len(self.questions)] if len(self.questions) < len(self._steps) else self._then
        self.questions.append(question)
        if step is None:
            raise AssertionError(f"the script of {self._name} has no reply to question {len(self.questions)}")
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Reply):
            return step
        return Reply(step if isinstance(step, str) else step(question), self._name, self._cost)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """One token for each four characters, rounded up."""
        return -(-sum(len(message["content"]) for message in messages) // 4)


class MemoryAnswers:
    """An answer log in a list of (number of the experiment, answer)."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Answer]] = []

    def record(self, number: int, answer: Answer) -> None:
        """Append it."""
        self.items.append((number, answer))

    @property
    def answers(self) -> list[Answer]:
        """The answers alone, oldest first."""
        return [answer for _, answer in self.items]

    @property
    def usd(self) -> float:
        """What all of them cost; unknown prices count nothing."""
        return sum(answer.cost.usd or 0.0 for answer in self.answers)


class OpenPurse:
    """A purse without a cap. checks: how often it was looked into."""

    def __init__(self) -> None:
        self.checks = 0

    def check(self) -> None:
        """Let everything pass."""
        self.checks += 1


class PatientCancel:
    """A cancel whose waits take no time: their lengths are kept in ``waits``.

    Args:
        stop_after: it is set in the middle of this wait (1: the first); None: never.
        is_set: whether it is set from the beginning.
    """

    def __init__(self, *, stop_after: int | None = None, is_set: bool = False) -> None:
        self._stop_after, self._set = stop_after, is_set
        self.waits: list[float] = []

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Note the time; True when it is set meanwhile."""
        self.waits.append(timeout if timeout is not None else float("inf"))
        self._set = self._set or len(self.waits) == self._stop_after
        return self._set

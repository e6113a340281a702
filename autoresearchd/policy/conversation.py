"""A conversation of many turns that stays within a number of tokens: what commands printed long ago goes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoresearchd.domain.labels import Label
from autoresearchd.errors import PolicyError
from autoresearchd.policy.client import Message

Count = Callable[[Sequence[Message]], int]
"""How many tokens messages have."""

ROOM = 0.75
"""Share of the budget that is used after something was left out: leaving out a little at each turn would change the
beginning of the conversation each time, and neither a provider's cache nor the store could use it again."""

LEFT_OUT = "[What this command printed was left out to save room.]"
ANSWER_LEFT_OUT = "[This answer was left out to save room.]"
_LONGEST_ANSWER = 64 * 1024


class Conversation:
    """The messages so far.

    Args:
        prompt: what it begins with; always there.
        budget: tokens that it may have.
        count: counts them.
    """

    def __init__(self, prompt: Sequence[Message], *, budget: int, count: Count) -> None:
        self._messages: list[Message] = list(prompt)
        self._fixed, self._budget, self._count = len(self._messages), budget, count

    def add(self, answer: str, told: str) -> None:
        """A turn: what the model answered, and what it was told."""
        if len(answer) > _LONGEST_ANSWER:
            answer = answer[:_LONGEST_ANSWER] + "\n[the rest was left out]"
        self._messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]

    def messages(self) -> tuple[Message, ...]:
        """The messages to send.

        Raises:
            PolicyError: they do not fit, whatever is left out.
        """
        if self._count(self._messages) > self._budget:
            self._shrink(ROOM * self._budget)
        return tuple(self._messages)

    def too_long(self) -> None:
        """The model found it too long: its budget is smaller than was thought, or the count was too low."""
        self._budget = int(ROOM * min(self._budget, self._count(self._messages)))

    def allow(self, budget: int) -> None:
        """It may have so many tokens from now on; what was left out stays so."""
        self._budget = budget

    def _shrink(self, target: float) -> None:
        for index, mark in self._order():
            self._messages[index] = {**self._messages[index], "content": mark}
            if self._count(self._messages) <= target:
                return
        tokens = self._count(self._messages)
        if tokens > self._budget:
            raise PolicyError(
                f"the agent's conversation has {tokens} tokens when all that can be is left out of it, and may have "
                f"{self._budget}",
                label=Label.ERROR,
                mend="raise context_tokens in config.yaml for a model that can read as much, or make the files shorter",
            )

    def _order(self) -> list[tuple[int, str]]:
        """What may be left out, the least needed first: old output, then old answers; the last turn stays."""
        before_last = range(self._fixed, len(self._messages) - 2)
        outputs = [(i, LEFT_OUT) for i in before_last if self._messages[i]["role"] == "user"]
        answers = [(i, ANSWER_LEFT_OUT) for i in before_last if self._messages[i]["role"] == "assistant"]
        return [(i, mark) for i, mark in outputs + answers if len(self._messages[i]["content"]) > len(mark)]

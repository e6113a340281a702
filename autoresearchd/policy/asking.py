"""From one question to a reply: retries with backoff, then the next model, until one answers or none is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from autoresearchd.domain.proposal import Cost
from autoresearchd.errors import Interrupted
from autoresearchd.policy.answer import clean
from autoresearchd.policy.client import FINAL, PASSING, KnowsPrices, ModelClient, ModelError, Question, Reply, Trouble
from autoresearchd.policy.patience import Patience
from autoresearchd.ports import Cancel, Purse

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
LONGEST_ASKED_S = 300.0
"""The longest ``Retry-After`` that is slept out: who asks for more is left to the next model, or to the loop."""

_MAX_WORDS = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """A model that gave no reply, with its last error."""

    model: str
    error: ModelError


class Unanswered(ModelError):
    """No model gave a reply.

    Args:
        failures: of each model that was asked, why; its trouble is that of the last.
    """

    def __init__(self, failures: Sequence[Failure]) -> None:
        told = [f"{f.model}: {f.error.trouble} ({clean(f.error.what, _MAX_WORDS)})" for f in failures]
        remedies = dict.fromkeys(f.error.mend for f in failures if f.error.mend)
        super().__init__(failures[-1].error.trouble, "; ".join(told), mend="; ".join(remedies))
        self.failures = tuple(failures)

    @property
    def refused(self) -> bool:
        """Whether every model refused to answer, so that asking the same again is of no use."""
        return all(f.error.trouble is Trouble.REFUSED for f in self.failures)

    @property
    def final(self) -> bool:
        """Whether no waiting mends what is wrong with any of the models."""
        return all(f.error.trouble in FINAL for f in self.failures)


class Asker:
    """Asks the questions of one proposal.

    A passing trouble is waited out with exponential backoff and full jitter (M. Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015), never for less than the provider asks; any other goes to the next model at
    once. Later questions begin at the model that answered last: it knows its own answers.

    Args:
        clients: the model, then those that are asked in its place, in turn.
        retries: how often a question is repeated to one model.
        purse: looked into before every call that goes out.
        charge: told of each failed call that cost something, with the model's name.
        random: draws the jitter.
        ending: set once the session is to end: nobody who gives no reply is asked again then. None: nobody says so.
    """

    def __init__(
        self,
        clients: Sequence[ModelClient],
        *,
        retries: int,
        purse: Purse,
        charge: Callable[[str, ModelError], None],
        random: Random,
        ending: Cancel | None = None,
    ) -> None:
        if not clients:
            raise ValueError("there is no model to ask")
        self._clients, self._retries, self._purse = tuple(clients), retries, purse
        self._charge, self._random, self._ending, self._at = charge, random, ending, 0

    @property
    def client(self) -> ModelClient:
        """The model that is asked next, or answered last."""
        return self._clients[self._at]

    def skip(self) -> bool:
        """Ask the model that is next in turn from now on; False: there is none."""
        if self._at + 1 >= len(self._clients):
            return False
        self._at += 1
        return True

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """The first reply that any of the models gives.

        Raises:
            ModelError: the context is too long for the model whose turn it is; a shorter question goes to the same.
            Unanswered: all models failed.
            SpendCapReached: nothing more may be spent.
            Interrupted: ``cancel`` was set.
        """
        failures: list[Failure] = []
        for index in range(self._at, len(self._clients)):
            client = self._clients[index]
            try:
                reply = self._insist(client, question, cancel)
            except ModelError as error:
                if error.trouble is Trouble.CONTEXT_TOO_LONG:
                    self._at = index
                    raise
                failures.append(Failure(client.name, error))
            else:
                self._at = index
                return reply
        raise Unanswered(failures)

    def _insist(self, client: ModelClient, question: Question, cancel: Cancel) -> Reply:
        """The reply of one model, asked again while its trouble may pass and somebody has the patience."""
        patience = Patience(cancel, self._ending)
        for attempt in count():
            if cancel.is_set():
                raise Interrupted("the policy was asked to stop")
            self._purse.check()
            try:
                return client.ask(question, cancel)
            except Interrupted:
                self._charge(client.name, _left(client, question))
                raise
            except ModelError as error:
                if error.cost is None and error.trouble is Trouble.TIMEOUT:
                    # It was sent, and whoever answered too late is likely to bill it all the same: as much as may
                    # have been written by then, so that a cap ends what would go on unseen.
                    error.cost = _sent(client, question, tokens_out=question.max_tokens)
                if error.cost is not None:
                    self._charge(client.name, error)
                asked = _seconds(error.retry_after)
                if error.trouble not in PASSING or attempt >= self._retries or asked > LONGEST_ASKED_S:
                    raise
            if patience.wait(self._pause(attempt, asked)):
                raise Interrupted(f"{client.name} was not asked again: a stop was requested")
        raise AssertionError("an endless loop has ended")

    def _pause(self, attempt: int, asked: float) -> float:
        """Seconds to wait after a failed attempt (0: the first)."""
        if asked > 0:  # all who were turned away are told the same: they should not come back together
            return asked + self._random.uniform(0, FIRST_PAUSE_S)
        return self._random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 30)))


def _sent(client: ModelClient, question: Question, tokens_out: int = 0) -> Cost:
    """What a question has cost that was sent, and whose reply nobody knows."""
    cost = Cost(usd=None, tokens_in=client.count_tokens(question.messages), tokens_out=tokens_out)
    return replace(cost, usd=client.price(cost)) if isinstance(client, KnowsPrices) else cost


def _left(client: ModelClient, question: Question) -> ModelError:
    """The error of a question that was sent and then not waited for: it is likely to be billed all the same."""
    what = "the reply was not waited for: a stop was requested"
    return ModelError(Trouble.TIMEOUT, what, cost=_sent(client, question))


def _seconds(retry_after: float | None) -> float:
    """What the provider asks to wait; nothing where that is no time."""
    return retry_after if retry_after is not None and math.isfinite(retry_after) and retry_after > 0 else 0.0

"""The questions and answers of one proposal: each answer is written down, and charged, before it is used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Answer, Cost, Generation
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.settings import ModelSettings
from autoresearchd.domain.state import ResearchState
from autoresearchd.errors import EnvironmentFailure, ModelsRefused, PolicyError
from autoresearchd.policy import abandon, answer, spend
from autoresearchd.policy.asking import Asker, Failure, Unanswered
from autoresearchd.policy.client import Message, ModelClient, ModelError, Question, Reply, Trouble
from autoresearchd.policy.patience import Patience
from autoresearchd.policy.structured import KnowsSchemas
from autoresearchd.ports import AnswerLog, Cancel, Purse

MAX_ANSWER = 1_000_000
"""Characters of an answer that are stored; more than any legal edit needs."""

MAX_ERROR = 2_000
_NAME = 200
_NOTHING: tuple[Message, ...] = ({"role": "user", "content": "-"},)
_PREPARE_S = 86_400.0
"""Longer than anything takes to load: whose loading hangs is told so by the user's stop."""
_MENDS: Mapping[Trouble, str] = {
    Trouble.UNAUTHORISED: "put a valid key for {model} into the variable that its provider reads (ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY, …) or into the file that key_files names (local.key_file for the policy local)",
    Trouble.NOT_FOUND: "correct the model {model}: after the colon of --policy, or under policy, fallbacks or "
    "local.model in config.yaml",
    Trouble.BAD_REQUEST: "see what {model} takes: max_tokens and temperature in config.yaml go with each question",
}
_MEND = "it is tried again by itself; models under fallbacks in config.yaml are asked in place of {model}"


@dataclass(frozen=True, slots=True)
class Means:
    """What the proposals of a policy are made with.

    clients: the model, then those that are asked when it gives no reply. settings: the user's. name: of the policy, as
    in ``--policy``. answers: where each answer is written down. purse: what may be spent. clock: monotonic seconds.
    ending: set once the session is to end; None: nobody says so before it is to end at once.
    """

    clients: tuple[ModelClient, ...]
    settings: ModelSettings
    name: str
    answers: AnswerLog
    purse: Purse
    clock: Callable[[], float] = time.monotonic
    ending: Cancel | None = None


class Exchange:
    """Asks the questions of one proposal and keeps the accounts of it.

    Args:
        means: what it is made with.
        state: what it is made from.
    """

    def __init__(self, means: Means, state: ResearchState) -> None:
        self._means, self._state = means, state
        self._attempt = state.repair.attempt if state.repair else 0
        self._asked: tuple[Message, ...] = ()
        self._costs: list[Cost] = []
        self._asker = Asker(
            means.clients,
            retries=means.settings.retries,
            purse=means.purse,
            charge=self._charge_failure,
            random=Random(state.seed),  # noqa: S311 - jitter
            ending=means.ending,
        )

    @property
    def attempt(self) -> int:
        """Number of the proposal in its experiment: 0 the first, then repairs."""
        return self._attempt

    @property
    def asked(self) -> bool:
        """Whether anything has been answered, or charged, so far."""
        return bool(self._costs)

    @property
    def cost(self) -> Cost:
        """Of all answers so far; unknown where that of any is."""
        return spend.total(self._costs)

    @property
    def known_usd(self) -> float:
        """What the answers so far have cost, as far as their prices are known."""
        return sum(cost.usd for cost in self._costs if cost.usd is not None)

    @property
    def unpriced(self) -> int:
        """How many answers have no price."""
        return sum(cost.usd is None for cost in self._costs)

    def prepare(self, cancel: Cancel) -> None:
        """Have the model's client load what it loads for its first question: nobody who stops waits for that."""
        client = self._asker.client
        abandon.call(lambda: client.count_tokens(_NOTHING), Patience(cancel, self._means.ending), _PREPARE_S)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """As the model counts that is asked next."""
        return self._asker.client.count_tokens(messages)

    @property
    def takes_schema(self) -> bool:
        """Whether the model that is asked next is known to obey a schema; once it is prepared."""
        client = self._asker.client
        return isinstance(client, KnowsSchemas) and client.takes_schema()

    def skip(self) -> bool:
        """Turn to the next model, as this one can read too little; False: there is none."""
        return self._asker.skip()

    def ask(
        self,
        messages: Sequence[Message],
        index: int,
        timeout: float,
        cancel: Cancel,
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The reply to a question, the ``index``-th of the proposal; ``schema``: what it should obey.

        Raises:
            ModelError: the context is too long.
            PolicyError: every model refused.
            EnvironmentFailure: no model gave a reply; ModelsRefused where no waiting mends that of any.
            SpendCapReached: nothing more may be spent.
            Interrupted: ``cancel`` was set.
        """
        settings = self._means.settings
        self._asked = self._state.redactor.value(tuple(messages))
        question = Question(
            self._asked,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=derive_seed(self._state.seed, self._attempt, "answer", index),
            timeout=timeout,
            schema=schema,
        )
        started = self._means.clock()
        try:
            reply = self._asker.ask(question, cancel)
        except Unanswered as error:
            raise self._no_reply(error) from error
        elapsed = reply.cost.seconds if reply.cost.seconds > 0 else self._means.clock() - started
        return replace(reply, cost=replace(reply.cost, seconds=elapsed))

    def record(self, reply: Reply, *, error: str = "", form: str = "") -> Generation:
        """Write an answer down and charge it; what the learner needs of it."""
        name = self._asker.client.name
        generation = generation_of(self._state, self._asked, reply)
        self._store(
            Answer(
                model=answer.clean(reply.model, _NAME) or name,
                cost=spend.priced(reply.cost, self._means.settings.prices, name, reply.model),
                generation=generation,
                error=shown(self._state, error),
                form=form,
                finish=answer.clean(reply.finish, _NAME),
                attempt=self._attempt,
            )
        )
        return generation

    def _charge_failure(self, model: str, error: ModelError) -> None:
        """A question that got no reply, but cost something."""
        cost = spend.priced(error.cost or Cost(), self._means.settings.prices, model)
        what = f"no reply: {error.trouble} ({shown(self._state, error.what)})"
        self._store(Answer(model, cost, Generation(messages=self._asked), error=what, attempt=self._attempt))

    def _store(self, given: Answer) -> None:
        self._costs.append(given.cost)
        self._means.answers.record(self._state.number, given)

    def _no_reply(self, error: Unanswered) -> Exception:
        what = shown(self._state, error.what)
        if error.refused:  # the same question would be refused again, but the next state is another one
            return PolicyError(f"no model would answer: {what}", label=Label.MALFORMED_ANSWER)
        # What only the user can mend comes first: all else may pass by itself.
        failure = next((f for f in error.failures if f.error.trouble in _MENDS), error.failures[0])
        told, advice = f"no model gave a reply: {what}", mend(failure)
        if error.final:
            return ModelsRefused(told, mend=f"{advice}, then `autoresearchd resume`")
        return EnvironmentFailure(told, mend=advice)


def mend(failure: Failure) -> str:
    """What helps where a model gave no reply."""
    return failure.error.mend or _MENDS.get(failure.error.trouble, _MEND).format(model=failure.model)


def generation_of(state: ResearchState, messages: tuple[Message, ...], reply: Reply) -> Generation:
    """What the learner needs of an answer, without secrets.

    Tokens and their log-probabilities are left out where they would not be those of the text that is stored.
    """
    clean = state.redactor.text(reply.text)
    whole = clean == reply.text and len(clean) <= MAX_ANSWER
    ids, logprobs = reply.token_ids, reply.logprobs
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        ids = logprobs = None
    if logprobs is not None and not all(map(math.isfinite, logprobs)):
        logprobs = None
    return Generation(
        messages=messages,
        completion=storable(clean[:MAX_ANSWER]),
        token_ids=ids if whole else None,
        logprobs=logprobs if whole else None,
        sampling=state.redactor.value(dict(reply.sampling)),
        model_hash=reply.model_hash,
        tokenizer_hash=reply.tokenizer_hash,
        template_hash=reply.template_hash,
        adapter=answer.clean(reply.adapter, _NAME) or None,
    )


def shown(state: ResearchState, text: str) -> str:
    """Words of an error as they are stored and sent back: without secrets and control characters, cut."""
    lines = state.redactor.text(text).splitlines()
    kept = "\n".join("".join(c if c.isprintable() or c == "\t" else " " for c in line) for line in lines)
    return cut(kept, MAX_ERROR)


def storable(text: str) -> str:
    """Text that a database and a request can hold: without halves of surrogate pairs and zero bytes."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def cut(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    return f"{text[:head]}\n… ({len(text) - most:,} characters left out) …\n{text[len(text) - (most - head) :]}"

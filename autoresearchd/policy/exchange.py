"""The questions and answers of one proposal: each answer is written down, and charged, before it is used.

A question is repeated with backoff, then the next model is asked, until one answers or none is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from autoresearchd.domain.cleaning import clean, printable
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, ModelsRefused, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import AnswerLog, Cancel, Purse
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.models import spend
from autoresearchd.models.client import (
    FINAL,
    PASSING,
    KnowsPrices,
    KnowsSchemas,
    Message,
    ModelClient,
    ModelError,
    Question,
    Reply,
    Trouble,
    perform,
)
from autoresearchd.policy import answer_words

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
LONGEST_ASKED_S = 300.0
"""The longest ``Retry-After`` that is slept out: who asks for more is left to the next model, or to the loop."""

GRACE_S = 2.0
"""How long an answer under way is still waited for: it is paid for, and about to come more often than not."""

_MAX_WORDS = 300

MAX_ANSWER = 1_000_000
"""Characters of an answer that are stored; more than any legal edit needs."""

MAX_ERROR = 2_000
_NAME = 200
_NOTHING: tuple[Message, ...] = ({"role": "user", "content": "-"},)
_PREPARE_S = 86_400.0
"""Longer than anything takes to load: whose loading hangs is told so by the user's stop."""
_HINTS: Mapping[Trouble, str] = {
    Trouble.UNAUTHORISED: "put a valid key for {model} into the variable that its provider reads (ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY, …) or into the file that key_files names (local.key_file for the policy local)",
    Trouble.NOT_FOUND: "correct the model {model}: after the colon of --policy, or under policy, fallbacks or "
    "local.model in config.yaml",
    Trouble.BAD_REQUEST: "see what {model} takes: max_tokens and temperature in config.yaml go with each question",
}
_HINT = "it is tried again by itself; models under fallbacks in config.yaml are asked in place of {model}"


@dataclass(slots=True)
class Patience:
    """A ``Cancel`` that is set when another one is, or some time after the session was asked to end.

    cancel: whoever wants the end at once. ending: set once the session is to end, at the latest when ``cancel`` is;
    None: nobody says so. grace: seconds from then on. clock: monotonic seconds.
    """

    cancel: Cancel
    ending: Cancel | None = None
    grace: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)

    def is_set(self) -> bool:
        """Whether the patience is at its end; the grace begins when this is first asked after the request."""
        if self.cancel.is_set():
            return True
        if self.ending is None or not self.ending.is_set():
            return False
        if self._since is None:
            self._since = self.clock()
        return self.clock() - self._since >= self.grace

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the session is to end or until the time-out; True when the patience is at its end."""
        (self.cancel if self.ending is None else self.ending).wait(timeout)
        return self.is_set()

    def check(self, what: str) -> None:
        """Raise Interrupted where the patience is at its end; ``what``: what is not done any more."""
        if self.is_set():
            raise Interrupted(f"{what}: a stop was requested")


@dataclass(frozen=True, slots=True)
class Failure:
    """A model that gave no reply, with its last error."""

    model: str
    error: ModelError


class Unanswered(ModelError):
    """No model gave a reply. failures: of each model that was asked, why; its trouble is that of the last."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        told = [f"{f.model}: {f.error.trouble} ({clean(f.error.what, _MAX_WORDS)})" for f in failures]
        remedies = dict.fromkeys(f.error.hint for f in failures if f.error.hint)
        super().__init__(failures[-1].error.trouble, "; ".join(told), hint="; ".join(remedies))
        self.failures = tuple(failures)

    @property
    def refused(self) -> bool:
        """Whether every model refused to answer, so that asking the same again is of no use."""
        return all(f.error.trouble is Trouble.REFUSED for f in self.failures)

    @property
    def final(self) -> bool:
        """Whether no waiting fixes what is wrong with any of the models."""
        return all(f.error.trouble in FINAL for f in self.failures)


class Asker:
    """Asks the questions of one proposal.

    A passing trouble is waited out with exponential backoff and full jitter (M. Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015), never for less than the provider asks; any other goes to the next model at
    once. Later questions begin at the model that answered last: it knows its own answers.

    clients: the model, then those that are asked in its place, in turn. retries: how often a question is repeated to
    one model. purse: looked into before every call that goes out. charge: told of each failed call that cost something,
    with the model's name. random: draws the jitter. ending: set once the session is to end: nobody who gives no reply
    is asked again then.
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
            except Interrupted:  # sent, and then not waited for: it is likely to be billed all the same
                what = "the reply was not waited for: a stop was requested"
                self._charge(client.name, ModelError(Trouble.TIMEOUT, what, cost=_sent(client, question)))
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


def _seconds(retry_after: float | None) -> float:
    """What the provider asks to wait; nothing where that is no time."""
    return retry_after if retry_after is not None and math.isfinite(retry_after) and retry_after > 0 else 0.0


# ---------------------------------------------------------------------- the questions of a proposal
Check = Callable[[ResearchState, Mapping[str, str]], None]
"""Lets the changed files of an edit pass, or raises PolicyError with what is wrong with them."""

Near = Callable[[ResearchState, Mapping[str, str], Mapping[str, Any]], str]
"""What an edit (its files, and the constants that it changes) is nearly the same as, in words; empty: nothing."""


@dataclass(eq=False)
class AskingPolicy:
    """What the policies that ask a model have in common: what their proposals are made with.

    clients: the model, then those that are asked when it gives no reply. settings: the user's. name: as in
    ``--policy``. answers: where each answer is written down before anything is done with it. purse: what may be spent.
    check: whether an edit is legal. near: what an edit is nearly the same as; the model is told so once, and may
    insist. clock: monotonic seconds. ending: set once the session is to end: nothing new is asked then; None: nobody
    says so before it is to end at once.
    """

    clients: Sequence[ModelClient]
    settings: ModelSettings
    _: KW_ONLY
    name: str
    answers: AnswerLog
    purse: Purse
    check: Check
    near: Near | None = None
    clock: Callable[[], float] = time.monotonic
    ending: Cancel | None = None

    @property
    def repairs(self) -> int:
        """As the user has set it."""
        return self.settings.repairs


class Exchange:
    """Asks the questions of one proposal and keeps the accounts of it."""

    def __init__(self, means: AskingPolicy, state: ResearchState) -> None:
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
        perform(lambda: client.count_tokens(_NOTHING), Patience(cancel, self._means.ending), _PREPARE_S)

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
            EnvironmentFailure: no model gave a reply; ModelsRefused where no waiting fixes that of any.
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
                model=clean(reply.model, _NAME) or name,
                cost=spend.priced(reply.cost, self._means.settings.prices, name, reply.model),
                generation=generation,
                error=clean_error(self._state, error),
                form=form,
                finish=clean(reply.finish, _NAME),
                attempt=self._attempt,
            )
        )
        return generation

    def proposal(
        self,
        files: Mapping[str, str],
        words: Mapping[str, Any],
        base: Mapping[str, str],
        reply: Reply,
        generation: Generation,
    ) -> Proposal:
        """What an answer proposes: files that differ from ``base``, in the words that it says of them."""
        state = self._state
        description = clean(words.get("description"), answer_words.MAX_LINE)
        hypothesis = clean(words.get("hypothesis"), answer_words.MAX_TEXT) or description
        if not hypothesis and state.repair is not None:
            hypothesis = clean(state.repair.description, answer_words.MAX_LINE)
        hypothesis = hypothesis or answer_words.hypothesis(base, files)
        return Proposal(
            files=dict(files),
            hypothesis=hypothesis,
            policy=self._means.name,
            description=description or clean(hypothesis, answer_words.MAX_LINE),
            expected_delta=answer_words.number(words.get("expected_delta")),
            changes=answer_words.changes(base, files),
            role=state.role,
            adapter=clean(reply.adapter, _NAME),
            asi=answer_words.asi_of(words, hypothesis),
            cost=self.cost,
            generation=generation,
            state_id=state.state_id,
            round_id=state.round_id,
            attempt=self._attempt,
            charged=True,
        )

    def _charge_failure(self, model: str, error: ModelError) -> None:
        """A question that got no reply, but cost something."""
        cost = spend.priced(error.cost or Cost(), self._means.settings.prices, model)
        what = f"no reply: {error.trouble} ({clean_error(self._state, error.what)})"
        self._store(Answer(model, cost, Generation(messages=self._asked), error=what, attempt=self._attempt))

    def _store(self, given: Answer) -> None:
        self._costs.append(given.cost)
        self._means.answers.record(self._state.number, given)

    def _no_reply(self, error: Unanswered) -> Exception:
        what = clean_error(self._state, error.what)
        if error.refused:  # the same question would be refused again, but the next state is another one
            return PolicyError(f"no model would answer: {what}", label=Label.MALFORMED_ANSWER)
        # What only the user can fix comes first: all else may pass by itself.
        failure = next((f for f in error.failures if f.error.trouble in _HINTS), error.failures[0])
        told, advice = f"no model gave a reply: {what}", hint(failure)
        if error.final:
            return ModelsRefused(told, hint=f"{advice}, then `autoresearchd resume`")
        return EnvironmentFailure(told, hint=advice)


def hint(failure: Failure) -> str:
    """What helps where a model gave no reply."""
    return failure.error.hint or _HINTS.get(failure.error.trouble, _HINT).format(model=failure.model)


def generation_of(state: ResearchState, messages: tuple[Message, ...], reply: Reply) -> Generation:
    """What the learner needs of an answer, without secrets.

    Tokens and their log-probabilities are left out where they would not be those of the text that is stored.
    """
    text = state.redactor.text(reply.text)
    whole = text == reply.text and len(text) <= MAX_ANSWER
    ids, logprobs = reply.token_ids, reply.logprobs
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        ids = logprobs = None
    if logprobs is not None and not all(map(math.isfinite, logprobs)):
        logprobs = None
    return Generation(
        messages=messages,
        completion=make_storable(text[:MAX_ANSWER]),
        token_ids=ids if whole else None,
        logprobs=logprobs if whole else None,
        sampling=state.redactor.value(dict(reply.sampling)),
        model_hash=reply.model_hash,
        tokenizer_hash=reply.tokenizer_hash,
        template_hash=reply.template_hash,
        adapter=clean(reply.adapter, _NAME) or None,
    )


def clean_error(state: ResearchState, text: str) -> str:
    """Words of an error as they are stored and sent back: without secrets and control characters, cut."""
    lines = "\n".join(state.redactor.text(text).splitlines())
    return cut_middle(printable(lines, keep="\n\t", instead=" "), MAX_ERROR)


def make_storable(text: str) -> str:
    """Text that a database and a request can hold: without halves of surrogate pairs and zero bytes."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def cut_middle(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    return f"{text[:head]}\n… ({len(text) - most:,} characters left out) …\n{text[len(text) - (most - head) :]}"

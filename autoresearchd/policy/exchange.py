"""The questions and answers of one proposal: each answer is written down, and charged, before it is used.

A question is repeated with backoff, then the next model is asked, until one answers or none is left.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.cleaning import clean, printable, storable
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, ModelsRefused, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.outlook import Value
from autoresearchd.domain.ports import AnswerLog, Cancel, Purse, ResearchState
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.models import spend
from autoresearchd.models.client import (
    FINAL,
    PASSING,
    Message,
    ModelClient,
    ModelError,
    Question,
    Reply,
    Trouble,
    perform,
)
from autoresearchd.policy import answer_words

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
LONGEST_ASKED_S = 300.0
"""The longest ``Retry-After`` that is slept out: who asks for more is left to the next model, or to the loop."""
GRACE_S = 2.0
"""How long an answer under way is still waited for: it is paid for, and about to come more often than not."""
MAX_ANSWER = 1_000_000
"""Characters of an answer that are stored; more than any legal edit needs."""
MAX_ERROR = 2_000
SHRINKS = 3
"""How often a prompt is halved that a model finds too long."""
_MAKE_ROOM = (
    "take a model with a longer context and set context_tokens in config.yaml to it, or make the editable files shorter"
)
_MAX_WORDS, _NAME = 300, 200
_NOTHING: tuple[Message, ...] = ({"role": "user", "content": "-"},)
_PREPARE_S = 86_400.0
"""Longer than anything takes to load: whose loading hangs is told so by the user's stop."""
_HINTS: Mapping[Trouble, str] = {
    Trouble.UNAUTHORISED: "put a valid key for {model} into the variable that its provider reads (ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY, …) or into the file that key_files names (local.key_file for the policy local)",
    Trouble.NOT_FOUND: "correct the model {model}: after the colon of --policy, or under policy, fallbacks or "
    "local.model in config.yaml",
    Trouble.TIMEOUT: "raise timeout or lower max_tokens in config.yaml; where a gateway gave up, raise its time-out",
    Trouble.BAD_REQUEST: "see what {model} takes: max_tokens and temperature in config.yaml go with each question",
}
_HINT = "it is tried again by itself; models under fallbacks in config.yaml are asked in place of {model}"

Check = Callable[[ResearchState, Mapping[str, str]], None]
"""Lets the changed files of an edit pass, or raises PolicyError with what is wrong with them."""
Near = Callable[[ResearchState, Mapping[str, str], Mapping[str, Any]], str]
"""What is to be said of an edit (its files, and the constants that it changes) that is not new, as the words that
follow on "the edit": what it is nearly the same as, or brings back. Empty: nothing."""


@dataclass(slots=True)
class Patience:
    """A ``Cancel`` that is set when another one is, at a deadline, or some time after the session was asked to end.

    ending: set once the session is to end, at the latest when ``cancel`` is. grace: seconds from when that is seen.
    """

    cancel: Cancel
    ending: Cancel | None = None
    grace: float = 0.0
    clock: Callable[[], float] = time.monotonic
    deadline: float = math.inf

    def is_set(self) -> bool:
        if self.ending is not None and self.ending.is_set():
            self.deadline, self.ending = min(self.deadline, self.clock() + self.grace), None
        return self.cancel.is_set() or self.clock() >= self.deadline

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the session is to end or until the time-out; True when the patience is at its end."""
        rest = max(0.0, self.deadline - self.clock())
        most = min(rest, math.inf if timeout is None else timeout)
        (self.cancel if self.ending is None else self.ending).wait(None if most == math.inf else most)
        return self.is_set()


@dataclass(frozen=True, slots=True)
class Failure:
    """A model that gave no reply, with its last error."""

    model: str
    error: ModelError

    def __str__(self) -> str:
        return f"{self.model}: {self.error.trouble} ({clean(self.error.what, _MAX_WORDS)})"

    @property
    def hint(self) -> str:
        return self.error.hint or _HINTS.get(self.error.trouble, _HINT).format(model=self.model)


@dataclass(eq=False)
class AskingPolicy(ABC):
    """What the policies that ask a model have in common.

    clients: the model, then those that are asked when it gives no reply. answers: where each answer is written down
    before anything is done with it. near: what in an edit is not new; the model is told so once, and may insist. clock:
    monotonic seconds. ending: set once the session is to end: nothing new is asked then.
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
    _round: str = field(default="", init=False)

    @property
    def repairs(self) -> int:
        return self.settings.repairs

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """The first usable answer; of a round, repairs included, by one version of the model: a group is learned from.

        Raises PolicyError: no answer could be used, and its cost has been charged; EnvironmentFailure: no model gave a
        reply, or none can take the prompt; SpendCapReached; Interrupted.
        """
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        if state.repair is None and (not state.round_id or state.round_id != self._round):
            self.clients[0].renew()
            self._round = state.round_id
        exchange = Exchange(self, state)
        try:
            return self.work(state, exchange, cancel)
        except PolicyError as error:
            error.cost = exchange.cost if exchange.costs else None
            error.adapter = exchange.adapter
            raise

    @abstractmethod
    def work(self, state: ResearchState, exchange: Exchange, cancel: Cancel) -> Proposal:
        """Ask until an answer can be used, or raise as ``propose`` does."""


class Exchange:
    """The questions and answers of one proposal, and its accounts. costs: of all answers, and of failed calls.

    adapter: the version of the local policy that gave the last answer.

    A passing trouble is waited out with exponential backoff and full jitter (M. Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015), never for less than the provider asks; any other goes to the next model at
    once. Later questions begin at the model that answered last: it knows its own answers.
    """

    def __init__(self, means: AskingPolicy, state: ResearchState) -> None:
        self._means, self._state, self._at = means, state, 0
        self._budget, self._too_long = means.settings.context_tokens, ""
        self._attempt = state.repair.attempt if state.repair else 0
        self._asked: tuple[Message, ...] = ()
        self._random = Random(state.seed)  # noqa: S311 - jitter
        self.costs: list[Cost] = []
        self.adapter = ""

    @property
    def client(self) -> ModelClient:
        return self._means.clients[self._at]

    @property
    def cost(self) -> Cost:
        """Of all answers so far; unknown where that of any is."""
        return spend.total(self.costs)

    def prepare(self, cancel: Cancel) -> None:
        """Have the model's client load what it loads for its first question: nobody who stops waits for that."""
        perform(lambda: self.client.count_tokens(_NOTHING), Patience(cancel, self._means.ending), _PREPARE_S)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return self.client.count_tokens(messages)

    def ask(
        self,
        build: Callable[[int], Sequence[Message]],
        index: int,
        timeout: float,
        cancel: Cancel,
        *,
        schema: Mapping[str, Any] | None = None,
        misfit: type[EnvironmentFailure | PolicyError] = PolicyError,
    ) -> Reply:
        """The first reply to what ``build`` makes of a budget of tokens, which is halved until a model can take it.

        index: of the question in the proposal. misfit: raised where no model can take it. Raises PolicyError: every
        model refused. EnvironmentFailure: no model replied; ModelsRefused where no waiting fixes that of any.
        """
        settings = self._means.settings
        seed = derive_seed(self._state.seed, self._attempt, "answer", index)
        while True:
            short = "the model finds even the shortest prompt too long"
            while self._budget >= max(1, settings.context_tokens >> SHRINKS):
                try:
                    messages = build(self._budget)
                except PolicyError as error:
                    short = error.what
                    break
                self._asked = self._state.redactor.value(tuple(messages))
                question = Question(
                    self._asked, settings.max_tokens, settings.temperature, seed, timeout=timeout, schema=schema
                )
                try:
                    return self._ask_in_turn(question, cancel)
                except ModelError as error:
                    self._too_long = clean_error(self._state, error.what)
                    self._budget //= 2
            if not self._too_long or self._at + 1 >= len(self._means.clients):
                what = f"{short}; the model said: {self._too_long}" if self._too_long else short
                raise misfit(what, hint=_MAKE_ROOM)
            self._at += 1
            self._budget, self._too_long = settings.context_tokens, ""

    def _ask_in_turn(self, question: Question, cancel: Cancel) -> Reply:
        started = self._means.clock()
        failures: list[Failure] = []
        for at in range(self._at, len(self._means.clients)):
            self._at = at
            try:
                reply = self._insist(question, cancel)
            except ModelError as error:
                if error.trouble is Trouble.CONTEXT_TOO_LONG:
                    raise
                failures.append(Failure(self.client.name, error))
            else:
                elapsed = reply.cost.seconds if reply.cost.seconds > 0 else self._means.clock() - started
                return replace(reply, cost=replace(reply.cost, seconds=elapsed))
        raise self._no_reply(failures) from failures[-1].error

    def _insist(self, question: Question, cancel: Cancel) -> Reply:
        """The reply of one model, asked again while its trouble may pass and somebody has the patience."""
        client, patience = self.client, Patience(cancel, self._means.ending)
        for attempt in count():
            if cancel.is_set():
                raise Interrupted("the policy was asked to stop")
            self._means.purse.check()
            try:
                return client.ask(question, cancel)
            except Interrupted:  # sent, and then not waited for: it is likely to be billed all the same
                what = "the reply was not waited for: a stop was requested"
                self._charge_failure(ModelError(Trouble.TIMEOUT, what, cost=self._cost_unanswered(question)))
                raise
            except ModelError as error:
                if error.cost is None and error.trouble is Trouble.TIMEOUT:
                    # It was sent, and whoever answered too late is likely to bill it all the same: as much as may
                    # have been written by then, so that a cap ends what would go on unseen.
                    error.cost = self._cost_unanswered(question, question.max_tokens)
                if error.cost is not None:
                    self._charge_failure(error)
                asked = error.retry_after or 0.0
                asked = asked if math.isfinite(asked) and asked > 0 else 0.0
                retries = self._means.settings.retries
                if error.trouble is Trouble.TIMEOUT:  # the same question takes about as long again
                    retries = min(1, retries)
                if error.trouble not in PASSING or attempt >= retries or asked > LONGEST_ASKED_S:
                    raise
            # All who were turned away are told the same: they should not come back together.
            most = FIRST_PAUSE_S if asked else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 30))
            if patience.wait(asked + self._random.uniform(0, most)):
                raise Interrupted(f"{client.name} was not asked again: a stop was requested")
        raise AssertionError("an endless loop has ended")

    def _cost_unanswered(self, question: Question, tokens_out: int = 0) -> Cost:
        """What a question has cost that was sent, and whose reply nobody knows."""
        cost = Cost(usd=None, tokens_in=self.client.count_tokens(question.messages), tokens_out=tokens_out)
        return replace(cost, usd=self.client.price(cost))

    def _charge_failure(self, error: ModelError) -> None:
        model = self.client.name
        cost = spend.priced(error.cost or Cost(), self._means.settings.prices, model)
        what = f"no reply: {error.trouble} ({clean_error(self._state, error.what)})"
        self._store(Answer(model, cost, Generation(messages=self._asked), error=what, attempt=self._attempt))

    def _no_reply(self, failures: Sequence[Failure]) -> Exception:
        what = clean_error(self._state, "; ".join(map(str, failures)))
        troubles = {failure.error.trouble for failure in failures}
        if troubles == {Trouble.REFUSED}:  # the same question would be refused again, but the next state is another one
            return PolicyError(f"no model would answer: {what}", label=Label.MALFORMED_ANSWER)
        # What only the user can fix comes first: all else may pass by itself.
        hint = next((f for f in failures if f.error.trouble in _HINTS), failures[0]).hint
        if troubles <= FINAL:
            return ModelsRefused(f"no model gave a reply: {what}", hint=f"{hint}, then `autoresearchd resume`")
        return EnvironmentFailure(f"no model gave a reply: {what}", hint=hint)

    def record(self, reply: Reply, *, error: str = "", form: str = "") -> Generation:
        """Write an answer down and charge it; what the learner needs of it, without secrets.

        Tokens and their log-probabilities are left out where they would not be those of the text that is stored.
        """
        redactor, name = self._state.redactor, self.client.name
        text, ids, logprobs = redactor.text(reply.text), reply.token_ids, reply.logprobs
        if ids is not None and logprobs is not None and len(ids) != len(logprobs):
            ids = logprobs = None
        if logprobs is not None and not all(map(math.isfinite, logprobs)):
            logprobs = None
        whole = text == reply.text and len(text) <= MAX_ANSWER
        self.adapter = clean(reply.adapter, _NAME)
        generation = Generation(
            messages=self._asked,
            completion=storable(text[:MAX_ANSWER]),
            token_ids=ids if whole else None,
            logprobs=logprobs if whole else None,
            sampling=redactor.value(dict(reply.sampling)),
            model_hash=reply.model_hash,
            tokenizer_hash=reply.tokenizer_hash,
            template_hash=reply.template_hash,
            adapter=self.adapter or None,
        )
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

    def _store(self, given: Answer) -> None:
        self.costs.append(given.cost)
        self._means.answers.record(self._state.number, given)

    def find_near(self, files: Mapping[str, str], changes: Mapping[str, Value] = {}) -> str:
        """What in an edit is not new; that of a repair may be. changes: as for ``proposal``."""
        near, state = self._means.near, self._state
        if near is None or state.repair is not None:
            return ""
        return clean_error(state, near(state, files, changes or answer_words.changes(state.code, files)))

    def proposal(
        self,
        files: Mapping[str, str],
        words: Mapping[str, Any],
        reply: Reply,
        generation: Generation,
        changes: Mapping[str, Value] = {},
    ) -> Proposal:
        """What an answer proposes: files that differ from the parent's, in the words that it says of them.

        changes: constants that it sets and nothing else; where it does not name them, the files may tell.
        """
        made = answer_words.propose(self._state, files, self._state.redactor.value(dict(words)), self._means.name)
        return replace(
            made,
            changes=changes or made.changes,
            adapter=clean(reply.adapter, _NAME),
            cost=self.cost,
            generation=generation,
            attempt=self._attempt,
            charged=True,
        )


def clean_error(state: ResearchState, text: str) -> str:
    """Words of an error as they are stored and sent back: without secrets and control characters, cut."""
    lines = "\n".join(state.redactor.text(text).splitlines())
    return cut_middle(printable(lines, keep="\n\t", instead=" "), MAX_ERROR)


def cut_middle(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    return f"{text[:head]}\n… ({len(text) - most:,} characters left out) …\n{text[len(text) - (most - head) :]}"


def answer_turn(text: str) -> Message:
    """An answer as a turn of the model; an empty one is refused by most providers."""
    return {"role": "assistant", "content": text if text.strip() else "(nothing)"}

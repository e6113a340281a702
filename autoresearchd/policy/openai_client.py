"""Models behind an OpenAI-compatible endpoint of the user's own: vLLM, ``transformers serve``, llama.cpp, Ollama.

Spoken to over plain HTTP (``endpoint``) and not through the ``openai`` package: what the learner needs (token ids) is
not in that package's types, which bound neither the size of a reply nor where a redirect may carry the key; and one
request with one JSON object is all there is to it. See the vLLM docs, *OpenAI-Compatible Server*, for
``return_token_ids`` and ``return_tokens_as_token_ids``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoresearchd.domain.proposal import Cost
from autoresearchd.domain.settings import Price
from autoresearchd.errors import UsageError
from autoresearchd.policy import abandon, provider
from autoresearchd.policy.answer import clean
from autoresearchd.policy.client import Message, ModelError, Question, Reply, Trouble
from autoresearchd.policy.endpoint import Answered, Endpoint, Line, require
from autoresearchd.policy.fit import estimate_tokens
from autoresearchd.policy.prices import priced
from autoresearchd.ports import Cancel

KEY_VARIABLE = "AUTORESEARCHD_LOCAL_KEY"

_IDS = ("return_token_ids", "return_tokens_as_token_ids")
_LOGPROBS = ("logprobs",)
_SCHEMA = ("response_format",)
_STOP = ("stop",)
_MODEL = ("model",)
_LISTING_BYTES, _LISTING_S = 1_000_000, 10.0
_BYTES_PER_TOKEN = 512
"""Of JSON, for a token with its log-probability."""
_SHORTEST_REPLY = 256
_MAX_NAME = 300


class OpenAIClient:
    """Asks a model of an endpoint, for token ids and log-probabilities too where the server knows of them.

    A field that a server refuses is left out of all later questions of the same kind. A reply may take at most half of
    the context that the server tells of (vLLM's ``max_model_len``). The log-probabilities are the server's: vLLM gives
    those under the sampling temperature only with ``--logprobs-mode processed_logprobs``, as ``autoresearchd serve``
    starts it.

    Args:
        url: of the endpoint, up to and with ``/v1``.
        model: its name there; empty: the first that the server lists, else whichever it has.
        adapter: name of a LoRA adapter as served, asked in the model's place.
        key: bearer token, see ``read_key``.
        prices: of the user; a model without one costs nothing here, as it runs on the user's own machine.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        adapter: str | None = None,
        key: str = "",
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, key)
        self._model, self._adapter, self._prices = model, adapter or "", dict(prices or {})
        self._listed = ""
        self._context: int | None = None
        self._looked = False
        self._refused: dict[tuple[tuple[str, ...], ...], int] = {}

    @property
    def name(self) -> str:
        """``local:`` and the model, or ``local`` as long as it is not known which."""
        return f"local:{self._name}" if self._name else "local"

    @property
    def _name(self) -> str:
        return self._adapter or self._model or self._listed

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """As the protocol says; a cancelled question is cut off at the server too."""
        require()
        line, deadline = Line(), time.monotonic() + question.timeout
        return abandon.call(lambda: self._ask(question, line, deadline), cancel, question.timeout, give_up=line.cut)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """An estimate that errs upwards: not every server counts, and a prompt must be the same at every server."""
        return estimate_tokens(messages)

    # -- asking
    def _ask(self, question: Question, line: Line, deadline: float) -> Reply:
        self._look(line, deadline)
        began = time.monotonic()
        payload, optional = self._payload(question)
        most = 2 * provider.MAX_REPLY_BYTES + _BYTES_PER_TOKEN * question.max_tokens
        for left_out in range(self._refused.get(optional, 0), len(optional) + 1):
            without = {name for names in optional[:left_out] for name in names}
            sent = {name: value for name, value in payload.items() if name not in without}
            answered = self._endpoint.exchange(line, "chat/completions", sent, deadline=deadline, most=most)
            if answered.status == 200:
                self._refused[optional] = left_out
                return self._reply(question, sent, answered.object(), time.monotonic() - began)
            error = self._error(answered)
            if error.trouble is not Trouble.BAD_REQUEST or answered.status not in (400, 422):
                break
        raise error

    def _payload(self, question: Question) -> tuple[dict[str, Any], tuple[tuple[str, ...], ...]]:
        """The whole request, and the groups of its fields that a server may not know, in the order of their loss."""
        most = question.max_tokens
        if self._context is not None:
            most = min(most, max(_SHORTEST_REPLY, self._context // 2))
        payload: dict[str, Any] = {
            "model": self._name,
            "messages": [dict(message) for message in question.messages],
            "max_tokens": most,
            "stream": False,
            "logprobs": True,
            **dict.fromkeys(_IDS, True),
        }
        optional = [_IDS, _LOGPROBS]
        if question.temperature is not None:
            payload["temperature"] = question.temperature
        if question.seed is not None:
            payload["seed"] = question.seed
        if question.schema is not None:
            schema = {"name": "answer", "schema": dict(question.schema)}
            payload["response_format"] = {"type": "json_schema", "json_schema": schema}
            optional.append(_SCHEMA)
        if question.stop:
            payload["stop"] = list(question.stop)
            optional.append(_STOP)
        if not (self._adapter or self._model):
            # ``transformers serve FOLDER`` lists whatever lies in a cache, but gives its one model under no other name.
            optional.append(_MODEL)
            if not self._listed:
                del payload["model"]
        return payload, tuple(optional)

    def _look(self, line: Line, deadline: float) -> None:
        """What the server serves: once, and without a fuss. Who has one model does not always list it."""
        if self._looked:
            return
        soon = min(deadline, time.monotonic() + _LISTING_S)
        try:
            answered = self._endpoint.exchange(line, "models", None, deadline=soon, most=_LISTING_BYTES)
            if answered.status != 200:
                raise self._error(answered)
            models = _models(answered.object())
        except ModelError as error:
            if error.trouble in (Trouble.UNREACHABLE, Trouble.UNAUTHORISED):
                raise
            models = []
        self._listed = models[0][0] if models else ""
        self._context = next((context for _, context in models if context is not None), None)
        self._looked = True

    def _error(self, answered: Answered) -> ModelError:
        words = self._endpoint.words(answered)
        if 300 <= answered.status < 400:
            words = "it sends the question elsewhere, which is not followed"
        trouble = provider.trouble_of(answered.status, words)
        nameless = trouble in (Trouble.NOT_FOUND, Trouble.BAD_REQUEST) and not self._name
        return ModelError(
            trouble,
            f"{self._endpoint.url} answered {answered.status}: {words}",
            retry_after=provider.retry_after(answered.headers),
            mend="name the model: --policy local:MODEL" if nameless else "",
        )

    # -- reading
    def _reply(self, question: Question, sent: Mapping[str, Any], found: Mapping[str, Any], seconds: float) -> Reply:
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ModelError(Trouble.BROKEN_REPLY, "the reply holds no message")
        content, refusal = message.get("content"), message.get("refusal")
        if not (content is None or isinstance(content, str)):
            raise ModelError(Trouble.BROKEN_REPLY, "the message of the reply is no text")
        cost = self._cost(found.get("usage"), seconds)
        finish = clean(choice.get("finish_reason"), 40) or "stop"
        text = provider.checked_text(content or "", finish, refusal if isinstance(refusal, str) else "", cost)
        ids, logprobs = tokens_of(choice)
        cut = provider.before_stop(text, question.stop)
        if cut != text:  # the server does not know of stops: its tokens are those of another text
            text, ids, logprobs = cut, None, None
        sampling = {name: sent[name] for name in ("temperature", "seed", "stop", "max_tokens") if name in sent}
        return Reply(
            text=text,
            model=clean(found.get("model"), _MAX_NAME) or self._name or "unnamed",
            cost=cost,
            finish=finish,
            token_ids=ids,
            logprobs=logprobs,
            sampling={**sampling, "logprobs_of": "server"} if logprobs is not None else sampling,
            adapter=self._adapter,
        )

    def _cost(self, usage: object, seconds: float) -> Cost:
        counts = usage if isinstance(usage, dict) else {}
        tokens_in, tokens_out = (
            provider.count(counts.get("prompt_tokens")),
            provider.count(counts.get("completion_tokens")),
        )
        cost = Cost(usd=0.0, tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds)
        return priced(cost, self._prices, self._adapter, self._model, self._listed)


def read_key(key_file: str, environment: Mapping[str, str] | None = None) -> str:
    """The key of the endpoint: the file's first line, else ``AUTORESEARCHD_LOCAL_KEY``, else nothing.

    Raises UsageError where the file cannot be read or holds no key.
    """
    if not key_file:
        key = (os.environ if environment is None else environment).get(KEY_VARIABLE, "").strip()
        where = KEY_VARIABLE
    else:
        where = key_file
        try:
            with Path(key_file).expanduser().open(encoding="utf-8") as file:
                key = file.readline(10_000).strip()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the key file {key_file} cannot be read: {error}", mend="see to key_file in config.yaml"
            ) from error
        if not key:
            raise UsageError(f"the key file {key_file} is empty", mend="its first line is the key")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{where} holds no key: a key is printable ASCII on one line", mend="write the key alone")
    return key


def tokens_of(choice: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Token ids and log-probabilities of a choice, each None where the server does not tell all of them.

    vLLM gives the ids beside the message (``token_ids``) or in each token's name (``token_id:17``), llama.cpp as each
    token's ``id``. Two lists of different lengths are no use to anybody.
    """
    found = choice.get("logprobs")
    content = found.get("content") if isinstance(found, dict) else None
    entries = [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []
    logprobs = [_logprob(entry.get("logprob")) for entry in entries]
    given = choice.get("token_ids")
    ids = [_id(value) for value in given] if isinstance(given, list) else [_named_id(entry) for entry in entries]
    whole_ids = tuple(value for value in ids if value is not None)
    whole_logprobs = tuple(value for value in logprobs if value is not None)
    ids_good = bool(ids) and len(whole_ids) == len(ids)
    logprobs_good = bool(logprobs) and len(whole_logprobs) == len(logprobs)
    if ids_good and logprobs_good and len(whole_ids) != len(whole_logprobs):
        return None, None
    return whole_ids if ids_good else None, whole_logprobs if logprobs_good else None


def _named_id(entry: Mapping[str, Any]) -> int | None:
    token = entry.get("token")
    if isinstance(token, str) and token.startswith("token_id:"):
        digits = token.removeprefix("token_id:")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None
    return _id(entry.get("id"))


def _id(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _logprob(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e9 and math.isfinite(value) else None


def _models(found: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    """Names of the models that a server lists, with their context where it tells."""
    data = found.get("data")
    models = []
    for entry in data if isinstance(data, list) else ():
        name = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable():
            context = provider.count(entry.get("max_model_len"))
            models.append((name, context or None))
    return models

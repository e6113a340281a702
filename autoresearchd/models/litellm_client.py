"""Models of any provider, through litellm: its calls, its exceptions and its price list, adapted in this one place.

litellm takes seconds to import and does much at its import that a daemon does not want (it fetches a price list, reads
``.env`` files, prints); so it is imported at the first question, with that turned off.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from autoresearchd.config.settings import Price
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import client
from autoresearchd.models.client import Message, ModelClient, ModelError, Question, Reply, TooLong, Trouble, perform
from autoresearchd.models.spend import priced

if TYPE_CHECKING:
    from autoresearchd.models.bounded_http import Bounds

_IMPORT_S = 120.0
_QUIET_IMPORT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "CRITICAL"}
"""The list of prices that came with it; no ``.env`` of whatever folder; no words."""

_TROUBLES: tuple[tuple[str, Trouble], ...] = (
    ("ContextWindowExceededError", Trouble.CONTEXT_TOO_LONG),
    ("ContentPolicyViolationError", Trouble.REFUSED),
    ("Timeout", Trouble.TIMEOUT),
    ("APIResponseValidationError", Trouble.BROKEN_REPLY),
)
"""Classes of litellm that say by themselves what is wrong; of the others, the status and the words do."""

_ADDRESSED = frozenset({"azure", "azure_ai", "databricks", "snowflake"})
"""Providers that are always spoken to at an address of the user's own: it does not make their prices unknown."""

_COUNTED = frozenset({"openai", "azure", "text-completion-openai"})  # providers whose tokenizer litellm has with it

_SCHEMA = "response_format"
_UNBOUNDED = "is asked by a library of its provider's: the size of its replies is not bounded, nor where they redirect"
_MAX_NAME = 300
_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class LitellmClient(ModelClient):
    """Asks a model of a provider that litellm knows; keys come from the environment, as the provider names them.

    The price of a call is the user's, else that of litellm's list. It is unknown (None) where neither has one, where
    the list says nothing is to be paid (as of every model of one's own), and at an address of the user's own.

    model: as litellm names it, e.g. ``anthropic/claude-…``; keys: by provider, in place of those of the environment.
    """

    name = ""

    def __init__(
        self, model: str, *, prices: Mapping[str, Price] | None = None, keys: Mapping[str, str] | None = None
    ) -> None:
        self.name = self._model = model
        self._prices, self._keys = dict(prices or {}), dict(keys or {})
        self._unbounded = self._schema_refused = False

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        perform(_library, cancel, _IMPORT_S)
        from autoresearchd.models.bounded_http import Bounds

        bounds = Bounds.of(question.timeout, question.max_tokens)
        return perform(lambda: self._ask(question, bounds), cancel, question.timeout, give_up=bounds.line.cut)

    def takes_schema(self) -> bool:
        return not self._schema_refused and self._look_up(
            lambda litellm: bool(litellm.supports_response_schema(model=self._model)), False
        )

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """By the tokenizer that litellm has with it where the model is one of OpenAI's, else an estimate."""
        estimate = client.estimate_tokens(messages)
        if self._provider not in _COUNTED:
            return estimate
        given = [dict(message) for message in messages]
        counted = self._look_up(lambda litellm: litellm.token_counter(model=self._model, messages=given), 0)
        return counted if isinstance(counted, int) and counted > 0 else estimate

    def price(self, cost: Cost) -> float | None:
        tokens = {"prompt_tokens": cost.tokens_in, "completion_tokens": cost.tokens_out}
        return self._listed_price(lambda litellm: sum(litellm.cost_per_token(model=self._model, **tokens)))

    @property
    def _provider(self) -> str:
        return self._look_up(lambda litellm: str(litellm.get_llm_provider(model=self._model)[1]), "")

    # -- asking
    def _ask(self, question: Question, bounds: Bounds) -> Reply:
        arguments = self._arguments(question)
        try:
            return self._complete(question, arguments, bounds)
        except ModelError as error:
            if error.trouble is not Trouble.BAD_REQUEST or _SCHEMA not in arguments or bounds.error is not None:
                raise
            refused = error
        # The list speaks of the model; who serves it may know of no schemas, or not of all that is in one.
        del arguments[_SCHEMA]
        reply = self._complete(question, arguments, bounds)
        self._schema_refused = True
        _LOG.warning("%s takes no schema, so its answers are read as text: %s", self._model, refused.what)
        return reply

    def _complete(self, question: Question, arguments: Mapping[str, Any], bounds: Bounds) -> Reply:
        from autoresearchd.models.bounded_http import within

        began, response = time.monotonic(), None
        key = self._keys.get(self._provider) if self._keys else None
        try:
            with within(bounds):
                response = _library().completion(
                    model=self._model,
                    messages=[dict(message) for message in question.messages],
                    timeout=question.timeout,
                    stream=False,
                    num_retries=0,  # the caller's affair: litellm's end in a bare Exception
                    max_retries=0,
                    drop_params=True,
                    # Of Claude: what was said is sent again with each turn, at a tenth of the price.
                    enable_prompt_caching=any(message["role"] == "assistant" for message in question.messages),
                    **({"api_key": key} if key else {}),
                    **arguments,
                )
            found = response.model_dump(warnings=False)
        except Exception as error:  # noqa: BLE001 - litellm raises what its providers' libraries raise
            failed = self._trouble(error)
            if bounds.error is not None:
                failed = ModelError(bounds.error.trouble, f"{self._model}: {bounds.error.what}", hint=bounds.error.hint)
            if response is not None or isinstance(bounds.error, TooLong):
                # Nobody has counted what came: all that was allowed is charged, so that a cap errs on the safe side.
                cost = Cost(usd=None, tokens_in=self.count_tokens(question.messages), tokens_out=question.max_tokens)
                failed.cost = priced(replace(cost, usd=self.price(cost)), self._prices, self._model)
            raise failed from None  # without its cause: requests and their headers hang on that
        if not bounds.sent and not self._unbounded:
            self._unbounded = True
            _LOG.warning("%s %s", self._model, _UNBOUNDED)
        cost = self._cost(question, response, found, time.monotonic() - began)
        _, text, finish = client.read_choice(found, cost)
        sampling = {name: value for name, value in arguments.items() if name != _SCHEMA}
        return Reply(
            text=text,
            model=clean(found.get("model"), _MAX_NAME) or self._model,
            cost=cost,
            finish=finish,
            sampling={**sampling, "structured": True} if _SCHEMA in arguments else sampling,
        )

    def _arguments(self, question: Question) -> dict[str, Any]:
        """Parameters of the sampling, those alone that the model has; all where litellm does not know which it has."""
        wanted: dict[str, Any] = {"temperature": question.temperature, "seed": question.seed}
        if question.schema is not None and self.takes_schema():
            strict = question.schema.get("additionalProperties") is False
            schema = {"name": "answer", "schema": dict(question.schema), "strict": strict}
            wanted[_SCHEMA] = {"type": "json_schema", "json_schema": schema}
        known = self._look_up(lambda litellm: litellm.get_supported_openai_params(model=self._model), None)
        taken = {name: value for name, value in wanted.items() if value is not None and (not known or name in known)}
        return {"max_tokens": question.max_tokens, **taken}

    # -- what litellm's lists say
    def _look_up(self, look: Callable[[Any], T], unknown: T) -> T:
        """What the lists say of the model; ``unknown`` where they do not have it, or fail: it can be asked even so."""
        litellm = _library()
        try:
            return look(litellm)
        except Exception as error:  # noqa: BLE001 - there are many ways of saying that there is no such model
            what = f"{type(error).__name__}: {self._words(error)}"
            _LOG.debug("litellm's lists tell nothing of %s: %s", self._model, what)
            return unknown

    def _cost(self, question: Question, response: Any, found: Mapping[str, Any], seconds: float) -> Cost:
        tokens_in, tokens_out = client.count_usage(question, found)
        given = {"completion_response": response, "model": self._model}
        usd = self._listed_price(lambda litellm: litellm.completion_cost(**given))
        return priced(Cost(usd, tokens_in, tokens_out, seconds), self._prices, self._model)

    def _listed_price(self, look: Callable[[Any], object]) -> float | None:
        """A price of the list, None where that would be a guess: at another address than the provider's own."""
        moved = (os.environ.get(f"{self._provider.upper()}_{end}") for end in ("API_BASE", "BASE_URL"))
        if self._provider not in _ADDRESSED and any(moved):
            return None
        usd = self._look_up(look, None)
        return float(usd) if isinstance(usd, (int, float)) and math.isfinite(usd) and usd > 0 else None

    # -- what went wrong
    def _words(self, error: BaseException) -> str:
        return client.words_of(str(error), list(self._keys.values()))

    def _trouble(self, error: Exception) -> ModelError:
        said, causes = self._words(error), list(_causes(error))
        trouble = _trouble_of(error, {kind.__name__ for cause in causes for kind in type(cause).__mro__})
        if trouble is Trouble.UNREACHABLE:  # of which litellm says no more than that there is no connection
            root = self._words(causes[-1])
            said = said if root in said else f"{said} {root}"
        what = f"{self._model}: {type(error).__name__}: {said}"
        return ModelError(trouble, what, retry_after=client.retry_after(_headers(error)))


def _trouble_of(error: Exception, kinds: Set[str]) -> Trouble:
    own = {kind.__name__ for kind in type(error).__mro__}
    # Before what litellm makes of it: to wait in vain for a connection is a Timeout there, as if it had been asked.
    if kinds & {"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror"}:
        return Trouble.UNREACHABLE
    if trouble := next((trouble for name, trouble in _TROUBLES if name in own), None):
        return trouble
    if kinds & {"JSONDecodeError", "UnicodeDecodeError", "RemoteProtocolError", "ReadError", "DecodingError"}:
        return Trouble.BROKEN_REPLY
    if "LLM Provider NOT provided" in str(error)[:2_000]:
        return Trouble.NOT_FOUND
    if "APIConnectionError" in kinds:  # its status is always 500, whatever happened
        return Trouble.UNREACHABLE
    if isinstance(status := getattr(error, "status_code", None), int):
        return client.trouble_of(status, str(error)[:20_000])
    return Trouble.BAD_REQUEST if isinstance(error, (ValueError, TypeError, KeyError)) else Trouble.BROKEN_REPLY


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _headers(error: Exception) -> dict[str, str]:
    response = getattr(error, "response", None)
    given = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}
    return {str(name).lower(): value for name, value in dict(given).items() if isinstance(value, str)}


@cache
def _library() -> Any:
    """litellm, imported, silenced, and made to keep its requests within bounds."""
    try:
        with client.environment(_QUIET_IMPORT), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pydantic, about litellm's own types
            litellm: Any = importlib.import_module("litellm")
            litellm.ModelResponse()  # its types are made at the first use
    except ImportError as error:
        raise MissingCapability(
            f"the policy litellm needs the package litellm: {error}", hint="pip install 'autoresearchd[llm]'"
        ) from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).disabled = True
    from autoresearchd.models.bounded_http import BoundedTransport

    def options() -> dict[str, Any]:
        handler = importlib.import_module("litellm.llms.custom_httpx.http_handler")
        cert = os.environ.get("SSL_CERTIFICATE", litellm.ssl_certificate)
        return {"verify": handler.get_ssl_configuration(), "cert": cert}

    transport = BoundedTransport(options)
    litellm.sync_transport = transport  # of its own clients
    litellm.client_session = transport.session()  # of the package openai
    litellm.force_ipv4 = False  # it would pass the transport by
    return litellm

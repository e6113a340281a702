"""Models behind an OpenAI-compatible endpoint of the user's own: vLLM, ``transformers serve``, llama.cpp, Ollama.

Spoken to over plain HTTP and not through the ``openai`` package: what the learner needs (token ids) is not in that
package's types, which bound neither the size of a reply nor where a redirect may carry the key; and one request with
one JSON object is all there is to it. See the vLLM docs, *OpenAI-Compatible Server*, for ``return_token_ids`` and
``return_tokens_as_token_ids``.

httpx2 is adapted here, without its comforts: no proxy, netrc or other setting of the environment (the key goes to the
configured address and nowhere else), and no connection is kept, so that each exchange has a socket of its own to cut.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlsplit

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.model_settings import Price
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.ports import Adapters, Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import abandonable_call, model_files, provider_errors
from autoresearchd.models.client import Message, ModelError, Question, Reply, Trouble
from autoresearchd.models.provider_errors import words_of
from autoresearchd.models.reply_bounds import Bounds, Line, TooLong, most_bytes
from autoresearchd.models.spend import priced
from autoresearchd.models.token_estimate import estimate_tokens

if TYPE_CHECKING:
    import httpx2

KEY_VARIABLE = "AUTORESEARCHD_LOCAL_KEY"

_IDS = ("return_token_ids", "return_tokens_as_token_ids")
_LOGPROBS = ("logprobs",)
_SCHEMA = ("response_format",)
_STOP = ("stop",)
_MODEL = ("model",)
_TELLING = (_IDS, _LOGPROBS, _SCHEMA)
"""Groups of fields whose names say by themselves what an error is about; ``stop`` and ``model`` are mere words."""
_LISTING_BYTES, _LISTING_S = 1_000_000, 10.0
_LOAD_S = 60.0
_SHORTEST_REPLY = 256
MAX_NAME = 300
_CONNECT_S = 10.0
_BEGINNING = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that a server lists. root: what it was loaded from; parent: the model that it is an adapter of."""

    name: str
    context: int | None = None
    root: str = ""
    parent: str = ""


def listed_models(found: Mapping[str, Any]) -> list[Listed]:
    """The models that a server lists, with what it tells of them."""
    data = found.get("data")
    models = []
    for entry in data if isinstance(data, list) else ():
        name = entry.get("id") if isinstance(entry, dict) else None
        if _is_name(name):
            context = provider_errors.count(entry.get("max_model_len"))
            root, parent = (value if _is_name(value := entry.get(key)) else "" for key in ("root", "parent"))
            models.append(Listed(name, context or None, root, parent))
    return models


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()


@dataclass(frozen=True, slots=True)
class Answered:
    """What an endpoint answered, whatever its status. headers: names in lower case; key: as it was sent.

    What sent the answer may say the key again, which is not to be shown.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    key: str = field(default="", repr=False)

    def object(self) -> dict[str, Any]:
        """The body as a JSON object; ModelError(BROKEN_REPLY) when it is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            said = words_of(self.text(), [self.key])[:_BEGINNING]
            raise ModelError(Trouble.BROKEN_REPLY, f"the reply is no JSON: {said!r}") from error
        if not isinstance(found, dict):
            raise ModelError(Trouble.BROKEN_REPLY, "the reply is JSON, but no object")
        return found

    def text(self) -> str:
        """The body as text, whatever it holds."""
        return self.body.decode("utf-8", "replace")


class Endpoint:
    """An address that questions are sent to. url: up to and with ``/v1``. key: sent as a bearer token; empty: none."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = _checked(url)
        self._key = key
        self._client: httpx2.Client | None = None

    def exchange(self, bounds: Bounds, path: str, payload: Mapping[str, Any] | None) -> Answered:
        """Send a request and read the whole answer.

        bounds: of the exchange. path: below the address. payload: posted as JSON; None: a GET. Raises ModelError: the
        endpoint cannot be reached, is too slow, breaks off, answers too much, or redirects. Any other status that tells
        of an error is no exception here.
        """
        import httpx2

        left = bounds.left
        try:
            with self._open().stream(
                "GET" if payload is None else "POST",
                f"{self.url}/{path}",
                content=None if payload is None else json.dumps(payload).encode(),
                headers=self._headers(payload is not None),
                timeout=httpx2.Timeout(left, connect=min(left, _CONNECT_S)),
                extensions={"trace": bounds.line.trace},
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                bounds.check_head(response.status_code, headers)
                body = b"".join(bounds.read(response.iter_raw()))
                return Answered(response.status_code, headers, body, self._key)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ModelError(
                Trouble.UNREACHABLE,
                f"{self.url} cannot be reached: {words_of(str(error), [self._key])}",
                hint="is the server running? `autoresearchd serve` starts one; local.base_url says where it is",
            ) from error
        except httpx2.TimeoutException as error:
            raise ModelError(Trouble.TIMEOUT, f"{self.url} did not reply in time") from error
        except httpx2.HTTPError as error:
            said = words_of(str(error), [self._key])
            raise ModelError(
                Trouble.BROKEN_REPLY, f"the reply of {self.url} broke off: {type(error).__name__}: {said}"
            ) from error

    def words(self, answered: Answered) -> str:
        """What an answer with an error says: its code and message, or how its body begins."""
        text = answered.text()
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            error = found.get("error", found) if isinstance(found, dict) else text
            if isinstance(error, dict):
                parts = (error.get(name) for name in ("code", "type", "message", "detail"))
                text = " ".join(str(part) for part in parts if part) or text
            elif isinstance(error, str):
                text = error
        return words_of(text, [self._key])

    def _open(self) -> httpx2.Client:
        if self._client is None:
            import httpx2

            self._client = httpx2.Client(
                trust_env=False, follow_redirects=False, limits=httpx2.Limits(max_keepalive_connections=0)
            )
        return self._client

    def _headers(self, with_body: bool) -> dict[str, str]:
        headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "autoresearchd"}
        if with_body:
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return headers


def require() -> None:
    """MissingCapability where httpx2 is not installed."""
    try:
        import httpx2  # noqa: F401
    except ImportError as error:
        raise MissingCapability(
            f"the policy local needs the package httpx2: {error}", hint="pip install 'autoresearchd[local]'"
        ) from error


def _checked(url: str) -> str:
    """The address without a slash at its end. Raises UsageError for what is none, or carries a password."""
    hint = "local.base_url in config.yaml is like http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.strip().isprintable():
        raise UsageError(f"{words_of(url)!r} is no address of an endpoint", hint=hint)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError("the address of the endpoint carries a name, a key or a query", hint=f"{hint}; keys: key_file")
    return url.strip().rstrip("/")


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
        adapters: says which version of the local policy answers, in the place of ``adapter``; asked at the first
            question, and after each ``renew``. The server is told to load it, by vLLM's ``load_lora_adapter``; where it
            does not, the plain model answers.
        warn: is told of a version that the server does not load.
        key: bearer token, see ``read_key``.
        prices: of the user; a model without one costs nothing here, as it runs on the user's own machine.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        adapter: str | None = None,
        adapters: Adapters | None = None,
        warn: Callable[[str], None] = lambda text: None,
        key: str = "",
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, key)
        self._model, self._adapter, self._prices = model, adapter or "", dict(prices or {})
        self._adapters, self._warn = adapters, warn
        self._settled = adapters is None
        self._chosen: ServedAdapter | None = None
        self._plain: BaseModel | None = None
        self._told: set[str] = set()
        self._listed: Listed | None = None
        self._context: int | None = None
        self._looked = False
        self._refused: dict[tuple[tuple[str, ...], ...], frozenset[tuple[str, ...]]] = {}

    @property
    def name(self) -> str:
        """``local:`` and the model, or ``local`` as long as it is not known which."""
        return f"local:{self._name}" if self._name else "local"

    @property
    def _name(self) -> str:
        return self._adapter or self._base_name

    @property
    def _base_name(self) -> str:
        return self._model or (self._listed.name if self._listed else "")

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """As the protocol says; a cancelled question is cut off at the server too."""
        require()
        line, deadline = Line(), time.monotonic() + question.timeout
        return abandonable_call.call(
            lambda: self._ask(question, line, deadline), cancel, question.timeout, give_up=line.cut
        )

    def renew(self) -> None:
        """Look before the next question which version is in use."""
        self._settled = self._adapters is None

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """An estimate that errs upwards: not every server counts, and a prompt must be the same at every server."""
        return estimate_tokens(messages)

    # -- asking
    def _ask(self, question: Question, line: Line, deadline: float) -> Reply:
        self._look(line, deadline)
        self._settle(line, deadline)
        try:
            return self._answer(question, line, deadline)
        except ModelError as error:
            if self._chosen is None or not self._adapter or error.trouble is not Trouble.NOT_FOUND:
                raise
        # The server has been started again, and has forgotten what it was told to load.
        self._adapter = self._loaded(self._chosen, line, deadline)
        return self._answer(question, line, deadline)

    def _answer(self, question: Question, line: Line, deadline: float) -> Reply:
        began = time.monotonic()
        payload, optional = self._payload(question)
        bounds = Bounds(line, deadline, most_bytes(question.max_tokens))
        refused = set(self._refused.get(optional, ()))
        while True:
            without = {name for names in refused for name in names}
            sent = {name: value for name, value in payload.items() if name not in without}
            try:
                answered = self._endpoint.exchange(bounds, "chat/completions", sent)
            except TooLong as unread:
                # Nobody has counted what came: all that was allowed is charged, so that a cap errs on the safe side.
                tokens_in = self.count_tokens(question.messages)
                unread.cost = self._cost(tokens_in, sent["max_tokens"], time.monotonic() - began)
                raise
            if answered.status == 200:
                self._refused[optional] = frozenset(refused)
                return self._reply(question, sent, answered.object(), time.monotonic() - began)
            error = self._error(answered)
            left = [names for names in optional if names not in refused]
            if error.trouble is not Trouble.BAD_REQUEST or answered.status not in (400, 422) or not left:
                raise error
            refused.add(_meant(left, self._endpoint.words(answered)))

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
            answered = self._endpoint.exchange(Bounds(line, soon, _LISTING_BYTES), "models", None)
            if answered.status != 200:
                raise self._error(answered)
            models = listed_models(answered.object())
        except ModelError as error:
            if error.trouble in (Trouble.UNREACHABLE, Trouble.UNAUTHORISED):
                raise
            models = []
        plain = [model for model in models if not model.parent] or models
        self._listed = next((m for m in plain if m.name == self._model), plain[0] if plain else None)
        self._context = next((m.context for m in models if m.context is not None), None)
        self._looked = True

    # -- versions of the local policy
    def _settle(self, line: Line, deadline: float) -> None:
        """Have the version that is in use answer, where the server can load it."""
        if self._settled or self._adapters is None:
            return
        chosen = self._adapters.in_use(self._known())
        if chosen is None or chosen != self._chosen or not self._adapter:
            self._adapter = "" if chosen is None else self._loaded(chosen, line, deadline)
            self._chosen = chosen
        self._settled = True

    def _known(self) -> BaseModel:
        """The plain model, by the hash that its answers are learned from by; its files are read once."""
        if self._plain is None:
            told = self._base()
            self._plain = told if self._adapters is None else self._adapters.known(told)
        return self._plain

    def _base(self) -> BaseModel:
        """The plain model, as far as its server tells: vLLM names the folder that it was loaded from."""
        root = self._listed.root if self._listed and self._listed.name == self._base_name else ""
        named = BaseModel(root or self._base_name)
        folder = Path(named.name)
        if not folder.is_absolute():
            return named
        try:
            gguf = model_files.gguf_file(folder)
            place = folder if folder.is_dir() else folder.parent
            model, tokenizer = model_files.model_hash(place, gguf), model_files.tokenizer_hash(place, gguf)
            template = None if gguf else model_files.template_hash(model_files.chat_template(place))
        except (UsageError, OSError, ValueError):  # it is on another machine, or the server means something else by it
            return named
        return BaseModel(named.name, model, tokenizer, template)

    def _loaded(self, chosen: ServedAdapter, line: Line, deadline: float) -> str:
        """The name that the server has an adapter under, once it is told to load it; empty where it does not."""
        # Without ``load_inplace``: vLLM keeps that with the adapter, and loads it anew in each step of an answer.
        order = {"lora_name": chosen.version, "lora_path": str(chosen.folder)}
        soon = min(deadline, time.monotonic() + _LOAD_S)
        try:
            answered = self._endpoint.exchange(Bounds(line, soon, _LISTING_BYTES), "load_lora_adapter", order)
        except ModelError as error:
            if error.trouble is Trouble.UNREACHABLE:
                raise
            said = error.what
        else:
            said = f"it answered {answered.status}: {self._endpoint.words(answered)}"
            # What it has already it refuses. The name tells the content.
            if answered.status == 200 or (answered.status == 400 and "already been loaded" in said):
                return chosen.version
        if chosen.version not in self._told:
            self._told.add(chosen.version)
            self._warn(
                f"{self._endpoint.url} does not load version {chosen.version}, the plain model answers: {said}. "
                "`autoresearchd serve`, started in this repository, starts vLLM so that it does"
            )
        return ""

    def _error(self, answered: Answered) -> ModelError:
        words = self._endpoint.words(answered)
        trouble = provider_errors.trouble_of(answered.status, words)
        nameless = trouble in (Trouble.NOT_FOUND, Trouble.BAD_REQUEST) and not self._name
        return ModelError(
            trouble,
            f"{self._endpoint.url} answered {answered.status}: {words}",
            retry_after=provider_errors.retry_after(answered.headers),
            hint="name the model: --policy local:MODEL" if nameless else "",
        )

    # -- reading
    def _reply(self, question: Question, sent: Mapping[str, Any], found: Mapping[str, Any], seconds: float) -> Reply:
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        usage = found.get("usage")
        told = usage if isinstance(usage, dict) else {}
        tokens = provider_errors.counts(question, told.get("prompt_tokens"), told.get("completion_tokens"))
        cost = self._cost(*tokens, seconds)
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ModelError(Trouble.BROKEN_REPLY, "the reply holds no message", cost=cost)
        content, refusal = message.get("content"), message.get("refusal")
        if not (content is None or isinstance(content, str)):
            raise ModelError(Trouble.BROKEN_REPLY, "the message of the reply is no text", cost=cost)
        finish = clean(choice.get("finish_reason"), 40) or "stop"
        text = provider_errors.checked_text(content or "", finish, refusal if isinstance(refusal, str) else "", cost)
        ids, logprobs = tokens_of(choice)
        cut = provider_errors.before_stop(text, question.stop)
        if cut != text:  # the server does not know of stops: its tokens are those of another text
            text, ids, logprobs = cut, None, None
        sampling = {name: sent[name] for name in ("temperature", "seed", "stop", "max_tokens") if name in sent}
        if _SCHEMA[0] in sent:
            # Drawn under a grammar: the log-probabilities are not those of what the model may write.
            sampling, logprobs = {**sampling, "structured": True}, None
        return Reply(
            text=text,
            model=clean(found.get("model"), MAX_NAME) or self._name or "unnamed",
            cost=cost,
            finish=finish,
            token_ids=ids,
            logprobs=logprobs,
            sampling={**sampling, "logprobs_of": "server"} if logprobs is not None else sampling,
            model_hash=self._known().model_hash,
            tokenizer_hash=self._known().tokenizer_hash,
            template_hash=self._known().template_hash,
            adapter=self._adapter,
        )

    def _cost(self, tokens_in: int, tokens_out: int, seconds: float) -> Cost:
        cost = Cost(usd=0.0, tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds)
        return priced(cost, self._prices, self._adapter, self._base_name)


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
                f"the key file {key_file} cannot be read: {error}", hint="see to key_file in config.yaml"
            ) from error
        if not key:
            raise UsageError(f"the key file {key_file} is empty", hint="its first line is the key")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{where} holds no key: a key is printable ASCII on one line", hint="write the key alone")
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


def _meant(left: Sequence[tuple[str, ...]], words: str) -> tuple[str, ...]:
    """Of the groups of fields that a refused request had, the one that its error speaks of, else the first."""
    named = (names for names in left if names in _TELLING and any(name in words for name in names))
    return next(named, left[0])


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

"""Models behind an OpenAI-compatible endpoint of the user's own: vLLM, ``transformers serve``, llama.cpp, Ollama.

Spoken to over plain HTTP and not through the packages ``openai`` or ``litellm``: what the learner needs (token ids) is
not in their types, and one request with one JSON object is all there is to it. See the vLLM docs, *OpenAI-Compatible
Server*, for ``return_token_ids`` and ``return_tokens_as_token_ids``. Neither proxy nor other settings of the
environment count: the key goes to the configured address and nowhere else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from autoresearchd.config.settings import Price
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.ports import Adapters, Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import client
from autoresearchd.models.client import BrokeOff, ModelClient, ModelError, Question, Reply, TooLong, Trouble, perform
from autoresearchd.models.model_files import base_model
from autoresearchd.models.spend import priced

if TYPE_CHECKING:
    import httpx

    from autoresearchd.models.bounded_http import Bounds

KEY_VARIABLE = "AUTORESEARCHD_LOCAL_KEY"

_IDS = ("return_token_ids", "return_tokens_as_token_ids")
_LOGPROBS = ("logprobs", "top_logprobs")
_SCHEMA, _MODEL = "response_format", "model"
_OF_A_SCHEMA = re.compile(r"schema|grammar|guided|structured", re.IGNORECASE)
"""In the words of an error about a schema that does not name the field: it cannot be made a grammar, for example."""
_PAGE = re.compile(rb"\s*<(?:!|\?xml|html)", re.IGNORECASE)
_NO_SERVER = "this is no model's server (it answered an HTML page)"
_LISTING_BYTES, _LISTING_S = 1_000_000, 10.0
_LOAD_S = 60.0
_MAX_NAME = 300
_CONNECT_S = 10.0
_SHORT_PROMPT = 2048
"""Tokens: estimated well enough only above, and no server's context is shorter."""


class OpenAIClient(ModelClient):
    """Asks a model of an endpoint, for token ids and log-probabilities too where the server knows of them.

    A field that a server refuses is left out of all later questions; a schema that it refuses, or overlooks, is first
    put as llama-cpp-python knows it. A reply may take at most half of the context that the server tells of (vLLM's
    ``max_model_len``). The log-probabilities are the server's: vLLM gives those under the sampling temperature only
    with ``--logprobs-mode processed_logprobs``, as ``autoresearchd serve`` starts it.

    model: its name there; empty: the first that the server lists, else whichever it has. adapters: says which version
    answers; where the server does not load it (``load_lora_adapter``), ``warn`` is told, and the plain model answers.
    prices: of the user; a model without one costs nothing here, but out in the world, behind a key, nobody knows.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        adapters: Adapters | None = None,
        warn: Callable[[str], None] = lambda text: None,
        key: str = "",
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._url, self._key, self._model, self._prices = _checked(url), key, model, dict(prices or {})
        self._usd = None if key and not _at_home(urlsplit(self._url).hostname or "") else 0.0
        self._adapters, self._warn = adapters, warn
        self._http: httpx.Client | None = None
        self._settled = False
        self._adapter = ""
        self._chosen: ServedAdapter | None = None
        self._plain: BaseModel | None = None
        self._told: set[str] = set()
        self._listed: Mapping[str, Any] | None = None
        self._context = 0
        self._refused: frozenset[str] = frozenset()
        self._plain_schema = self._heeded = self._cut = False

    @property
    def name(self) -> str:
        return f"local:{self._name}" if self._name else "local"

    @property
    def _name(self) -> str:
        return self._adapter or self._base_name

    @property
    def _base_name(self) -> str:
        return self._model or clean((self._listed or {}).get("id"), _MAX_NAME)

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        try:
            from autoresearchd.models.bounded_http import Bounds
        except ImportError as error:
            what = f"the policy local needs the package httpx: {error}"
            raise MissingCapability(what, hint="pip install 'autoresearchd[local]'") from error
        bounds = Bounds.of(question.timeout, question.max_tokens, objects=False)
        return perform(lambda: self._ask(question, bounds), cancel, question.timeout, give_up=bounds.line.cut)

    def price(self, cost: Cost) -> float | None:
        return self._cost(cost.tokens_in, cost.tokens_out, cost.seconds).usd

    def renew(self) -> None:
        self._settled = False

    # -- asking
    def _ask(self, question: Question, bounds: Bounds) -> Reply:
        self._look(bounds)
        self._settle(bounds)
        try:
            return self._answer(question, bounds)
        except ModelError as error:
            if self._chosen is None or not self._adapter or error.trouble is not Trouble.NOT_FOUND:
                raise
        # The server has been started again, and has forgotten what it was told to load.
        self._adapter = self._load(self._chosen, bounds)
        return self._answer(question, bounds)

    def _answer(self, question: Question, bounds: Bounds) -> Reply:
        began = time.monotonic()
        plain = self._plain_schema
        payload, optional = self._payload(question, plain), [_IDS, _LOGPROBS, (_SCHEMA,)]
        refused = set(self._refused)
        if self._adapter or self._model:
            refused.discard(_MODEL)
        else:
            # ``transformers serve FOLDER`` lists whatever lies in a cache, but gives its one model under no other name.
            optional.append((_MODEL,))
        while True:
            sent = {name: value for name, value in payload.items() if name not in refused}
            if _SCHEMA in sent:  # drawn under a grammar they are of no use
                sent = {name: value for name, value in sent.items() if name not in _LOGPROBS}
            try:
                answered = self._exchange(replace(bounds), "chat/completions", sent)
            except TooLong as unread:
                # Nobody has counted what came: all that was allowed is charged, so that a cap errs on the safe side.
                tokens_in = self.count_tokens(question.messages)
                unread.cost = self._cost(tokens_in, sent["max_tokens"], time.monotonic() - began)
                raise
            if answered.status_code == 200:
                # Only now: what was refused for a reason of its own tells nothing of the fields.
                self._refused, self._plain_schema = frozenset(refused), plain
                reply = self._reply(question, sent, self._object(answered), time.monotonic() - began)
                if _SCHEMA in sent and reply.finish == "stop" and reply.text.strip():
                    self._heeded = self._heeded or _is_json(reply.text)
                    if not self._heeded:  # one stray reply later on says nothing of the server
                        self._unheeded()
                return reply
            error = self._error(answered)
            left = [fields for fields in optional if fields[0] in sent]
            bad = error.trouble is Trouble.BAD_REQUEST and answered.status_code in (400, 422)
            # llama-cpp-python, and llama.cpp of 2024, answer 500 to a form of the schema that they do not know.
            unknown = answered.status_code == 500 and _SCHEMA in sent and _SCHEMA in error.what
            if not left or not (bad or unknown):
                raise error
            # The fields that the error speaks of, else those that are missed least; "model" is a mere word in it.
            named = [fields for fields in left if fields != (_MODEL,) and any(name in error.what for name in fields)]
            if unknown or (not named and _SCHEMA in sent and _OF_A_SCHEMA.search(error.what)):
                named = [(_SCHEMA,)]
            least = (named or left)[0]
            if least == (_SCHEMA,) and not plain:
                plain = True
                payload = self._payload(question, plain)
            else:
                refused.update(least)

    def _unheeded(self) -> None:
        """The server took the schema and overlooked it: the other form from now on, and where that was it, none."""
        if self._plain_schema:
            self._refused |= {_SCHEMA}
        self._plain_schema = True

    def _payload(self, question: Question, plain: bool) -> dict[str, Any]:
        most = question.max_tokens
        if self._context:
            most = min(most, max(client.SHORTEST_REPLY, self._context // 2))
        payload: dict[str, Any] = {
            "model": self._name or None,
            "messages": [dict(message) for message in question.messages],
            "max_tokens": most,
            "stream": False,
            "logprobs": True,
            **dict.fromkeys(_IDS, True),
            "temperature": question.temperature,
            "seed": question.seed,
        }
        if (self._listed or {}).get("owned_by") == "llamacpp":
            # Else llama.cpp tells of 20 alternatives to each token, which is more than may be read of a long answer.
            payload["top_logprobs"] = 1
        if question.schema is not None:
            schema = dict(question.schema)
            payload[_SCHEMA] = (
                {"type": "json_object", "schema": schema}  # llama-cpp-python knows no other
                if plain
                else {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            )
        return {name: value for name, value in payload.items() if value is not None}

    def _look(self, bounds: Bounds) -> None:
        """What the server serves: once, and without a fuss. Who has one model does not always list it.

        One that is busy goes without for this question, and is asked again at the next.
        """
        if self._listed is not None:
            return
        data: object = None
        try:
            answered = self._exchange(bounds.narrow(_LISTING_S, _LISTING_BYTES), "models")
            if answered.status_code != 200:
                raise self._error(answered)
            data = self._object(answered).get("data")
        except ModelError as error:
            if error.trouble in (Trouble.UNREACHABLE, Trouble.UNAUTHORISED):
                raise
            if error.trouble in (Trouble.OVERLOADED, Trouble.TIMEOUT, Trouble.RATE_LIMITED):
                return
        self._plain = None  # if it was known before, then by its name alone
        models = [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []
        models = [m for m in models if isinstance(name := m.get("id"), str) and name == clean(name, _MAX_NAME) != ""]
        plain = [m for m in models if not m.get("parent")] or models
        self._listed = next((m for m in plain if m["id"] == self._model), plain[0] if plain else {})
        ids = [m["id"] for m in models]
        if ids and self._model and self._model not in ids and f"{self._model}:latest" not in ids:  # the tag of Ollama
            self.doubt = self._hide(
                f"{self._url} does not list the model {self._model!r} (some servers answer to any name, with what they "
                f"have); it lists: {', '.join([*ids[:9], *(['…'] if ids[9:] else [])])}"
            )
        contexts = (m.get("max_model_len") for m in models)
        self._context = next((n for n in contexts if type(n) is int and 0 < n < 10**9), 0)

    # -- versions of the local policy
    def _settle(self, bounds: Bounds) -> None:
        """Have the version that is in use answer, where the server can load it."""
        if self._settled or self._adapters is None:
            return
        chosen = self._adapters.in_use(self._known())
        if chosen is None or chosen != self._chosen or not self._adapter:
            self._adapter = "" if chosen is None else self._load(chosen, bounds)
            self._chosen = chosen
        self._settled = True

    def _known(self) -> BaseModel:
        """The plain model, by the hashes that its answers are learned from by; its files are read once."""
        if self._plain is None:
            listed = self._listed or {}
            # vLLM names the folder that it was loaded from.
            root = clean(listed.get("root"), _MAX_NAME) if listed.get("id") == self._base_name else ""
            name = root or self._base_name
            told = BaseModel(name)
            if Path(name).is_absolute():
                # Else it is on another machine, or the server means something else by it.
                with contextlib.suppress(UsageError):
                    told = replace(base_model(Path(name)), name=name)
            self._plain = told if self._adapters is None else self._adapters.known(told)
        return self._plain

    def _load(self, chosen: ServedAdapter, bounds: Bounds) -> str:
        """The name that the server has an adapter under, once it is told to load it; empty where it does not."""
        # Without ``load_inplace``: vLLM keeps that with the adapter, and loads it anew in each step of an answer.
        order = {"lora_name": chosen.version, "lora_path": str(chosen.folder)}
        try:
            answered = self._exchange(bounds.narrow(_LOAD_S, _LISTING_BYTES), "load_lora_adapter", order)
        except ModelError as error:
            if error.trouble is Trouble.UNREACHABLE:
                raise
            said = error.what
        else:
            said = f"it answered {answered.status_code}: {self._words(answered)}"
            # What it has already it refuses. The name tells the content.
            if answered.status_code == 200 or (answered.status_code == 400 and "already been loaded" in said):
                return chosen.version
        if chosen.version not in self._told:
            self._told.add(chosen.version)
            self._warn(
                f"{self._url} does not load version {chosen.version}, the plain model answers: {said}. "
                "`autoresearchd serve`, started in this repository, starts vLLM so that it does"
            )
        return ""

    # -- over the wire
    def _exchange(self, bounds: Bounds, path: str, payload: Mapping[str, Any] | None = None) -> httpx.Response:
        """The answer to a request (a GET without ``payload``), whatever its status; ModelError where there is none."""
        import httpx

        from autoresearchd.models.bounded_http import BoundedTransport, within

        if self._http is None:
            self._http = BoundedTransport(lambda: {"trust_env": False}).session()
        headers = {"accept": "application/json", "content-type": "application/json", "user-agent": "autoresearchd"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        try:
            with within(bounds):
                return self._http.request(
                    "GET" if payload is None else "POST",
                    f"{self._url}/{path}",
                    content=None if payload is None else json.dumps(payload).encode(),
                    headers=headers,
                    timeout=httpx.Timeout(bounds.left, connect=min(bounds.left, _CONNECT_S)),
                )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ModelError(
                Trouble.UNREACHABLE,
                f"{self._url} cannot be reached: {self._hide(str(error))}",
                hint="is the server running? `autoresearchd serve` starts one; local.base_url says where it is",
            ) from error
        except httpx.TimeoutException as error:
            raise ModelError(Trouble.TIMEOUT, f"{self._url} did not reply in time") from error
        except httpx.HTTPError as error:
            said = f"{type(error).__name__}: {self._hide(str(error))}"
            raise BrokeOff(Trouble.BROKEN_REPLY, f"the reply of {self._url} broke off: {said}") from error

    def _object(self, answered: httpx.Response) -> dict[str, Any]:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(answered.content)
            if isinstance(found, dict):
                return found
        if _PAGE.match(answered.content):
            raise ModelError(Trouble.NO_QUESTIONS, f"{self._url}: {_NO_SERVER}", hint=self._address_hint())
        said = self._hide(answered.content.decode("utf-8", "replace"))[:200]
        raise ModelError(Trouble.BROKEN_REPLY, f"the reply is not a JSON object: {said!r}")

    def _hide(self, words: str) -> str:
        return client.words_of(words, [self._key])

    def _words(self, answered: httpx.Response) -> str:
        if _PAGE.match(answered.content):
            return "an HTML page"
        text = answered.content.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            error = found.get("error", found) if isinstance(found, dict) else text
            if isinstance(error, dict):
                parts = (error.get(name) for name in ("code", "type", "message", "detail"))
                text = " ".join(str(part) for part in parts if part) or text
            elif isinstance(error, str):
                text = error
        return self._hide(text)

    def _error(self, answered: httpx.Response) -> ModelError:
        words, status, page = self._words(answered), answered.status_code, bool(_PAGE.match(answered.content))
        # How long to wait may be said behind the cut. Only of a 429: a 400 may repeat the prompt, whatever is in that.
        whole = answered.content[:20_000].decode("utf-8", "replace") if status == 429 and not page else words
        trouble = client.trouble_of(status, whole)
        if status in (405, 501) or (page and trouble is Trouble.BAD_REQUEST):
            trouble = Trouble.NO_QUESTIONS
        hint = ""
        if trouble is Trouble.NO_QUESTIONS or (trouble is Trouble.NOT_FOUND and page):
            # Other pages are those of a gateway: its server is away, or it wants a key.
            words, hint = _NO_SERVER if page else words, self._address_hint()
        elif status == 404 and not self._versioned and "model" not in words.lower():
            hint = self._address_hint()
        elif trouble in (Trouble.NOT_FOUND, Trouble.BAD_REQUEST) and not self._name:
            hint = "name the model: --policy local:MODEL"
        return ModelError(
            trouble,
            f"{self._url} answered {status}: {words}",
            retry_after=client.retry_after(answered.headers),
            hint=hint,
        )

    @property
    def _versioned(self) -> bool:
        return urlsplit(self._url).path.endswith("/v1")

    def _address_hint(self) -> str:
        more = ", and to what listens there" if self._versioned else f": it usually ends in /v1 ({self._url}/v1)"
        return f"see to local.base_url in config.yaml{more}"

    def _reply(self, question: Question, sent: Mapping[str, Any], found: Mapping[str, Any], seconds: float) -> Reply:
        cost = self._cost(*client.count_usage(question, found), seconds)
        choice, text, finish = client.read_choice(found, cost)
        self._look_for_cut(cost.tokens_in, self.count_tokens(question.messages))
        ids, logprobs = tokens_of(choice)
        sampling = {name: sent[name] for name in ("temperature", "seed", "max_tokens") if name in sent}
        if _SCHEMA in sent:
            # Drawn under a grammar: the log-probabilities are not those of what the model may write.
            sampling, logprobs = {**sampling, "structured": True}, None
        known = self._known()
        return Reply(
            text=text,
            model=clean(found.get("model"), _MAX_NAME) or self._name or "unnamed",
            cost=cost,
            finish=finish,
            token_ids=ids,
            logprobs=logprobs,
            sampling={**sampling, "logprobs_of": "server"} if logprobs is not None else sampling,
            model_hash=known.model_hash,
            tokenizer_hash=known.tokenizer_hash,
            template_hash=known.template_hash,
            adapter=self._adapter,
        )

    def _look_for_cut(self, read: int, sent: int) -> None:
        """Warn once where a server read far less than it was sent, as Ollama does without a word."""
        if 0 < read < sent / 2 and sent > _SHORT_PROMPT and not self._cut:
            self._cut = True
            self._warn(
                f"{self._url} says that it read {read:,} of about {sent:,} tokens of a prompt: it may have cut the "
                "rest off. Raise its context (Ollama: OLLAMA_CONTEXT_LENGTH), or lower context_tokens in config.yaml"
            )

    def _cost(self, tokens_in: int, tokens_out: int, seconds: float) -> Cost:
        cost = Cost(usd=self._usd, tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds)
        return priced(cost, self._prices, self._adapter, self._base_name)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def tokens_of(choice: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Token ids and log-probabilities of a choice, each None where the server does not tell all of them.

    vLLM gives the ids as ``token_ids`` or in each token's name (``token_id:17``), llama.cpp as each token's ``id``.
    """
    told = choice.get("logprobs")
    content = told.get("content") if isinstance(told, dict) else None
    entries = [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []
    given = choice.get("token_ids")
    ids = tuple(given) if isinstance(given, list) else tuple(map(_named_id, entries))
    logprobs: tuple[Any, ...] = tuple(entry.get("logprob") for entry in entries)
    known_ids = ids if ids and all(type(n) is int and 0 <= n < 2**31 for n in ids) else None
    good = logprobs and all(type(value) in (int, float) and abs(value) < 1e9 for value in logprobs)  # nor NaN
    known = tuple(map(float, logprobs)) if good else None
    if known_ids is not None and known is not None and len(known_ids) != len(known):
        return None, None
    return known_ids, known


def _named_id(entry: Mapping[str, Any]) -> Any:
    token = entry.get("token")
    digits = token.removeprefix("token_id:") if isinstance(token, str) else ""
    return int(digits) if digits != token and digits.isdecimal() and len(digits) < 10 else entry.get("id")


def _at_home(host: str) -> bool:
    """Whether a host is this machine, or has an address or name that no public one has."""
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(host).is_global
    return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))


def _checked(url: str) -> str:
    """The address without a slash at its end; UsageError for what is none, or carries a password."""
    hint = "local.base_url in config.yaml is like http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.strip().isprintable():
        raise UsageError(f"{client.words_of(url)!r} is not the address of an endpoint", hint=hint)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError("the address of the endpoint carries a name, a key or a query", hint=f"{hint}; keys: key_file")
    return url.strip().rstrip("/")


def read_key(key_file: str, environment: Mapping[str, str] | None = None, *, setting: str = "local.key_file") -> str:
    """The key of the endpoint: the file's first line, else ``AUTORESEARCHD_LOCAL_KEY``, else nothing.

    setting: which names the file.
    """
    if not key_file:
        key = (os.environ if environment is None else environment).get(KEY_VARIABLE, "").strip()
    else:
        try:
            with Path(key_file).expanduser().open(encoding="utf-8") as file:
                key = file.readline(10_000).strip()
        except (OSError, ValueError) as error:
            what = f"the key file {key_file} cannot be read: {error}"
            raise UsageError(what, hint=f"see to {setting} in config.yaml") from error
        if not key:
            raise UsageError(f"the key file {key_file} is empty", hint="its first line is the key")
    if not (key.isascii() and key.isprintable()):
        what = f"{key_file or KEY_VARIABLE} holds no key: a key is printable ASCII on one line"
        raise UsageError(what, hint="write the key alone")
    return key

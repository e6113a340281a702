"""A scripted OpenAI-compatible server on loopback: it does with each question what its script (``model_turns``) says.

::

    with ScriptedServer([rate_limited(2.0), says("hello")]) as server:
        client = OpenAIClient(server.url)

It speaks as vLLM does: token ids and log-probabilities are told when they are asked for.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from autoresearchd.models.litellm_client import LitellmClient
from tests.fakes.model_turns import Turn, no_model, unauthorised

_WORD = re.compile(r"\S+\s*|\s+")
_LOOK_S = 0.02
_PROBE_TOKENS = 16
_QUESTIONS, _ORDERS = "/v1/chat/completions", "/v1/load_lora_adapter"


@dataclass(frozen=True, slots=True)
class Request:
    """What came in. headers: names in lower case; payload: the JSON body, None of a GET."""

    path: str
    headers: Mapping[str, str]
    payload: Mapping[str, Any] | None


def provider_at(url: str, patch: pytest.MonkeyPatch, model: str, **options: Any) -> LitellmClient:
    """A client whose provider is at this address, as the environment tells litellm, and has no key of the user's."""
    for end, value in (("API_BASE", url), ("BASE_URL", url), ("API_KEY", "none")):
        patch.setenv(f"{model.partition('/')[0].upper()}_{end}", value)
    return LitellmClient(model, **options)


class ScriptedServer(ThreadingHTTPServer):
    """The server; a context manager.

    script, after: what it does with each question in order, and then. root: of its one model, as vLLM lists it.
    refuses: fields of a request that it answers with 422. key: bearer token that it wants to see. probe: what it does
    with the look that ``start`` takes at its models, which is no turn of the script. lora: what it does when it is told
    to load an adapter: then it knows only those models that it has (``loaded``). tokens: it tells ids and
    log-probabilities where they are asked for. answers: what it does with a question once the script is used up, by
    its payload, in the place of ``after``. listings: what it does when asked for its models, before it tells them.
    """

    daemon_threads = True

    def __init__(
        self,
        script: Iterable[Turn] = (),
        *,
        after: Turn = Turn("Nothing more to say."),  # noqa: B008 - frozen
        model: str = "scripted-model",
        refuses: Iterable[str] = (),
        key: str = "",
        root: str = "",
        probe: Turn = Turn("OK"),  # noqa: B008 - frozen
        lora: Turn | None = None,
        tokens: bool = True,
        answers: Callable[[Mapping[str, Any]], Turn] | None = None,
        listings: Iterable[Turn] = (),
    ) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self._script, self._after, self.model, self._root = list(script), after, model, root
        self._refuses, self._key, self._probe, self.lora = frozenset(refuses), key, probe, lora
        self._tokens, self._answers, self._listings = tokens, answers, list(listings)
        self._lock, self.closing = threading.Lock(), threading.Event()
        self.asked = threading.Event()
        self.hung_up = threading.Event()
        """Set when a client went away while the server kept it waiting."""
        self.loaded: set[str] = set()
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> ScriptedServer:
        self._thread = threading.Thread(target=self.serve_forever, args=(_LOOK_S,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of tests go away in the middle."""

    @property
    def questions(self) -> list[Mapping[str, Any]]:
        """Payloads of the questions to the model, in order; without the looks that a ``start`` takes."""
        return [asked for asked in self._asked if not _is_probe(asked)]

    @property
    def probes(self) -> list[Mapping[str, Any]]:
        """Payloads of the questions with which a ``start`` looked whether the model answers."""
        return [asked for asked in self._asked if _is_probe(asked)]

    @property
    def _asked(self) -> list[Mapping[str, Any]]:
        return [r.payload for r in self.requests if r.payload is not None and r.path == _QUESTIONS]

    @property
    def left(self) -> int:
        """How many turns of the script have not been used."""
        return len(self._script)

    def turn(self, request: Request) -> Turn:
        """What is done with a request."""
        with self._lock:
            self.requests.append(request)
        asked = request.payload or {}
        if self._key and request.headers.get("authorization") != f"Bearer {self._key}":
            return unauthorised()
        if request.path in ("/health", "/v1/models"):
            with self._lock:
                return self._listings.pop(0) if self._listings else Turn(raw=self._listing())
        if request.path == _ORDERS and self.lora is not None:
            self.loaded |= {str(asked.get("lora_name"))} if self.lora.status == 200 else set()
            return self.lora
        if request.path != _QUESTIONS:
            return Turn(status=404, raw=b'{"detail": "Not Found"}')
        self.asked.set()
        if strange := sorted(self._refuses & set(asked)):
            return Turn(status=422, raw=json.dumps({"detail": f"Unexpected keys in the request: {strange}"}).encode())
        name = asked.get("model", self.model)
        if self.lora is not None and name != self.model and name not in self.loaded:
            return no_model(str(name))
        if _is_probe(asked):
            return self._probe
        with self._lock:
            if self._script:
                return self._script.pop(0)
        return self._after if self._answers is None else self._answers(asked)

    def wait(self, connection: socket.socket) -> None:
        """Until the client goes away or the server ends."""
        while not self.closing.is_set():
            readable, _, _ = select.select([connection], [], [], _LOOK_S)
            if readable:
                with contextlib.suppress(OSError):
                    connection.recv(1)
                self.hung_up.set()
                return

    def _listing(self) -> bytes:
        entry: dict[str, Any] = {"id": self.model, "object": "model", "created": 0, "owned_by": "nobody"}
        entry |= {"root": self._root, "parent": None} if self._root else {}
        return json.dumps({"object": "list", "data": [entry]}).encode()

    def body(self, turn: Turn, asked: Mapping[str, Any]) -> bytes:
        if turn.raw is not None:
            return turn.raw
        if turn.error is not None:
            return json.dumps({"error": turn.error}).encode()
        words = _WORD.findall(turn.text or "")
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.refusal is not None:
            message["refusal"] = turn.refusal
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": turn.finish, "logprobs": None}
        ids = [token_id(word) for word in words]
        if asked.get("logprobs") and self._tokens:
            names = [f"token_id:{i}" for i in ids] if asked.get("return_tokens_as_token_ids") else words
            told = zip(names, map(logprob, words), strict=True)
            choice["logprobs"] = {"content": [{"token": name, "logprob": value} for name, value in told]}
        if asked.get("return_token_ids") and self._tokens:
            choice["token_ids"] = ids
        prompt = sum(len(_WORD.findall(str(message.get("content", "")))) for message in asked.get("messages", ()))
        usage = {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)}
        answer = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 1_700_000_000, "usage": usage}
        answer |= {"model": asked.get("model", self.model), "choices": [choice]}
        return json.dumps(answer).encode()


def _is_probe(asked: Mapping[str, Any]) -> bool:
    return asked.get("max_tokens") == _PROBE_TOKENS


def token_id(word: str) -> int:
    """The id that the server gives to a word of an answer."""
    return zlib.crc32(word.encode("utf-8", "replace")) % 50_000


def logprob(word: str) -> float:
    """The log-probability that the server gives to a word of an answer."""
    return -(1 + token_id(word) % 64) / 64


class ScriptedHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        scripted, size = self.server, int(self.headers.get("content-length") or 0)
        payload = json.loads(self.rfile.read(size)) if size else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        turn = scripted.turn(Request(self.path, headers, payload))
        if turn.fault in ("hang", "drop"):
            self.close_connection = True
            if turn.fault == "hang":
                scripted.wait(self.connection)
            return
        body = scripted.body(turn, payload or {})
        self.send_response(turn.status)
        usual = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        for name, value in {**usual, **turn.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if turn.fault == "cut" else body)
        self.wfile.flush()

    do_GET = do_POST

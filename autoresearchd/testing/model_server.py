"""A scripted OpenAI-compatible server on loopback: good answers and every fault of a provider, in turn.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TOO_LARGE = 2 * 1024 * 1024
_WORD = re.compile(r"\S+\s*|\s+")
_LOOK_S = 0.02
_MAX_REQUEST = 64 * 1024 * 1024
_NOT_FOUND = b'{"detail": "Not Found"}'
_QUESTIONS, _ORDERS = "/v1/chat/completions", "/v1/load_lora_adapter"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the server does with one question.

    text, finish: of the answer; None: a message without content. refusal: beside it. status, error: of an answer that
    is an error. headers: beside the usual ones. raw: a body to be sent as it is. fault: ``hang`` (no answer before the
    client goes away), ``cut`` (the connection ends in the middle of the body), ``drop`` (it ends before the answer).
    """

    text: str | None = ""
    finish: str = "stop"
    refusal: str | None = None
    status: int = 200
    error: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    fault: str = ""


def says(text: str, finish: str = "stop") -> Turn:
    """A good answer."""
    return Turn(text, finish)


def rate_limited(after: float | None = 1.0) -> Turn:
    """429, with Retry-After in seconds where one is given."""
    headers = {} if after is None else {"Retry-After": f"{after:g}"}
    return fails(429, "Rate limit reached for requests", "rate_limit_exceeded", "requests", headers)


def out_of_money() -> Turn:
    """429 of an account whose money is spent: waiting does not help."""
    return fails(429, "You exceeded your current quota, please check your plan.", "insufficient_quota", "requests")


def server_error() -> Turn:
    """500."""
    return fails(500, "The server had an error while processing your request", None, "server_error")


def overloaded() -> Turn:
    """503."""
    return fails(503, "That model is currently overloaded with other requests", None, "server_error")


def unauthorised() -> Turn:
    """401."""
    return fails(401, "Incorrect API key provided", "invalid_api_key", "invalid_request_error")


def no_model(name: str = "nobody") -> Turn:
    """404 for a model."""
    return fails(404, f"The model `{name}` does not exist", "model_not_found", "invalid_request_error")


def context_too_long(most: int = 4096) -> Turn:
    """400 of a prompt that does not fit."""
    words = (
        f"This model's maximum context length is {most} tokens. However, your messages resulted in {2 * most} tokens. "
        "Please reduce the length of the messages."
    )
    return fails(400, words, "context_length_exceeded", "invalid_request_error")


def bad_request() -> Turn:
    """400 for no reason that anything could be done about."""
    return fails(400, "messages: must not be like this", None, "invalid_request_error")


def hang() -> Turn:
    """No answer, until the client goes away or the server ends."""
    return Turn(fault="hang")


def cut(text: str = "an answer that nobody sees the end of") -> Turn:
    """The connection ends in the middle of the body."""
    return Turn(text, fault="cut")


def drop() -> Turn:
    """The connection ends before the answer."""
    return Turn(fault="drop")


def empty() -> Turn:
    """An answer without a word."""
    return Turn("")


def refusal(words: str = "I cannot help with that.") -> Turn:
    """The provider's filter has withheld the answer."""
    return Turn(None, "content_filter", refusal=words)


def invalid_json() -> Turn:
    """200 with a body that is no JSON."""
    return Turn(raw=b'{"choices": [{"message": {"content": "half')


def no_choices() -> Turn:
    """200 with JSON that holds no answer."""
    return Turn(raw=b'{"object": "chat.completion", "model": "scripted-model", "choices": []}')


def too_large(size: int = TOO_LARGE) -> Turn:
    """An answer of two megabytes."""
    return Turn("x" * size)


def escapes(text: str = "done") -> Turn:
    """An answer that would paint a terminal, set its title and clear its screen."""
    return Turn(f"\x1b]0;owned\x07\x1b[2J\x1b[31m{text}\x1b[0m\x00\u202e\ud800")


def edits(path: str, search: str, replace: str, words: str = "This may help.") -> Turn:
    """An answer with one SEARCH/REPLACE block, for any path."""
    return Turn(f"{words}\n\n{path}\n```python\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```\n")


def other_file() -> Turn:
    """An answer that edits a file that is none of its business."""
    return edits("../../.ssh/authorized_keys", "", "ssh-ed25519 AAAA nobody")


def loads() -> Turn:
    """The server loads the adapter that it is told to."""
    return Turn(raw=b"Success: LoRA adapter added successfully.")


def loads_not(path: str = "/nowhere") -> Turn:
    """The server finds no adapter, because it runs on another machine, say."""
    return fails(404, f"Loading lora failed: No adapter found for {path}", None, "NotFoundError")


def redirect(to: str) -> Turn:
    """307 to another address, which would be given the question and its key."""
    return Turn(status=307, headers={"Location": to}, raw=b"")


def fails(status: int, words: str, code: str | None, kind: str, headers: Mapping[str, str] | None = None) -> Turn:
    """An answer that is an error, in the words and under the code of the server."""
    error = {"message": words, "type": kind, "param": None, "code": code}
    return Turn(status=status, error=error, headers=headers or {})


@dataclass(frozen=True, slots=True)
class Request:
    """What came in. headers: names in lower case; payload: the JSON body, None of a GET."""

    path: str
    headers: Mapping[str, str]
    payload: Mapping[str, Any] | None


class ScriptedServer:
    """The server; a context manager.

    Args:
        script: what it does with each question, in order.
        after: what it does when the script is at its end.
        model: the one model that it lists.
        context: length of its context, as vLLM lists it; None: it does not say.
        ids: whether it tells token ids; logprobs: whether it tells log-probabilities.
        refuses: fields of a request that it answers with 422.
        key: bearer token that it wants to see; empty: none.
        root: what it loaded its model from, as vLLM lists it; empty: it does not say.
        lora: what it does when it is told to load an adapter: then it knows only those models that it has; None: it
            knows of no adapters.
    """

    def __init__(
        self,
        script: Iterable[Turn] = (),
        *,
        after: Turn = Turn("Nothing more to say."),
        model: str = "scripted-model",
        context: int | None = None,
        ids: bool = True,
        logprobs: bool = True,
        refuses: Iterable[str] = (),
        key: str = "",
        root: str = "",
        lora: Turn | None = None,
    ) -> None:
        self._script, self._after, self.model, self.context = list(script), after, model, context
        self._root, self.lora = root, lora
        self.loaded: dict[str, str] = {}
        """Adapters that it was told to load: path by name. A server that is started again has none."""
        self._ids, self._logprobs, self._refuses, self._key = ids, logprobs, frozenset(refuses), key
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.hung_up = threading.Event()
        """Set when a client went away while the server kept it waiting."""
        self.requests: list[Request] = []
        """All requests, in order."""
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ScriptedServer:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    @property
    def url(self) -> str:
        """Its address, up to and with ``/v1``."""
        if self._server is None:
            raise RuntimeError("the server has not been entered")
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def questions(self) -> list[Mapping[str, Any]]:
        """Payloads of the questions to the model, in order."""
        return [r.payload for r in self.requests if r.payload is not None and r.path == _QUESTIONS]

    @property
    def left(self) -> int:
        """How many turns of the script have not been used."""
        return len(self._script)

    # -- for the handler
    def note(self, request: Request) -> None:
        """Write a request down."""
        with self._lock:
            self.requests.append(request)

    def welcome(self, request: Request) -> bool:
        """Whether the request carries the key."""
        return not self._key or request.headers.get("authorization") == f"Bearer {self._key}"

    def turn(self, request: Request) -> Turn:
        """What to do with a question."""
        if not self.welcome(request):
            return unauthorised()
        strange = sorted(self._refuses & set(request.payload or ()))
        if strange:
            return Turn(status=422, raw=json.dumps({"detail": f"Unexpected keys in the request: {strange}"}).encode())
        name = (request.payload or {}).get("model", self.model)
        if self.lora is not None and name != self.model and name not in self.loaded:
            return no_model(str(name))
        with self._lock:
            return self._script.pop(0) if self._script else self._after

    def load(self, request: Request) -> Turn:
        """What to do when told to load an adapter."""
        if self.lora is None:
            return Turn(status=404, raw=_NOT_FOUND)
        if self.lora.status == 200:
            order = request.payload or {}
            self.loaded[str(order.get("lora_name"))] = str(order.get("lora_path"))
        return self.lora

    def wait(self, connection: socket.socket) -> None:
        """Until the client goes away or the server ends."""
        while not self._closing.is_set():
            readable, _, _ = select.select([connection], [], [], _LOOK_S)
            if readable:
                with contextlib.suppress(OSError):
                    connection.recv(1)
                self.hung_up.set()
                return

    def listing(self) -> bytes:
        """The body of ``/v1/models``."""
        entry: dict[str, Any] = {"id": self.model, "object": "model", "created": 0, "owned_by": "nobody"}
        if self.context is not None:
            entry["max_model_len"] = self.context
        if self._root:
            entry |= {"root": self._root, "parent": None}
        return json.dumps({"object": "list", "data": [entry]}).encode()

    def body(self, turn: Turn, asked: Mapping[str, Any]) -> bytes:
        """The body of an answer."""
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
        if asked.get("logprobs") and self._logprobs:
            as_ids = self._ids and asked.get("return_tokens_as_token_ids")
            choice["logprobs"] = {
                "content": [
                    {
                        "token": f"token_id:{i}" if as_ids else w,
                        "logprob": logprob(w),
                        "bytes": None,
                        "top_logprobs": [],
                    }
                    for i, w in zip(ids, words, strict=True)
                ]
            }
        if asked.get("return_token_ids") and self._ids:
            choice["token_ids"] = ids
        prompt = sum(len(_WORD.findall(str(message.get("content", "")))) for message in asked.get("messages", ()))
        answer = {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": asked.get("model", self.model),
            "choices": [choice],
            "usage": {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)},
        }
        return json.dumps(answer).encode()


def token_id(word: str) -> int:
    """The id that the server gives to a word of an answer."""
    return zlib.crc32(word.encode("utf-8", "replace")) % 50_000


def logprob(word: str) -> float:
    """The log-probability that the server gives to a word of an answer."""
    return -(1 + token_id(word) % 64) / 64


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, scripted: ScriptedServer) -> None:
        self.scripted = scripted
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of tests go away in the middle; nothing is printed about it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        scripted = self.server.scripted
        request = self._request(None)
        if not scripted.welcome(request):
            self._send(401, scripted.body(unauthorised(), {}), {})
        elif self.path == "/health":
            self._send(200, b"{}", {})
        elif self.path == "/v1/models":
            self._send(200, scripted.listing(), {})
        else:
            self._send(404, _NOT_FOUND, {})

    def do_POST(self) -> None:
        scripted = self.server.scripted
        size = min(int(self.headers.get("content-length") or 0), _MAX_REQUEST)
        payload = json.loads(self.rfile.read(size))
        request = self._request(payload)
        if self.path not in (_QUESTIONS, _ORDERS):
            self._send(404, _NOT_FOUND, {})
            return
        turn = scripted.turn(request) if self.path == _QUESTIONS else scripted.load(request)
        if turn.fault in ("hang", "drop"):
            self.close_connection = True
            if turn.fault == "hang":
                scripted.wait(self.connection)
        else:
            body = scripted.body(turn, payload)
            self._send(turn.status, body, turn.headers, whole=turn.fault != "cut")

    def _request(self, payload: Mapping[str, Any] | None) -> Request:
        request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, payload)
        self.server.scripted.note(request)
        return request

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], *, whole: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if whole else body[: len(body) // 2])
        self.wfile.flush()

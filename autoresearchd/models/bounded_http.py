"""HTTP with a model's server, held to the bounds of its question; httpx adapted, also for libraries that use it.

An endpoint may be anybody, or be taken over: it gets one connection, sends so many bytes within so much time, and can
neither pass the question on nor have its answer unpacked to any size.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self

import httpx

from autoresearchd.models.client import MAX_REPLY_BYTES, ModelError, TooLong, Trouble

_BYTES_PER_TOKEN = 512  # of JSON, for a token with its log-probability
_MAX_ERROR_BYTES = _MAX_BESIDE_TEXT = 512 * 1024
"""Of an answer that tells of an error, which may repeat the prompt; and of what is no text in another, as where it is
no JSON. Libraries search an error with patterns, at seconds a megabyte."""
_MAX_PARTS = 50_000
"""Of a JSON answer: lists, objects, and what is in them. A library makes an object of kilobytes of each."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_PART = re.compile(rb"[\[{,]")
_BY_THE_WAY_S, _BY_THE_WAY_TOKENS = 60.0, 8192
"""What a request may take that belongs to no question: a library asks for a token of an account, say."""


class Line:
    """The sockets of one question, to be shut by who does not want the reply: the server stops to generate it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cut = False

    def cut(self) -> None:
        """Shut the connection, and each that is opened from now on."""
        with self._lock:
            self._cut = True
            self._shut()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Takes the socket out of the events of httpcore (its ``trace`` extension)."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self._cut:
                    self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True)
class Bounds:
    """What one exchange may take. deadline: by the monotonic clock; most: bytes of the body; line: what cuts it short.

    objects: whether a library makes objects of the answer, so that its parts are bounded too. error: why it was ended,
    for a caller that is told so in the words of a library between. sent: how many requests.
    """

    deadline: float
    most: int
    line: Line = field(default_factory=Line)
    objects: bool = True
    error: ModelError | None = field(default=None, init=False)
    sent: int = field(default=0, init=False)

    @classmethod
    def of(cls, timeout: float, max_tokens: int, *, objects: bool = True) -> Self:
        """Of an answer of so many tokens, as JSON and with all that is told of its tokens."""
        return cls(time.monotonic() + timeout, most_bytes(max_tokens), objects=objects)

    def narrow(self, seconds: float, most: int) -> Self:
        """Of another exchange on the same line, which may take no longer."""
        return replace(self, deadline=min(self.deadline, time.monotonic() + seconds), most=most)

    @property
    def left(self) -> float:
        """Seconds until the deadline; never nothing, which a client takes for no limit."""
        return max(0.001, self.deadline - time.monotonic())

    def check_head(self, response: httpx.Response) -> None:
        status = response.status_code
        if 300 <= status < 400:
            what = f"the server answered {status}: it redirects the question elsewhere, which is not followed"
            hint = "give the address that it redirects to, if it is one that you trust"
            raise self._end(ModelError(Trouble.NOT_FOUND, what, hint=hint))
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            what = "the reply is compressed, which was not asked for"
            raise self._end(ModelError(Trouble.BROKEN_REPLY, what))

    def read(self, response: httpx.Response) -> bytes:
        most = self.most if response.status_code < 400 else min(self.most, _MAX_ERROR_BYTES)
        chunks, size = [], 0
        for chunk in response.iter_raw():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                what = f"the reply is longer than {most:,} bytes and was not read to its end"
                raise self._end(TooLong(Trouble.BROKEN_REPLY, what))
            if time.monotonic() > self.deadline:
                raise self._end(ModelError(Trouble.TIMEOUT, "the reply came too slowly"))
        body = b"".join(chunks)
        if self.objects:  # it would fill the memory
            beside_text = _STRING.sub(b"", body)
            parts = sum(1 for _ in _PART.finditer(beside_text))
            if parts > _MAX_PARTS or len(beside_text) > _MAX_BESIDE_TEXT:
                what = (
                    f"the reply has {parts:,} parts and {len(beside_text):,} bytes beside its text and was thrown away"
                )
                raise self._end(TooLong(Trouble.BROKEN_REPLY, what))
        return body

    def _end(self, error: ModelError) -> ModelError:
        self.error = error
        return error


_CURRENT: ContextVar[Bounds | None] = ContextVar("bounds of the question", default=None)


def most_bytes(max_tokens: int) -> int:
    """Bytes that an answer of so many tokens may take at most."""
    return 2 * MAX_REPLY_BYTES + _BYTES_PER_TOKEN * max_tokens


@contextlib.contextmanager
def within(bounds: Bounds) -> Iterator[None]:
    """Hold the requests that this thread makes meanwhile to these bounds."""
    token = _CURRENT.set(bounds)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class BoundedTransport(httpx.BaseTransport):
    """Reads no more of an answer than it may, unpacks nothing and lets nobody redirect it.

    options: of the client through which it asks (``verify`` …). Each exchange has a socket of its own to be cut.
    """

    def __init__(self, options: Callable[[], Mapping[str, Any]]) -> None:
        self._options, self._lock = options, threading.Lock()
        self._client: httpx.Client | None = None

    def session(self) -> httpx.Client:
        return httpx.Client(transport=self)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        bounds = _CURRENT.get() or Bounds.of(_BY_THE_WAY_S, _BY_THE_WAY_TOKENS)
        if bounds.error is not None:  # the library asks once more: the same server would do the same again
            raise bounds.error
        bounds.sent += 1
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, "trace": bounds.line.trace}
        with self._lock:
            if self._client is None:
                limits = httpx.Limits(max_keepalive_connections=0)
                self._client = httpx.Client(limits=limits, **self._options())
        with contextlib.closing(self._client.send(request, stream=True, follow_redirects=False)) as response:
            bounds.check_head(response)
            body = bounds.read(response)
        given, extensions = httpx.Headers(response.headers), response.extensions
        # Without its charset, by which the library would decode: Python has some that take for ever, or unpack.
        given["content-type"] = given.get("content-type", "").partition(";")[0]
        return httpx.Response(response.status_code, headers=given, stream=httpx.ByteStream(body), extensions=extensions)

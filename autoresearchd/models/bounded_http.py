"""HTTP for libraries that make requests of their own: each request of theirs is held to the bounds of its question.

httpx is adapted here, for litellm and what it brings along. Proxies and certificates stay as the environment has them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx

from autoresearchd.models.reply_bounds import Bounds, Line, most_bytes

_BY_THE_WAY_S, _BY_THE_WAY_TOKENS = 60.0, 8192
"""What a request may take that belongs to no question: a library asks for a token of an account, say."""
_CURRENT: ContextVar[Bounds | None] = ContextVar("bounds of the question", default=None)


@contextmanager
def within(bounds: Bounds) -> Iterator[None]:
    """Hold the requests that this thread makes meanwhile to these bounds."""
    token = _CURRENT.set(bounds)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class BoundedTransport(httpx.BaseTransport):
    """A transport that reads no more of an answer than it may, unpacks nothing and lets nobody redirect it.

    It asks through a client of its own, which knows the proxies of the environment, and keeps no connection: each
    exchange has a socket of its own to be cut.

    certificates: gives the client's ``verify`` and ``cert``; called at the first request.
    """

    def __init__(self, certificates: Callable[[], Mapping[str, Any]]) -> None:
        self._certificates, self._lock = certificates, threading.Lock()
        self._client: httpx.Client | None = None

    def session(self) -> httpx.Client:
        """A client whose requests go through here."""
        return httpx.Client(transport=self)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; its answer is read as far as the bounds of its question allow."""
        bounds = _CURRENT.get() or Bounds(Line(), time.monotonic() + _BY_THE_WAY_S, most_bytes(_BY_THE_WAY_TOKENS))
        if bounds.error is not None:  # the library asks once more: the same server would do the same again
            raise bounds.error
        bounds.sent += 1
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, "trace": bounds.line.trace}
        response = self._open().send(request, stream=True, follow_redirects=False)
        try:
            bounds.check_head(response.status_code, response.headers)
        except BaseException:
            response.close()
            raise
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Body(response, bounds),
            extensions=response.extensions,
        )

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                limits = httpx.Limits(max_keepalive_connections=0)
                self._client = httpx.Client(limits=limits, **self._certificates())
            return self._client


class _Body(httpx.SyncByteStream):
    """The body of an answer, as far as its bounds allow."""

    def __init__(self, response: httpx.Response, bounds: Bounds) -> None:
        self._response, self._bounds = response, bounds

    def __iter__(self) -> Iterator[bytes]:
        body = b"".join(self._bounds.read(self._response.iter_raw()))
        self._bounds.check_parts(body)
        yield body

    def close(self) -> None:
        self._response.close()

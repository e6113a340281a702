"""What is read of a model's answer over HTTP, and what cuts it short: the same for every client that asks over it.

An endpoint may be anybody, or be taken over: it gets one connection, sends so many bytes within so much time, and can
neither pass the question on nor have its answer unpacked to any size.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoresearchd.models.client import ModelError, Trouble
from autoresearchd.models.provider_errors import MAX_REPLY_BYTES

_BYTES_PER_TOKEN = 512
"""Of JSON, for a token with its log-probability."""
_MAX_ERROR_BYTES = _MAX_BESIDE_TEXT = 512 * 1024
"""Of an answer that tells of an error, which may repeat the prompt; and of what is no text in another, as where it is
no JSON. Libraries search an error with patterns, at seconds a megabyte."""
_MAX_PARTS = 50_000
"""Of a JSON answer: lists, objects, and what is in them. A library makes an object of kilobytes of each."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_PART = re.compile(rb"[\[{,]")


class TooLong(ModelError):
    """A reply that was not read to its end, or not at all, where it would have told what it cost."""


class Line:
    """The sockets of one question, so that they can be shut by a thread that does not want the reply any more.

    The server notices, and does not go on to generate it.
    """

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
        """Takes the socket out of the events of httpcore and httpcore2 (their ``trace`` extension)."""
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
    """What one exchange may take. line: what cuts it short; deadline: by the monotonic clock; most: bytes of the body.

    error: why it was ended, for a caller that is told so in the words of a library between. sent: how many requests.
    """

    line: Line
    deadline: float
    most: int
    error: ModelError | None = field(default=None, init=False)
    sent: int = field(default=0, init=False)

    @property
    def left(self) -> float:
        """Seconds until the deadline; never nothing, which a client takes for no limit."""
        return max(0.001, self.deadline - time.monotonic())

    def check_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Refuse an answer by its status and its headers (names in lower case, or a mapping that does not mind)."""
        if 300 <= status < 400:
            raise self._ended(
                ModelError(
                    Trouble.NOT_FOUND,
                    f"the server answered {status}: it redirects the question elsewhere, which is not followed",
                    hint="give the address that it redirects to, if it is one that you trust",
                )
            )
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            what = "the reply is compressed, which was not asked for"
            raise self._ended(ModelError(Trouble.BROKEN_REPLY, what))

        if status >= 400:
            self.most = min(self.most, _MAX_ERROR_BYTES)

    def check_parts(self, body: bytes) -> None:
        """Refuse a whole answer that would fill the memory as objects, before a library makes those of it."""
        beside_text = _STRING.sub(b"", body)
        parts = sum(1 for _ in _PART.finditer(beside_text))
        if parts > _MAX_PARTS or len(beside_text) > _MAX_BESIDE_TEXT:
            what = f"the reply has {parts:,} parts and {len(beside_text):,} bytes beside its text and was thrown away"
            raise self._ended(TooLong(Trouble.BROKEN_REPLY, what))

    def read(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks of a body, as they come over the connection, until they are too many or too late."""
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if size > self.most:
                what = f"the reply is longer than {self.most:,} bytes and was not read to its end"
                raise self._ended(TooLong(Trouble.BROKEN_REPLY, what))
            if time.monotonic() > self.deadline:
                raise self._ended(ModelError(Trouble.TIMEOUT, "the reply came too slowly"))
            yield chunk

    def _ended(self, error: ModelError) -> ModelError:
        self.error = error
        return error


def most_bytes(max_tokens: int) -> int:
    """Bytes that an answer of so many tokens may take at most, as JSON and with all that is told of its tokens."""
    return 2 * MAX_REPLY_BYTES + _BYTES_PER_TOKEN * max_tokens

"""HTTP to a model's endpoint: one exchange within its bounds (``wire``).

httpx2 is adapted here. It is used without its comforts: no proxy, netrc or other setting of the environment (the key
goes to the configured address and nowhere else), and no connection is kept, so that each exchange has a socket of its
own to be cut.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from autoresearchd.errors import MissingCapability, UsageError
from autoresearchd.policy.client import ModelError, Trouble
from autoresearchd.policy.provider import words_of
from autoresearchd.policy.wire import Bounds

if TYPE_CHECKING:
    import httpx2

_CONNECT_S = 10.0
_BEGINNING = 200


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
    """An address that questions are sent to.

    Args:
        url: up to and with ``/v1``.
        key: sent as a bearer token; empty: none.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.url = _checked(url)
        self._key = key
        self._client: httpx2.Client | None = None

    def exchange(self, bounds: Bounds, path: str, payload: Mapping[str, Any] | None) -> Answered:
        """Send a request and read the whole answer.

        Args:
            bounds: of the exchange.
            path: below the address.
            payload: posted as JSON; None: a GET.

        Raises:
            ModelError: the endpoint cannot be reached, is too slow, breaks off, answers too much, or redirects. Any
                other status that tells of an error is no exception here.
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
                mend="is the server running? `autoresearchd serve` starts one; local.base_url says where it is",
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
            f"the policy local needs the package httpx2: {error}", mend="pip install 'autoresearchd[local]'"
        ) from error


def _checked(url: str) -> str:
    """The address without a slash at its end. Raises UsageError for what is none, or carries a password."""
    mend = "local.base_url in config.yaml is like http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.strip().isprintable():
        raise UsageError(f"{words_of(url)!r} is no address of an endpoint", mend=mend)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError("the address of the endpoint carries a name, a key or a query", mend=f"{mend}; keys: key_file")
    return url.strip().rstrip("/")

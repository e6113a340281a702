"""Who may read and who may ask: nobody but pages of this address, and for asking only who has the token.

The token is in the part of the address after ``#``, which no browser sends; the page keeps it for its tab and origin,
which a cookie would not (RFC 6265, §8.5: cookies are shared by all ports of a host), and sends it in a header of its
own, which no form and no foreign page can set. A Host of another name is a page that has rebound its name to this
address (DNS rebinding), and is refused.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-autoresearchd-token"  # noqa: S105 its name
HOSTS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine alone; any port: of the user's own tunnel, for one."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def new_token() -> str:
    """256 random bits, for as long as the server runs: nothing is left on the disk."""
    return secrets.token_urlsafe(32)


def may_ask(request: Request, token: str) -> bool:
    """Whether a request has the token and does not come from a page of another origin."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        return False
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        return False
    given = request.headers.get(TOKEN_HEADER, "")
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


class Guard:
    """Refuses foreign hosts, and has every answer carry the headers that keep foreign content from doing anything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if not _is_here(Headers(scope=scope).get("host", "")):
            words = (
                "this page answers only at 127.0.0.1 and localhost: open the address that `autoresearchd web` printed"
            )
            await PlainTextResponse(words, 421)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _is_here(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in HOSTS
    except ValueError:
        return False

"""The server: addresses, errors in words, and what may be asked with the token (Starlette on uvicorn)."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import uvicorn
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from autoresearchd import __version__
from autoresearchd.app.project import Project
from autoresearchd.domain.errors import AutoresearchdError, NothingRunning, SessionLocked, UsageError
from autoresearchd.report.charts import STYLE
from autoresearchd.web import rendering
from autoresearchd.web.changes import Changes
from autoresearchd.web.curves import LiveCurves, stored_curves
from autoresearchd.web.security import Guard, may_ask, new_token
from autoresearchd.web.source import Source
from autoresearchd.web.views import NotHere, Views, number_of

HOST = "127.0.0.1"
MOST_BYTES, MOST_NOTE = 64 * 1024, 4000
REQUESTS = ("pause", "unpause", "stop", "stop_now")
Page = Callable[[Request], Mapping[str, Any]]


class Site:
    """The pages of a repository. token: who sends it may ask for something; stopping: whether the server is to end."""

    def __init__(self, project: Project, stopping: Callable[[], bool]) -> None:
        self.token, self.warm = new_token(), False
        self._source = Source(project)
        self._views, self._curves = Views(self._source), LiveCurves(self._source)
        self._changes = Changes(self._source, stopping)
        self._templates: Environment = rendering.environment()
        self._templates.globals["program_version"] = __version__
        self._data = (self._live, self._stored, self._events, self._token)
        """Read by the page's script: their errors are data, too."""
        views = self._views
        pages: dict[str, tuple[str, Page]] = {
            "/": ("sessions.html", lambda q: views.sessions("narrow" in q.query_params)),
            "/s/{tag}": ("overview.html", lambda q: views.overview(q.path_params["tag"], "narrow" in q.query_params)),
            "/s/{tag}/experiments": (
                "experiments.html",
                lambda q: views.experiments(q.path_params["tag"], q.query_params),
            ),
            "/s/{tag}/lineage": ("lineage.html", lambda q: views.lineage(q.path_params["tag"])),
            "/s/{tag}/insights": ("insights.html", lambda q: views.insights(q.path_params["tag"])),
            "/s/{tag}/learner": ("learner.html", lambda q: views.learner(q.path_params["tag"])),
            "/s/{tag}/x/{number}": ("experiment.html", lambda q: views.experiment(*_experiment(q))),
        }
        site = Starlette(
            routes=[
                *(Route(path, self._page(template, page)) for path, (template, page) in pages.items()),
                Route("/s/{tag}/live", self._live),
                Route("/s/{tag}/x/{number}/curves", self._stored),
                Route("/events", self._events),
                Route("/token", self._token),
                Route("/s/{tag}/note", self._asked(self._note), methods=["POST"]),
                Route("/s/{tag}/ask", self._asked(self._ask), methods=["POST"]),
                Route("/charts.css", lambda _: PlainTextResponse(STYLE, media_type="text/css")),
                Mount("/static", StaticFiles(directory=rendering.FOLDER / "static")),
            ],
            exception_handlers=dict.fromkeys(
                (HTTPException, NotHere, AutoresearchdError, KeyError, Exception), self._failed
            ),
            lifespan=self._lifespan,
        )  # fmt: skip
        self.app = Guard(site)  # around all of it: of an error that nobody expected, too

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(run_in_threadpool(self._warm))
        yield
        await warming
        self._curves.close()
        self._source.close()

    def _warm(self) -> None:
        """Make the first page once before somebody asks: what it rests on is kept."""
        with suppress(AutoresearchdError, NotHere, OSError):
            for session in self._source.open()[1].sessions()[-1:]:
                self._html("overview.html", {**self._views.overview(session.tag), "stale": False})
        self._source.gave_stale()
        self.warm = True

    # ------------------------------------------------------------------ reading
    def _page(self, template: str, page: Page) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            self._source.gave_stale()  # one before that failed may have left it
            context = page(request)
            return self._html(template, {**context, "stale": self._source.gave_stale()})

        return answer

    def _html(self, template: str, context: Mapping[str, Any], code: int = 200) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(context), code)

    def _live(self, request: Request) -> Response:
        number = number_of(request.query_params.get("experiment", ""))
        return JSONResponse(self._curves.of(request.path_params["tag"], number))

    def _stored(self, request: Request) -> Response:
        tag, number = _experiment(request)
        _, reader = self._source.open()
        try:
            parent = reader.around(tag, number)["parent"]
            return JSONResponse(stored_curves(reader, tag, number, parent))
        except KeyError:
            raise NotHere(f"there is no session {tag[:60]!r} here") from None

    async def _events(self, request: Request) -> Response:
        if self._changes.full:
            return PlainTextResponse("too many pages are open", 503)
        stream = self._changes.stream(request.query_params.get("session", "")[:100])
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    def _token(self, request: Request) -> Response:
        """Whether the token of the page is the server's: it may be of one before it."""
        return Response(status_code=204 if may_ask(request, self.token) else 403)

    # ------------------------------------------------------------------ asking
    def _asked(self, ask: Callable[[str, Mapping[str, Any]], str]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            if not may_ask(request, self.token):
                words = "this page may only read: open the address with the token, which `autoresearchd web` printed"
                return JSONResponse({"error": words}, 403)
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return JSONResponse({"error": "what is asked is JSON"}, 415)
            body = b""
            try:
                async for piece in request.stream():
                    body += piece
                    if len(body) > MOST_BYTES:
                        return JSONResponse({"error": f"that is more than {MOST_BYTES // 1024} KiB"}, 413)
            except ClientDisconnect:  # nobody reads the answer
                return Response(status_code=400)
            try:
                asked = json.loads(body)
                if not isinstance(asked, dict):
                    raise ValueError("no object")
            except (ValueError, RecursionError):
                return JSONResponse({"error": "that is no JSON object"}, 400)
            try:
                words = await run_in_threadpool(ask, request.path_params["tag"], asked)
            except (UsageError, NothingRunning) as error:
                return JSONResponse({"error": str(error)}, 400)
            except AutoresearchdError as error:
                return JSONResponse({"error": str(error)}, 409 if isinstance(error, SessionLocked) else 503)
            return JSONResponse({"done": words})

        return answer

    def _note(self, tag: str, asked: Mapping[str, Any]) -> str:
        from autoresearchd.app import session_requests  # slow to import, and seldom needed

        text = asked.get("text")
        if not isinstance(text, str) or not text.strip():
            raise UsageError("the note is empty", hint="say what the agent should know")
        if len(text) > MOST_NOTE:
            raise UsageError(f"the note has {len(text):,} characters", hint=f"at most {MOST_NOTE:,}")
        return session_requests.note(self._source.project.root, tag, text.strip())

    def _ask(self, tag: str, asked: Mapping[str, Any]) -> str:
        from autoresearchd.app import session_requests

        match asked.get("kind"):
            case "stop" | "stop_now" as kind:
                return session_requests.stop(self._source.project.root, tag, kind == "stop_now")
            case "pause" | "unpause" as kind:
                return session_requests.request(self._source.project.root, tag, kind)
            case other:
                raise UsageError(f"{str(other)[:40]!r} is nothing to ask for", hint=f"one of {', '.join(REQUESTS)}")

    # ------------------------------------------------------------------ errors
    def _failed(self, request: Request, error: Exception) -> Response:
        code, what, hint = 404, str(error), ""
        if isinstance(error, HTTPException):
            code, what = (
                error.status_code,
                f"{error.detail or HTTPStatus(error.status_code).phrase}: {request.url.path}",
            )
        elif isinstance(error, AutoresearchdError):
            code, what, hint = 400 if isinstance(error, UsageError) else 503, error.what, error.hint
        elif isinstance(error, KeyError):
            what = "there is no such session or experiment (any more)"
        elif not isinstance(error, NotHere):
            code, what = 500, f"this page cannot be made: {type(error).__name__}"
            hint = "the terminal of `autoresearchd web` tells more; the session itself is not touched by it"
        if request.scope.get("endpoint") in self._data:
            return JSONResponse({"error": f"{what}; {hint}" if hint else what}, code)
        return self._html("error.html", {"code": code, "what": what, "hint": hint, "tag": ""}, code)


def _experiment(request: Request) -> tuple[str, int]:
    return request.path_params["tag"], number_of(request.path_params["number"])


class Server(uvicorn.Server):
    """A site at a port of this machine. UsageError: the port is taken."""

    def __init__(self, project: Project, port: int) -> None:
        self._socket = _listen(port)
        self.port = self._socket.getsockname()[1]
        self.site = Site(project, lambda: self.should_exit)
        config = uvicorn.Config(
            self.site.app, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=2,
            proxy_headers=False, ws="none",
        )  # fmt: skip
        super().__init__(config)

    def address(self, path: str = "/") -> str:
        """Where the page is, with the token."""
        return f"http://{HOST}:{self.port}{path}#token={self.site.token}"

    def serve_on(self) -> None:
        """Until SIGINT or SIGTERM, or ``should_exit``."""
        with self._socket:
            self.run(sockets=[self._socket])


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            other = f"--port {port + 1 if port < 65535 else port - 1}"
            raise UsageError(
                f"port {port} of {HOST} is in use", hint=f"another page may run there; or {other}"
            ) from error
        raise UsageError(f"port {port} of {HOST} cannot be had: {error.strerror}", hint="--port 8765, say") from error
    return listening

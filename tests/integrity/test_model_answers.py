"""A model's server that is hostile fills no memory, passes no question and no key on, and holds nobody.

Each attack is made on every way of asking over HTTP: ``local:``, and ``litellm:`` with a provider that is asked through
the package ``openai`` and with one that litellm asks itself.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import socket
import threading
from collections.abc import Callable
from functools import partial

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.models.bounded_http import most_bytes
from autoresearchd.models.client import ModelClient, ModelError, Question, Trouble
from autoresearchd.models.openai_client import OpenAIClient
from tests.fakes.model_server import ScriptedHandler, ScriptedServer, provider_at

pytestmark = pytest.mark.slow

QUESTION = Question(({"role": "user", "content": "What would you change in train.py?"},), max_tokens=16, timeout=60.0)
KEY = "sk-not-a-key-0123456789abcdef"
HUGE = 700 * 2**20
BUFFERED = 16 * 2**20
"""What the kernel takes from a server beside what a client reads."""
PATIENCE_S = 200.0
Way = Callable[[str], ModelClient]
Attack = Callable[["Handler"], None]
WAYS = ("local", "litellm:openai", "litellm:anthropic")


def client_of(way: str, patch: pytest.MonkeyPatch, url: str) -> ModelClient:
    provider = way.partition(":")[2]
    if provider:
        return provider_at(url, patch, f"{provider}/m", keys={provider: KEY})
    return OpenAIClient(url, "m", key=KEY)


class Hostile(ScriptedServer):
    """A server that does what it is told. attack: is given the handler, once the question has been read."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self.RequestHandlerClass = Handler
        self.attack, self.attacks = attack, 0
        self.sent = 0
        """Bytes of bodies that a client or the kernel took."""


class Handler(ScriptedHandler):
    """One exchange."""

    server: Hostile

    def do_GET(self) -> None:
        if self.server.attack is answered:  # a redirect may make a GET of the question
            self.do_POST()
        else:
            self.head(404, **{"Content-Length": "0"})

    def do_POST(self) -> None:
        self.close_connection = True
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.attacks += 1
        try:
            self.server.attack(self)
        except OSError:
            self.server.hung_up.set()

    def head(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def body(self, data: bytes) -> None:
        self.wfile.write(data)
        self.server.sent += len(data)

    def answer(self, data: bytes, **headers: str) -> None:
        self.head(**{"Content-Length": str(len(data)), **headers})
        self.body(data)

    def flood(self, data: bytes) -> None:
        while self.server.sent < HUGE:
            self.body(data * 65536)

    def drip(self, data: bytes) -> None:
        """A byte now and then, for as long as anybody listens."""
        while not self.server.closing.wait(0.02):
            self.body(data)


# ---------------------------------------------------------------------- what servers do
def endless(handler: Handler, status: int = 200, begin: bytes = b'{"choices": [{"message": {"content": "') -> None:
    handler.head(status)
    handler.body(begin)
    handler.flood(b"x")


def endless_error(handler: Handler) -> None:
    endless(handler, 500, b"")


def announced(handler: Handler) -> None:
    handler.head(**{"Content-Length": str(HUGE)})
    handler.flood(b" ")


def bomb(handler: Handler) -> None:
    handler.answer(gzip.compress(b" " * (64 * 2**20), 9), **{"Content-Encoding": "gzip"})


def crowded(handler: Handler) -> None:
    parts = b",".join([b"{}"] * 1_000_000)
    handler.answer(b'{"model": "m", "choices": [{"message": {"tool_calls": [' + parts + b"]}}]}")


def nested(handler: Handler) -> None:
    handler.answer(b"[" * 1_000_000 + b"]" * 1_000_000)


def no_json(handler: Handler) -> None:
    handler.answer(b"x" * 3_000_000)


def odd_charset(handler: Handler) -> None:
    handler.answer(b'{"a": "-' + b"a" * 3_000_000 + b'"}', **{"Content-Type": "application/json; charset=punycode"})


def repeats_its_key(handler: Handler) -> None:
    key = handler.headers.get("authorization") or handler.headers.get("x-api-key") or ""
    handler.answer((" " * (205 - len(key)) + key).encode())


def slow_body(handler: Handler) -> None:
    handler.head()
    handler.drip(b" ")


def slow_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    handler.drip(b"x")


def answered(handler: Handler) -> None:
    handler.answer(b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "stolen"}}]}')


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    """How a model is asked, with the import of a library done: it takes none of a question's time."""
    package = "httpx" if request.param == "local" else "litellm"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    way = partial(client_of, request.param, monkeypatch)
    way("http://127.0.0.1:9/v1").count_tokens(QUESTION.messages)
    return way


def fails(client: ModelClient, question: Question = QUESTION) -> ModelError:
    with pytest.raises(ModelError) as caught:
        client.ask(question, threading.Event())
    return caught.value


def attacked(way: Way, attack: Attack) -> ModelError:
    with Hostile(attack) as hostile:
        return fails(way(hostile.url))


@pytest.mark.parametrize("attack", [endless, announced, endless_error])
def test_an_answer_of_700_megabytes_does_not_fill_the_memory(way: Way, attack: Attack) -> None:
    with Hostile(attack) as hostile:
        error = fails(way(hostile.url))
        assert hostile.hung_up.wait(PATIENCE_S), "the server is listened to for as long as it likes"
    assert error.trouble is Trouble.BROKEN_REPLY and "not read to its end" in error.what
    assert hostile.sent < most_bytes(QUESTION.max_tokens) + BUFFERED
    assert hostile.attacks == 1
    assert error.cost.tokens_out == QUESTION.max_tokens, "a cap must see what was billed"


def test_an_answer_that_unpacks_to_a_thousand_times_its_size_is_not_unpacked(way: Way) -> None:
    error = attacked(way, bomb)
    assert error.trouble is Trouble.BROKEN_REPLY and "compressed" in error.what


def test_an_answer_is_decoded_by_no_charset_of_the_server_s_choice(way: Way) -> None:
    """One of Python's takes time by the square of the length, in a thread that nothing ends."""
    error = attacked(way, odd_charset)
    assert error.trouble is not Trouble.TIMEOUT
    assert not [thread for thread in threading.enumerate() if thread.name == "model-call"]


@pytest.mark.parametrize("attack", [crowded, nested, no_json])
def test_an_answer_of_a_million_parts_is_made_no_objects_of(
    way: Way, attack: Attack, request: pytest.FixtureRequest
) -> None:
    """Of 2 MB litellm made 2.6 GB and went on after the time-out, or searched them for secrets for 12 seconds."""
    if request.node.callspec.params["way"] == "local":
        pytest.skip("it makes no objects of its own of what is no answer")
    error = attacked(way, attack)
    assert "was thrown away" in error.what
    assert error.cost.tokens_out == QUESTION.max_tokens, "a cap must see what was billed"


@pytest.mark.parametrize("name", ["local", "litellm:openai"])
def test_a_server_that_tells_of_a_billion_tokens_does_not_use_up_the_cap_of_the_day(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At $15 a million it was $18,000 for an answer of 16 tokens, in the book that all of a user's sessions share."""
    pytest.importorskip("httpx" if name == "local" else "litellm")

    def greedy(handler: Handler) -> None:
        message = b'{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "OK"}}'
        usage = b'{"prompt_tokens": 999999999, "completion_tokens": 999999999, "total_tokens": 1999999998}'
        handler.answer(b'{"id": "1", "model": "m", "choices": [' + message + b'], "usage": ' + usage + b"}")

    with Hostile(greedy) as hostile:
        cost = client_of(name, monkeypatch, hostile.url).ask(QUESTION, threading.Event()).cost
    assert cost.tokens_in < 110_000 and cost.tokens_out < 110_000


def test_a_long_error_is_not_read_to_its_end(way: Way) -> None:
    """litellm searches all of it for secrets, at 7 seconds a megabyte, in which nothing else of the daemon runs."""

    def failed(handler: Handler) -> None:
        handler.head(400)
        handler.body(b"x" * 2**20)

    assert "not read to its end" in attacked(way, failed).what


def test_a_server_that_repeats_its_key_does_not_have_it_shown(way: Way) -> None:
    """Neither whole nor cut: half of a key is known to nobody who redacts."""
    assert KEY[:12] not in str(attacked(way, repeats_its_key))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_takes_neither_question_nor_key_to_another_server(way: Way, status: int) -> None:
    with Hostile(answered) as thief:
        with Hostile(lambda handler: handler.head(status, Location=thief.url, **{"Content-Length": "0"})) as hostile:
            error = fails(way(hostile.url))
        assert (hostile.attacks, thief.attacks) == (1, 0)
    assert f"{status}: it redirects the question elsewhere" in error.what and KEY not in str(error)


@pytest.mark.parametrize("attack", [slow_body, slow_head])
def test_who_drips_an_answer_is_hung_up_on_when_the_time_is_over(way: Way, attack: Attack) -> None:
    with Hostile(attack) as hostile:
        error = fails(way(hostile.url), Question(QUESTION.messages, max_tokens=16, timeout=0.5))
        assert hostile.hung_up.wait(PATIENCE_S), "a thread of the daemon goes on to listen"
    assert error.trouble is Trouble.TIMEOUT


def test_a_stop_cuts_the_line_to_the_server(way: Way) -> None:
    cancel = threading.Event()

    def stopped(handler: Handler) -> None:
        cancel.set()
        slow_body(handler)

    with Hostile(stopped) as hostile:
        with pytest.raises(Interrupted):
            way(hostile.url).ask(QUESTION, cancel)
        assert hostile.hung_up.wait(PATIENCE_S), "an answer that nobody wants is written, and billed, to its end"


def test_a_proxy_of_the_environment_is_still_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx")
    from autoresearchd.models.bounded_http import BoundedTransport

    with Hostile(answered) as proxy, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # nobody listens there
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with BoundedTransport(dict).session() as session:
            reply = session.post(f"http://provider.invalid:{nobody.getsockname()[1]}/v1/chat/completions", json={})
    assert "stolen" in reply.text, "who sits behind a proxy could ask no provider"

"""A model of the user's own is asked over HTTP: nothing it does ends the loop, the learner gets its tokens, and a
promoted version answers at an endpoint that can load it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.config.settings import Price
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.client import ModelClient, ModelError, Trouble
from autoresearchd.models.model_files import model_hash, tokenizer_hash
from autoresearchd.models.openai_client import OpenAIClient, read_key, tokens_of
from tests.contract.client_contract import QUESTION, HttpClientContract
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer, logprob, token_id
from tests.fakes.model_turns import Turn
from tests.fakes.models import Chosen

pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")

NEVER = threading.Event()
SCHEMA = {"type": "object", "properties": {"lr": {"type": "number"}}}


class TestOpenAIClient(HttpClientContract):
    def make_client(self, url: str) -> ModelClient:
        return OpenAIClient(url, "scripted-model")


def test_the_learner_gets_the_token_ids_and_log_probabilities_of_vllm() -> None:
    with ScriptedServer([turns.says("lower the rate")]) as scripted:
        reply = OpenAIClient(scripted.url).ask(QUESTION, NEVER)
    words = ["lower ", "the ", "rate"]
    assert reply.token_ids == tuple(token_id(word) for word in words)
    assert reply.logprobs == tuple(logprob(word) for word in words)
    assert reply.sampling == {"temperature": 0.7, "seed": 17, "max_tokens": 64, "logprobs_of": "server"}
    assert reply.cost.usd == 0.0, "what runs at home costs nothing unless the user says so"


def test_fields_that_a_server_refuses_are_left_out_and_not_sent_again() -> None:
    ids = {"return_token_ids", "return_tokens_as_token_ids"}
    long = "x" * 600_000  # more than an error may have
    with ScriptedServer(after=turns.says(long), refuses=ids) as scripted:
        client = OpenAIClient(scripted.url)
        assert client.ask(QUESTION, NEVER).text == long
        client.ask(QUESTION, NEVER)
        sent = [ids & set(asked) for asked in scripted.questions]
        assert all("logprobs" in asked for asked in scripted.questions)
    assert sent == [ids, set(), set()]


def test_llama_cpp_is_asked_for_one_log_probability_a_token_and_for_none_under_a_schema() -> None:
    """It tells of 20 a token otherwise: more than is read of a long answer."""
    listing = Turn(raw=b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}')
    with ScriptedServer(after=turns.says("{}"), listings=[listing]) as scripted:
        client = OpenAIClient(scripted.url)
        client.ask(QUESTION, NEVER)
        client.ask(replace(QUESTION, schema=SCHEMA), NEVER)
        sent = [(asked.get("logprobs"), asked.get("top_logprobs")) for asked in scripted.questions]
    assert sent == [(True, 1), (None, None)]


def test_a_server_that_cuts_prompts_is_told_of_once() -> None:
    long = replace(QUESTION, messages=({"role": "user", "content": "lr = 0.123456\n" * 1000},))
    told = list[str]()
    with ScriptedServer() as scripted:  # it counts words
        client = OpenAIClient(scripted.url, "m", warn=told.append)
        for question in (QUESTION, long, long):
            client.ask(question, NEVER)
    assert len(told) == 1 and "read 3,000 of about" in told[0] and "context_tokens" in told[0]


@pytest.mark.parametrize("refuses", [(), ("response_format",)])
def test_log_probabilities_drawn_under_a_schema_are_no_use_and_one_that_is_refused_costs_nothing_else(
    refuses: tuple[str, ...],
) -> None:
    with ScriptedServer(after=turns.says("yes"), refuses=refuses) as scripted:
        reply = OpenAIClient(scripted.url, "m").ask(replace(QUESTION, schema=SCHEMA), NEVER)
        assert len(scripted.questions) == 1 + 2 * len(refuses), "each form of a schema is tried once"
    assert reply.token_ids is not None
    assert (reply.logprobs is None, reply.sampling.get("structured", False)) == (not refuses, not refuses)


@pytest.mark.parametrize(
    ("knows", "sent"),
    [
        ({"json_schema"}, ["json_schema", "json_schema"]),  # vLLM, llama.cpp, Ollama
        ({"json_object"}, ["json_schema", "json_object", "json_object"]),  # llama-cpp-python answers 500 to the other
        ({"json_object", "refused"}, ["json_schema", "json_object", "json_object"]),
        (set(), ["json_schema", "json_object", None, None]),
    ],
)
def test_a_schema_is_put_as_the_server_knows_it(knows: set[str], sent: list[str | None]) -> None:
    def turn(asked: Mapping[str, Any]) -> Turn:
        form = asked.get("response_format", {"type": None})
        if form["type"] in {None, *knows}:
            return turns.says('{"lr": 0.1}')
        if "refused" in knows:  # as vLLM does where it can make no grammar of a schema
            return Turn(status=400, error={"message": "Failed to convert the grammar from JSON schema to GBNF"})
        # As FastAPI has it, whose errors llama-cpp-python answers with 500.
        said = f"[{{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), 'input': '{form['type']}'}}]"
        return Turn(status=500, error={"message": said, "type": "internal_server_error", "param": None, "code": None})

    with ScriptedServer(answers=turn) as scripted:
        client = OpenAIClient(scripted.url, "m")
        replies = [client.ask(replace(QUESTION, schema=SCHEMA), NEVER) for _ in range(2)]
        formats = [asked.get("response_format", {"type": None}) for asked in scripted.questions]
        assert all("return_token_ids" in asked for asked in scripted.questions)
        assert all(("logprobs" in asked) == ("response_format" not in asked) for asked in scripted.questions)
    assert [form["type"] for form in formats] == sent
    told = [form.get("schema") or form["json_schema"]["schema"] for form in formats if form["type"]]
    assert all(schema == SCHEMA for schema in told)
    assert [reply.sampling.get("structured", False) for reply in replies] == [bool(knows)] * 2


def test_a_schema_that_is_overlooked_is_put_in_the_other_form_and_then_not_at_all() -> None:
    with ScriptedServer(after=turns.says("lr should be lower"), tokens=True) as scripted:
        client = OpenAIClient(scripted.url, "m")
        replies = [client.ask(replace(QUESTION, schema=SCHEMA), NEVER) for _ in range(4)]
        formats = [asked.get("response_format", {}).get("type") for asked in scripted.questions]
    assert formats == ["json_schema", "json_object", None, None], "no answer is asked for twice"
    assert [reply.logprobs is None for reply in replies] == [True, True, False, False]


def test_one_stray_reply_does_not_cost_the_schema() -> None:
    said = [turns.says('{"lr": 0.1}'), turns.says("lr should be lower"), turns.says("")]
    with ScriptedServer(said, after=turns.says('{"lr": 0.1}')) as scripted:
        client = OpenAIClient(scripted.url, "m")
        for _ in range(4):
            client.ask(replace(QUESTION, schema=SCHEMA), NEVER)
        assert [asked["response_format"]["type"] for asked in scripted.questions] == ["json_schema"] * 4


@pytest.mark.parametrize(
    ("trouble", "times", "words"), [(turns.server_error(), 1, "500"), (turns.bad_request(), 5, "like this")]
)
def test_a_question_that_failed_does_not_cost_the_schema_of_later_ones(trouble: Turn, times: int, words: str) -> None:
    """Neither of a server in trouble, nor of one that refuses a field which it does not name."""
    with ScriptedServer([trouble] * times, after=turns.says('{"lr": 0.1}')) as scripted:
        client = OpenAIClient(scripted.url, "m")
        with pytest.raises(ModelError, match=words):
            client.ask(replace(QUESTION, schema=SCHEMA), NEVER)
        assert not scripted.left
        client.ask(replace(QUESTION, schema=SCHEMA), NEVER)
        assert scripted.questions[-1]["response_format"]["type"] == "json_schema"


def test_without_a_name_the_first_model_of_the_server_is_asked() -> None:
    with ScriptedServer(model="Qwen/Qwen3-4B") as scripted:
        client = OpenAIClient(scripted.url)
        assert client.name == "local"
        reply = client.ask(QUESTION, NEVER)
        assert client.name == "local:Qwen/Qwen3-4B"
        assert scripted.questions[0]["model"] == reply.model == "Qwen/Qwen3-4B"


@pytest.mark.parametrize(
    "trouble", [turns.overloaded(), turns.rate_limited(None), turns.fails(408, "Request timed out", None, "timeout")]
)
def test_a_server_that_is_busy_when_it_is_looked_at_is_looked_at_again(trouble: Turn) -> None:
    """Else the names and hashes of its answers are lost for the whole session, and no version is found for it."""
    known = Chosen(bases={"scripted-model": BaseModel("scripted-model", "m" * 64)})
    with ScriptedServer(listings=[trouble]) as scripted:
        client = OpenAIClient(scripted.url, adapters=known)
        found = [(client.ask(QUESTION, NEVER).model_hash, client.name) for _ in range(3)]
        looks = [request.path for request in scripted.requests].count("/v1/models")
    assert found == [(None, "local"), *[("m" * 64, "local:scripted-model")] * 2]
    assert looks == 2


def test_what_comes_late_in_an_error_says_whether_to_wait_for_the_limit_of_the_minute() -> None:
    """Google's error for it begins as the one of an account without money does, and is longer than what is shown."""
    words = "You exceeded your current quota, please check your plan and billing details." + " More at x.test." * 30
    error = {"code": 429, "message": f"{words}\nPlease retry in 34.07s.", "details": [{"retryDelay": "34s"}]}
    for body in ([{"error": error}], {"error": error}, {"error": {**error, "details": []}}):
        turn = Turn(status=429, raw=json.dumps(body, indent=2).encode())
        with ScriptedServer([turn]) as scripted, pytest.raises(ModelError, match="exceeded your current") as caught:
            OpenAIClient(scripted.url, "m").ask(QUESTION, NEVER)
        assert caught.value.trouble is Trouble.RATE_LIMITED
        assert len(str(caught.value)) < 500


def test_a_prompt_that_an_error_repeats_does_not_say_what_is_wrong() -> None:
    said = "[{'type': 'value_error', 'loc': ('body',), 'input': {'messages': '" + "x" * 400 + " context_length = 4'}}]"
    with ScriptedServer(after=turns.fails(400, said, None, "")) as scripted, pytest.raises(ModelError) as caught:
        OpenAIClient(scripted.url, "m").ask(QUESTION, NEVER)
    assert caught.value.trouble is Trouble.BAD_REQUEST


PRICES = {"m": Price(input=1.0, output=10.0)}


@pytest.mark.parametrize("choices", ["[]", '[{"index": 0}]', '[{"message": {"content": 7}}]', "null"])
def test_a_reply_that_holds_no_answer_is_charged_as_the_server_counted(choices: str) -> None:
    body = f'{{"choices": {choices}, "usage": {{"prompt_tokens": 1000, "completion_tokens": 50}}}}'
    with ScriptedServer([turns.Turn(raw=body.encode())]) as scripted, pytest.raises(ModelError) as caught:
        OpenAIClient(scripted.url, "m", prices=PRICES).ask(QUESTION, NEVER)
    assert caught.value.trouble is Trouble.BROKEN_REPLY
    cost = caught.value.cost
    assert cost is not None
    assert (cost.tokens_in, cost.tokens_out) == (1000, 50)
    assert cost.usd == pytest.approx((1000 * 1.0 + 50 * 10.0) / 1e6)


@pytest.mark.parametrize(("prices", "usd"), [({}, 0.0), (PRICES, 0.0015)])
def test_a_question_that_got_no_reply_is_priced_as_an_answer_is(prices: Mapping[str, Price], usd: float) -> None:
    """Else the user is told that nobody knows what a model at home costs."""
    client = OpenAIClient("http://127.0.0.1:1/v1", "m", prices=prices)
    assert client.price(Cost(None, tokens_in=1000, tokens_out=50)) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("host", "key", "usd"),
    [
        ("openrouter.ai", "k", None),
        ("8.8.8.8", "k", None),
        ("openrouter.ai", "", 0.0),
        ("127.0.0.1", "k", 0.0),
        ("[::1]", "k", 0.0),
        ("100.64.0.7", "k", 0.0),
        ("192.168.1.9", "k", 0.0),
        ("localhost", "k", 0.0),
        ("gpu.lan", "k", 0.0),
    ],
)
def test_what_wants_a_key_out_in_the_world_is_not_taken_for_free(host: str, key: str, usd: float | None) -> None:
    assert OpenAIClient(f"http://{host}/v1", "m", key=key).price(Cost(None, tokens_in=1000, tokens_out=50)) == usd
    free = OpenAIClient(f"http://{host}/v1", "m", key=key, prices={"m": Price(input=0.0, output=0.0)})
    assert free.price(Cost(None, tokens_in=1000, tokens_out=50)) == 0.0


def test_the_key_is_sent_and_never_shown() -> None:
    key = "local-0123456789abcdef"
    with ScriptedServer([turns.says("in")], key=key) as scripted:
        assert OpenAIClient(scripted.url, key=key).ask(QUESTION, NEVER).text == "in"
        with pytest.raises(ModelError) as caught:
            OpenAIClient(scripted.url, key="another-0123456789").ask(QUESTION, NEVER)
    assert caught.value.trouble is Trouble.UNAUTHORISED and "0123456789" not in str(caught.value)


def test_a_proxy_of_the_environment_is_not_told_what_is_asked_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as proxy, ScriptedServer([turns.says("direct")]) as scripted:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        assert OpenAIClient(scripted.url, "m").ask(QUESTION, NEVER).text == "direct"
        assert proxy.requests == []


def test_a_server_that_lists_no_model_is_asked_for_whichever_it_has() -> None:
    with ScriptedServer([turns.says("here"), turns.no_model()], model="") as scripted:
        client = OpenAIClient(scripted.url)
        assert client.ask(QUESTION, NEVER).text == "here"
        assert "model" not in scripted.questions[0]
        with pytest.raises(ModelError, match="--policy local:MODEL") as caught:
            client.ask(QUESTION, NEVER)
    assert caught.value.trouble is Trouble.NOT_FOUND


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://x/v1", "http://", "http://x:99999/v1", "http://user:pw@x/v1", "http://x/v1?k=1"],
)
def test_what_is_no_address_is_said_before_anything_is_asked(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        OpenAIClient(url)
    assert "pw" not in str(caught.value)


def test_the_key_comes_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-the-file \nsecond line\n")
    assert read_key(str(file), {"AUTORESEARCHD_LOCAL_KEY": "from-the-environment"}) == "from-the-file"
    assert read_key("", {"AUTORESEARCHD_LOCAL_KEY": " from-the-environment\n"}) == "from-the-environment"
    assert read_key("", {}) == ""
    with pytest.raises(UsageError, match="cannot be read"):
        read_key(str(tmp_path / "nowhere"), {})
    file.write_text("\n")
    with pytest.raises(UsageError, match="empty"):
        read_key(str(file), {})
    with pytest.raises(UsageError, match="no key"):
        read_key("", {"AUTORESEARCHD_LOCAL_KEY": "two\r\nHost: lines"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "logprob", "id"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["logprobs", "token_ids"]), JSON))
def test_nothing_that_a_server_calls_tokens_ends_the_loop(choice: dict[str, object]) -> None:
    ids, logprobs = tokens_of(choice)
    assert ids is None or logprobs is None or len(ids) == len(logprobs)


# ---------------------------------------------------------------------- versions of the local policy
FIRST, SECOND = (ServedAdapter(name, Path(f"/repo/.git/autoresearchd/adapters/{name}")) for name in ("v1-0a", "v2-0b"))


def orders(scripted: ScriptedServer) -> list[object]:
    return [r.payload for r in scripted.requests if r.path == "/v1/load_lora_adapter"]


def models(scripted: ScriptedServer) -> list[object]:
    return [asked["model"] for asked in scripted.questions]


def test_what_is_promoted_in_the_middle_answers_after_the_next_look() -> None:
    chosen = Chosen(None)
    with ScriptedServer(lora=turns.loads()) as scripted:
        client = OpenAIClient(scripted.url, adapters=chosen)
        answered = [client.ask(QUESTION, NEVER).adapter]
        for version in (FIRST, FIRST, SECOND, None):
            chosen.version = version
            answered.append(client.ask(QUESTION, NEVER).adapter)
            client.renew()
            answered.append(client.ask(QUESTION, NEVER).adapter)
        assert len(orders(scripted)) == 2, "what the server has is not loaded again"
    assert answered == ["", "", "v1-0a", "v1-0a", "v1-0a", "v1-0a", "v2-0b", "v2-0b", ""]
    assert len(chosen.asked) == 5


def test_a_server_that_was_started_again_is_told_again() -> None:
    with ScriptedServer(lora=turns.loads()) as scripted:
        client = OpenAIClient(scripted.url, "scripted-model", adapters=Chosen(FIRST))
        client.ask(QUESTION, NEVER)
        scripted.loaded.clear()
        assert client.ask(QUESTION, NEVER).adapter == "v1-0a"
        assert len(orders(scripted)) == 2


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        (None, "404"),
        (turns.loads_not(), "No adapter found"),
        (turns.server_error(), "500"),
        (Turn(status=403, raw=b"\x1b[2J not here"), "not here"),
        (turns.drop(), "broke off"),
    ],
)
def test_where_it_cannot_be_loaded_the_plain_model_goes_on_and_the_user_is_told_once(
    lora: Turn | None, words: str
) -> None:
    told: list[str] = []
    with ScriptedServer(lora=lora) as scripted:
        client = OpenAIClient(scripted.url, "scripted-model", adapters=Chosen(FIRST), warn=told.append)
        replies = []
        for _ in range(3):
            client.renew()
            replies.append(client.ask(QUESTION, NEVER))
        assert len(orders(scripted)) == 3, "it may be able to by now"
        assert models(scripted) == ["scripted-model"] * 3
    assert [reply.adapter for reply in replies] == ["", "", ""]
    assert len(told) == 1
    assert words in told[0] and "v1-0a" in told[0]
    assert told[0].isprintable()


def test_the_model_behind_the_endpoint_is_known_by_its_folder_where_that_is_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    chosen = Chosen(None)
    roots = (str(tmp_path), str(tmp_path / "elsewhere"), "Qwen/Qwen3-4B", "")
    for root in roots:
        with ScriptedServer(root=root) as scripted:
            OpenAIClient(scripted.url, adapters=chosen).ask(QUESTION, NEVER)
    here = BaseModel(str(tmp_path), model_hash(tmp_path), tokenizer_hash(tmp_path))
    assert chosen.asked == [here, *(BaseModel(root or "scripted-model") for root in roots[1:])]


def test_answers_of_a_server_that_tells_no_hash_have_that_of_the_folder_that_is_known_here() -> None:
    """Without it no answer of a model that is served by the name of a hub could be learned from."""
    named = BaseModel("scripted-model", "m" * 64, "t" * 64, "c" * 64)
    for adapters, hashes in ((Chosen(None, bases={named.name: named}), ("m" * 64, "t" * 64, "c" * 64)),
                             (Chosen(None), (None, None, None))):  # fmt: skip
        with ScriptedServer() as scripted:
            reply = OpenAIClient(scripted.url, "scripted-model", adapters=adapters).ask(QUESTION, NEVER)
        assert (reply.model_hash, reply.tokenizer_hash, reply.template_hash) == hashes

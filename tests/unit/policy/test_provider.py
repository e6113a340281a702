"""What a provider says is understood, bounded, and fit to be shown; two models that differ are never taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import client
from autoresearchd.models.client import ModelError, Trouble
from autoresearchd.models.model_files import base_model, gguf_file, model_hash, template_hash, tokenizer_hash


@pytest.mark.parametrize(
    ("status", "words", "trouble"),
    [
        (400, "This model's maximum context length is 4096 tokens", Trouble.CONTEXT_TOO_LONG),
        (400, "invalid_request_error prompt is too long: 210000 tokens > 200000 maximum", Trouble.CONTEXT_TOO_LONG),
        (400, "exceed_context_size_error the request exceeds the available context size", Trouble.CONTEXT_TOO_LONG),
        (400, "maximum prompt length is 131072 but the request contains 537812 tokens", Trouble.CONTEXT_TOO_LONG),
        (400, "Your request exceeded model token limit: 262144", Trouble.CONTEXT_TOO_LONG),
        (400, "input length and `max_tokens` exceed context limit: 188240 + 21333", Trouble.CONTEXT_TOO_LONG),
        (400, "Prompt exceeds max length", Trouble.CONTEXT_TOO_LONG),
        (400, "`user` exceeds maximum length of 64 characters", Trouble.BAD_REQUEST),
        (400, "max_tokens is too large: 65536. It supports at most 16384 completion tokens", Trouble.BAD_REQUEST),
        (413, "Request Entity Too Large", Trouble.CONTEXT_TOO_LONG),
        (400, "The response was filtered due to Azure's content management policy", Trouble.REFUSED),
        (400, "Unknown field: logprobs", Trouble.BAD_REQUEST),
        (422, "Unexpected keys in the request", Trouble.BAD_REQUEST),
        (400, "Your credit balance is too low to access the API", Trouble.UNAUTHORISED),
        (400, "You have reached your specified API usage limits. You will regain access on …", Trouble.RATE_LIMITED),
        (402, "Payment Required", Trouble.UNAUTHORISED),
        (429, "insufficient_quota You exceeded your current quota", Trouble.UNAUTHORISED),
        (429, "exceeded your current quota, check billing: PerModelPerMinute, retryDelay: 26s", Trouble.RATE_LIMITED),
        (429, "billing_not_active Your account is not active, please check your billing details", Trouble.UNAUTHORISED),
        (429, "used all available credits or reached its monthly spending limit", Trouble.UNAUTHORISED),
        (429, "1113 Insufficient balance or no resource package. Please recharge.", Trouble.UNAUTHORISED),
        (429, "free-models-per-day. Add 10 credits to unlock 1000 free model requests", Trouble.RATE_LIMITED),
        (429, "Rate limit reached", Trouble.RATE_LIMITED),
        (429, "on tokens per day (TPD): Limit 100000 … https://x.test/billing for our billing", Trouble.RATE_LIMITED),
        (429, "Please try again in 9m38s. To upgrade the billing tier, see our site", Trouble.RATE_LIMITED),
        (429, "Rate limit reached. Add a payment method: https://x.test/account/billing", Trouble.RATE_LIMITED),
        (429, "Request too large for gpt-5 on tokens per min (TPM): Limit 30000", Trouble.CONTEXT_TOO_LONG),
        (429, "The input or output tokens must be reduced", Trouble.CONTEXT_TOO_LONG),
        (429, "Too many tokens, please wait before trying again.", Trouble.RATE_LIMITED),
        (401, "", Trouble.UNAUTHORISED),
        (403, "", Trouble.UNAUTHORISED),
        (404, "The model does not exist", Trouble.NOT_FOUND),
        (408, "", Trouble.TIMEOUT),
        (500, "", Trouble.OVERLOADED),
        (503, "", Trouble.OVERLOADED),
        (504, "", Trouble.TIMEOUT),
        (524, "an HTML page", Trouble.TIMEOUT),
        (529, "overloaded_error", Trouble.OVERLOADED),
        (307, "", Trouble.BAD_REQUEST),
    ],
)
def test_a_status_is_what_can_be_done_about_it(status: int, words: str, trouble: Trouble) -> None:
    assert client.trouble_of(status, words) is trouble


def test_retry_after_is_read_as_seconds_and_as_milliseconds() -> None:
    assert client.retry_after({"retry-after": "7"}) == 7.0
    assert client.retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert client.retry_after({}) is None


@given(st.text() | st.floats().map(str), st.text())
def test_no_header_makes_the_wait_fail_or_last_for_ever(seconds: str, milliseconds: str) -> None:
    found = client.retry_after({"retry-after": seconds, "retry-after-ms": milliseconds})
    assert found is None or 0 <= found <= client.LONGEST_WAIT_S


def test_a_key_in_an_error_is_hidden_before_the_text_is_cut() -> None:
    key = "k-" + "0123456789" * 5
    said = client.words_of("x" * 380 + key + "\x1b[31m", [key, ""])
    assert "k-0" not in said
    assert said.isprintable()
    assert len(said) <= 400


def test_a_withheld_answer_is_a_refusal_but_what_was_said_before_is_a_reply() -> None:
    with pytest.raises(ModelError, match="cannot help") as caught:
        client.checked_text("", "stop", "I cannot help", Cost())
    assert caught.value.trouble is Trouble.REFUSED
    assert client.checked_text("half an edit", "content_filter", "", Cost()) == "half an edit"


@pytest.mark.parametrize(
    ("model", "environment", "absent"),
    [
        ("anthropic/claude-x", {}, "ANTHROPIC_API_KEY"),
        ("anthropic/claude-x", {"ANTHROPIC_API_KEY": " "}, "ANTHROPIC_API_KEY"),
        ("anthropic/claude-x", {"OPENAI_API_KEY": "k"}, "ANTHROPIC_API_KEY"),
        ("anthropic/claude-x", {"ANTHROPIC_AUTH_TOKEN": "k"}, ""),
        ("gemini/pro", {"GOOGLE_API_KEY": "k"}, ""),
        ("bedrock/anthropic.claude-x", {}, ""),
        ("ollama/llama", {}, ""),
        ("gpt-5", {}, ""),
        ("/openai", {}, ""),
    ],
)
def test_a_key_is_missed_only_where_nothing_else_could_take_its_place(
    model: str, environment: dict[str, str], absent: str
) -> None:
    assert client.absent_key(model, environment) == absent


# ---------------------------------------------------------------------- models on this disk
MIB = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    (tmp_path / "model.safetensors").write_bytes(bytes(5 * MIB))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_trained_weights_of_the_same_shape_are_another_model(folder: Path) -> None:
    before = model_hash(folder)
    weights = bytearray(bytes(5 * MIB))
    weights[2 * MIB : 3 * MIB] = b"\x01" * MIB  # one layer
    (folder / "model.safetensors").write_bytes(weights)
    assert model_hash(folder) != before


def test_tokenizers_and_templates_are_told_apart(folder: Path) -> None:
    before = tokenizer_hash(folder)
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')
    assert tokenizer_hash(folder) != before
    assert template_hash("{{ messages }}") != template_hash("{{ messages }} ")
    assert template_hash(None) is None


def written(path: Path, template: str | None) -> Path:
    """A GGUF file as llama.cpp's own package writes it, without tensors."""
    writer = pytest.importorskip("gguf").GGUFWriter(path, "qwen2")
    writer.add_block_count(24)
    writer.add_rope_freq_base(1e6)
    writer.add_array("tokenizer.ggml.tokens", ["<|im_end|>", "é", "tokenizer.chat_template"])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_quantization_version(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_chat_template_inside_gguf_tells_models_apart(tmp_path: Path) -> None:
    file = written(tmp_path / "m.gguf", "{{ 'é' }}")
    assert base_model(file).template_hash == template_hash("{{ 'é' }}")
    assert base_model(written(tmp_path / "none.gguf", None)).template_hash is None


def test_a_gguf_header_that_is_cut_off_or_lies_is_an_error(tmp_path: Path) -> None:
    whole = written(tmp_path / "m.gguf", "{{ messages }}").read_bytes()
    bad = tmp_path / "bad.gguf"
    place = whole.index(b"tokenizer.chat_template", whole.index(b"add_bos_token"))
    for cut in range(place):
        bad.write_bytes(whole[:cut])
        with pytest.raises(UsageError, match="cannot be read"):
            base_model(bad)
    huge = b"\xff" * 8
    value = place + len(b"tokenizer.chat_template")
    lies = {
        "version 1": whole[:4] + b"\x01" + whole[5:],
        "a key without end": whole[:24] + huge,
        "a template without end": whole[: value + 4] + huge,
        "an unknown type": whole[:place] + b"another.chat_template.." + b"\x63" + b"\0" * 20,
        "something else": b"not a model at all, whatever it is called",
    }
    for content in lies.values():
        bad.write_bytes(content)
        with pytest.raises(UsageError, match="cannot be read"):
            base_model(bad)


def test_a_model_is_a_folder_or_one_gguf_file(folder: Path, tmp_path: Path) -> None:
    assert gguf_file(folder) is None
    one = tmp_path / "one"
    one.mkdir()
    (one / "small.gguf").write_bytes(b"GGUF")
    assert gguf_file(one) == gguf_file(one / "small.gguf") == "small.gguf"
    assert model_hash(one, "small.gguf") != model_hash(folder)
    (one / "large.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="several"):
        gguf_file(one)
    with pytest.raises(UsageError, match="not a folder"):
        gguf_file(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no model"):
        gguf_file(tmp_path / "empty")

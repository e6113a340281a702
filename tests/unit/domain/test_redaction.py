"""No key, token or password leaves the daemon; and what is none stays as it is."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import urllib.parse
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.redaction import (
    MARK,
    Redactor,
    StreamRedactor,
    is_telling,
    mark,
    secrets_of_environment,
    secrets_of_file,
)
from tests.timing import seconds
from tests.unit.domain.canaries import HEX, IN_CONTEXT, PEM_BODY, TOKENS, letters

PLAIN = Redactor()
VALUE = 'p4$$ w0rd/"quoted"+Zürich\\n'
KNOWING = Redactor([VALUE, "correct-horse-battery"])
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize(
    "around",
    ["{}", "key {} end", '"{}"', "X={}\n", "({}),", "\x1b[32m{}\x1b[0m", "a\\n{}\\n", "x%3D{}&y=1", "{}\r\nnext"],
)
def test_a_secret_of_a_known_format_is_hidden_wherever_it_stands(kind: str, around: str) -> None:
    secret = TOKENS[kind]
    text = PLAIN.text(around.format(secret))
    assert MARK in text
    assert not any(part in text for part in (secret, secret[10:30], secret[-12:])), text


@pytest.mark.parametrize("kind", IN_CONTEXT)
def test_a_secret_is_hidden_by_what_stands_beside_it(kind: str) -> None:
    pattern, secret = IN_CONTEXT[kind]
    text = PLAIN.text(pattern.format(secret))
    assert secret not in text
    assert MARK in text
    before, _, after = pattern.replace("{{", "{").replace("}}", "}").partition("{}")
    assert text.startswith(before[:4]), "only the secret goes"
    assert text.endswith(after[-4:])


@pytest.mark.parametrize(
    "form",
    [
        VALUE, json.dumps(VALUE)[1:-1], json.dumps(VALUE, ensure_ascii=False)[1:-1], repr(VALUE)[1:-1],
        urllib.parse.quote(VALUE, safe=""), urllib.parse.quote(VALUE), urllib.parse.quote_plus(VALUE),
        VALUE.encode().hex(), base64.b64encode(VALUE.encode()).decode().rstrip("=")[:-1],
        base64.urlsafe_b64encode(VALUE.encode()).decode().rstrip("=")[:-1],
        "CORRECT-HORSE-BATTERY", "Correct-Horse-Battery", urllib.parse.quote(VALUE).lower(),
    ],
)  # fmt: skip
def test_a_known_value_is_hidden_in_every_form_that_it_takes(form: str) -> None:
    assert KNOWING.text(f"a {form} b").startswith("a «redacted:environment»")
    assert KNOWING.text(f"İ\udcff {form} b").startswith("İ\udcff «redacted:environment»")


@settings(deadline=None)
@given(before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_a_known_value_inside_longer_base64_is_hidden(before: bytes, after: bytes) -> None:
    text = KNOWING.text(base64.b64encode(before + VALUE.encode() + after).decode())
    assert MARK in text
    decoded = base64.b64decode(text.partition("«")[0] + "=" * (-len(text.partition("«")[0]) % 4) or b"")
    assert VALUE.encode()[:4] not in decoded


@pytest.mark.parametrize(
    "harmless",
    [
        "commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "550e8400-e29b-41d4-a716-446655440000", "task-550e8400-e29b-41d4-a716-446655440000",
        "METRIC val_bpb=0.997900",
        "step 00042 (12.3%) | loss: 3.141593 | lrm: 1.00 | dt: 300ms | tok/sec: 1,700,000 | remaining: 10s",
        "tokens: 524288 tokens_per_second=12345678901234567890", "total_tokens_M:   499.6",
        "token_embedding = nn.Embedding(50304, n_embd2)", "api_key = os.environ['OPENAI_API_KEY']",
        'password = getpass.getpass("Password: ")', "secret = settings.layer1.weight2_name3",
        "key = jax.random.PRNGKey(1234567890)", "https://user:password@example.com/path", "ssh://deploy-user-of-the-cluster@host.example",
        "https://example.com:8080/a@b", "http://${USER}:${PASSWORD}@host/x", "sk-learn-contrib-some-long-name-2024",
        "risk-adjusted-returns-over-2024-and-2025", "hf_model_revision_of_the_tokenizer_config",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN PRIVATE KEY----- is how such a block begins", "eyJ is how a token begins",
        "--token-budget 64000 --password prompt", base64.b64encode(bytes(range(48))).decode(),
        "data:image/png;base64," + base64.b64encode(random.Random(1).randbytes(600)).decode(),
        "1.2345678901234567e-10 -0.00012345678901234567",
    ],
)  # fmt: skip
def test_what_only_looks_alike_is_left_as_it_is(harmless: str) -> None:
    assert PLAIN.text(harmless) == harmless


def test_nothing_in_this_repository_is_taken_for_a_secret() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in names.split("\0") if name and "test_" not in name and "canaries" not in name]
    texts = {path: path.read_text("utf-8", "replace") for path in files if path.is_file() and path.suffix != ".png"}
    assert len(texts) > 100
    for path, text in texts.items():
        assert not PLAIN.found(text), path


# ---------------------------------------------------------------------- properties
PIECES = st.sampled_from(
    [
        *TOKENS.values(), *(p.format(s) for p, s in IN_CONTEXT.values()), VALUE, "correct-horse-battery",
        "redacted", "password=", "Bearer ", "sk-", "eyJ", "://a:", "@", "«", "»", "«redacted:jwt»", "\r", "\n", "\\",
        '"', "-", "İ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "AKIA", " ", "=", "key", "x", "Q~",
        "token: ", "\\n",
    ]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=12).map("".join)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = KNOWING.text(text)
    assert KNOWING.text(once) == once


@given(TEXTS, st.dictionaries(st.text(max_size=5), TEXTS, max_size=3))
@settings(max_examples=200, deadline=None)
def test_json_stays_json_whether_values_or_the_written_text_are_redacted(text: str, more: dict[str, str]) -> None:
    for ascii_only in (True, False):
        written = json.dumps({"text": text, "more": more, "n": [1, 2.5, None]}, ensure_ascii=ascii_only)
        assert json.loads(KNOWING.text(written))["n"] == [1, 2.5, None]
    assert json.loads(json.dumps(KNOWING.value({"text": text, "more": more})))


@given(TEXTS, st.lists(st.integers(1, 40), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_stream_hides_what_the_whole_text_hides_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    stream, out, rest, sizes = StreamRedactor(KNOWING), "", text, cycle(cuts)
    while rest:
        size = next(sizes)
        out, rest = out + stream.feed(rest[:size]), rest[size:]
    out += stream.close()
    for secret in [*TOKENS.values(), VALUE, "correct-horse-battery"]:
        if secret in text and secret not in KNOWING.text(text):
            assert secret not in out


@pytest.mark.parametrize("size", [11, 100, 4095, 4096, 70_000])
def test_a_secret_in_a_line_without_end_is_hidden_by_the_stream(size: int) -> None:
    secret = TOKENS["anthropic"]
    text = "x " * 50_000 + secret + " y" * 50_000
    stream = StreamRedactor(PLAIN)
    out = "".join(stream.feed(text[i : i + size]) for i in range(0, len(text), size)) + stream.close()
    assert out == text.replace(secret, mark("anthropic"))


@pytest.mark.parametrize("kind", [kind for kind in TOKENS if kind != "private-key"])
def test_a_secret_over_which_a_carriage_return_went_is_hidden(kind: str) -> None:
    secret = TOKENS[kind]
    for at in (2, len(secret) // 2, len(secret) - 1):
        out = PLAIN.text(f"step 1\rstep 2 {secret[:at]}\r{secret[at:]} end\r\nMETRIC x=1")
        assert secret[5:-5] not in out.replace("\r", "")
        assert out.endswith("end\r\nMETRIC x=1")
    assert KNOWING.text("correct-ho\rrse-battery") == mark("environment")


def test_of_a_private_key_that_is_cut_off_what_is_there_is_hidden() -> None:
    block = TOKENS["private-key"]
    for cut in (block[: len(block) // 2], block[len(block) // 2 :]):
        out = PLAIN.text(f"before\n{cut}\nafter")
        assert out.startswith("before\n")
        assert out.endswith("after")
        assert not any(line in out for line in PEM_BODY.split("\n"))


# ---------------------------------------------------------------------- values
@dataclass(frozen=True)
class Thing:
    name: str
    count: int
    inner: object = None


def test_texts_are_redacted_deep_inside_values_and_the_rest_is_the_same_object() -> None:
    secret = TOKENS["huggingface"]
    thing = Thing("a", 1, {"list": [secret, 2.5], secret: ("x", None), "same": (same := ["y"])})
    clean = PLAIN.value(thing)
    assert clean == Thing("a", 1, {"list": [mark("huggingface"), 2.5], mark("huggingface"): ("x", None), "same": ["y"]})
    assert clean.inner["same"] is same  # type: ignore[index]
    untouched = Thing("b", 2, {"list": ["x"]})
    assert PLAIN.value(untouched) is untouched


def test_secrets_are_found_with_their_lines() -> None:
    secret = TOKENS["stripe"]
    assert PLAIN.found(f"import os\n\nKEY = '{secret}'\n") == ((secret, 3, "stripe"),)


# ---------------------------------------------------------------------- which values are secrets
@pytest.mark.parametrize(
    ("name", "telling"),
    [
        ("OPENAI_API_KEY", True), ("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("DB_PASS", True),
        ("PGPASSWORD", True), ("MyServiceToken", True), ("npm_config__authToken", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("PATH", False), ("PWD", False), ("MONKEY", False), ("KEYBOARD", False), ("SSH_AUTH_SOCK", False),
        ("TOKENIZERS_PARALLELISM", False), ("TOKENIZER", False), ("TOKEN_URL", False),
        ("COMPASS", False), ("KEYCLOAK_HOST", False),
    ],
)  # fmt: skip
def test_names_tell_whether_a_variable_holds_a_secret(name: str, telling: bool) -> None:
    assert is_telling(name) is telling


def test_short_values_numbers_switches_and_paths_are_no_secrets() -> None:
    environment = {"A_KEY": "1234567", "MAX_TOKEN": "16384000", "USE_TOKEN": "disabled", "KEY": "/home/user/key.json"}
    assert not list(secrets_of_environment(environment))
    assert list(secrets_of_environment({"A_KEY": "12345678x"})) == ["12345678x"]
    aws = "/k7MDENG+bPxRfiCYEXAMPLEKEY0123456789abc"
    assert list(secrets_of_environment({"AWS_SECRET_ACCESS_KEY": aws})) == [aws]


def test_what_a_name_only_hints_at_is_no_secret_where_it_is_a_plain_name() -> None:
    """``METRIC_KEY: val_loss`` hid the metric in all logs, so no run had a result."""
    plain = {"TOKENIZER": "sentencepiece", "METRIC_KEY": "val_loss", "TOKEN_DTYPE": "bfloat16", "KEYS": "left/right-2"}
    assert not list(secrets_of_environment(plain))
    assert list(secrets_of_environment({"A_KEY": "swordfish-a1b2", "DB_PASS": "swordfish"})) == [
        "swordfish-a1b2", "swordfish",
    ]  # fmt: skip


def test_the_user_of_any_url_is_a_secret_where_it_looks_random() -> None:
    token = letters(40, HEX)
    urls = {"PIP_INDEX_URL": f"https://{token}@pip.example/simple", "PROXY": f"http://me:{token[:20]}%2F@proxy"}
    assert list(secrets_of_environment(urls)) == [token, f"{token[:20]}/"]
    plain = {"DATABASE_URL": "postgres://postgres:postgres@localhost/x", "HOME_PAGE": f"https://example.com/{token}@"}
    assert not list(secrets_of_environment(plain))


@pytest.mark.parametrize(
    "text",
    [
        "OPENAI_API_KEY={}\nOTHER=1\n", "export HF_TOKEN='{}'\n",
        "[default]\naws_access_key_id = AKIA\naws_secret_access_key = {}\n",
        '{{"type": "authorized_user", "client_secret": "{}", "token_uri": "https://x"}}',
        "machine api.wandb.ai\n  login user\n  password {}\n", "//registry.npmjs.org/:_authToken={}\n",
        "github.com:\n    oauth_token: {}\n    user: x\n", "{}\n",
    ],
)  # fmt: skip
def test_key_files_give_their_secrets(text: str) -> None:
    secret = letters(30)
    assert list(secrets_of_file(text.format(secret))) == [secret]


# ---------------------------------------------------------------------- time
HOSTILE = [
    "sk-", "eyJ", "eyJaaaaaaaaaa.", "eyJaaaaaaaaaa.eyJaaaaaaaaa.", "://", "://a:", "password=",
    "://abcdefghijklmnopqr12:", "password=a1b2", "token:", "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nAAAA",
    "-----BEGIN PRIVATE KEY-----\nQUJDREVGR0hJSktM\n",
    "Bearer ", "Bearer aaaaaaaaaaaa1", "AKIA", "Q~", "abc1Q~", "?sig=", "Authorization: Basic ", "login ",
    "login a password ", "0meyJ", "0meyJaaaaaaaaaa.eyJaaaaaaaaa",
    "--api-key ", "\r", "a\r", "\\", "«", "«redacted:", "SG.", "a", "key", "-", "\n", "AccountKey=", " ",
    "secret\t\t\t\t",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_length_of_a_hostile_text_and_no_faster(piece: str) -> None:
    """Eight times the text takes about eight times as long; one that grows with the square takes 64 times."""
    size = 1 << 16
    redactor = Redactor(["correct-horse-battery", "aaaaaaaaab", "\rpassword=\r"])
    small, large = piece * (size // len(piece)), piece * (8 * size // len(piece))
    first = seconds(lambda: redactor.text(small))
    for _ in range(4):  # a busy machine is forgiven, a quadratic expression never gets through
        if seconds(lambda: redactor.text(large), 1) < 24 * max(first, 0.002):
            return
        first = max(first, seconds(lambda: redactor.text(small)))
    pytest.fail("too slow")

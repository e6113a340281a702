"""The user's config.yaml: where it is found, what it may say, and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.config.settings import ModelSettings, NotifySettings, load_settings, read_settings_text
from autoresearchd.domain.errors import ConfigError

FULL = """\
policy: litellm:anthropic/claude-x
fallbacks: [openai/gpt-x, local-model]
context_tokens: 32000
max_tokens: 4096
temperature: 0.7
timeout: 2m
retries: 3
reasks: 1
repairs: 1
prices:
  anthropic/claude-x: {input: 3.0, output: 15}
  gpt-4.1: {input: 0, output: 0.5}
spend: {per_day: 20, when_reached: search}
local: {base_url: "http://127.0.0.1:9000/v1/", model: smollm2, key_file: keys/local}
agent: {turns: 10, seconds: 5m, output_bytes: 5000, usd: 0.5}
structured: false
key_files: {anthropic: ~/keys/anthropic}
roles: on
parents: puct
group: 4
store: postgresql://me@host/research
hooks: {before: [./ideas.sh], after: ["jq .run_entry >> log"]}
notify:
  - {url_file: ~/slack-url, format: slack, on: [confirmed, ended]}
  - {command: 'notify-send "$AUTORESEARCHD_MESSAGE"'}
"""


def mistake(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_settings_text(text)
    assert caught.value.hint, "an error says how to fix it"
    assert caught.value.exit_code == 2
    return caught.value


def written(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(text)


# ---------------------------------------------------------------------- where it is
@pytest.mark.parametrize(
    ("environment", "retries"),
    [
        ({}, 5), ({"HOME": "/nobody"}, 5), ({"HOME": "TMP"}, 1), ({"HOME": "TMP", "XDG_CONFIG_HOME": "TMP/xdg"}, 7),
        ({"HOME": "TMP", "XDG_CONFIG_HOME": "xdg"}, 1),
        ({"HOME": "TMP", "AUTORESEARCHD_CONFIG": "~/mine/config.yaml"}, 3),
        ({"HOME": "TMP", "AUTORESEARCHD_CONFIG": ""}, 1), ({"HOME": "TMP", "AUTORESEARCHD_CONFIG": "/dev/null"}, 5),
    ],
)  # fmt: skip
def test_the_file_is_where_the_user_says_or_at_home(environment: dict[str, str], retries: int, tmp_path: Path) -> None:
    for folder, number in ((".config/autoresearchd", 1), ("mine", 3), ("xdg/autoresearchd", 7)):
        written(tmp_path / folder, f"retries: {number}\n")
    environment = {name: value.replace("TMP", str(tmp_path)) for name, value in environment.items()}
    assert load_settings(environment) == ModelSettings(retries=retries)


def test_a_file_that_was_asked_for_and_is_not_there_is_told_because_its_caps_would_not_hold(tmp_path: Path) -> None:
    gone = tmp_path / "gone.yaml"
    with pytest.raises(ConfigError) as caught:
        load_settings({"AUTORESEARCHD_CONFIG": str(gone)})
    assert str(gone) in str(caught.value)
    assert "AUTORESEARCHD_CONFIG" in caught.value.hint


# ---------------------------------------------------------------------- what it says
@pytest.mark.parametrize(("said", "most"), [("", 512), ("max_tokens: 8192", 8192), ("max_tokens: 64", 64)])
def test_a_brief_answer_is_short_unless_the_user_says_how_long_it_may_be(said: str, most: int) -> None:
    assert read_settings_text(f"prompt: brief\n{said}").max_tokens == most


def test_every_key_reaches_the_settings() -> None:
    home = {"HOME": "/home/me"}
    found = read_settings_text(FULL, file="/etc/ar/config.yaml", environment=home)
    assert found == ModelSettings(
        policy="litellm:anthropic/claude-x", fallbacks=("openai/gpt-x", "local-model"), context_tokens=32_000,
        max_tokens=4_096, temperature=0.7, timeout=120.0, retries=3, reasks=1, repairs=1,
        prices={"anthropic/claude-x": {"input": 3.0, "output": 15.0}, "gpt-4.1": {"input": 0.0, "output": 0.5}},
        spend={"per_day": 20.0, "when_reached": "search"}, structured=False,
        local={"base_url": "http://127.0.0.1:9000/v1", "model": "smollm2", "key_file": "/etc/ar/keys/local"},
        key_files={"anthropic": "/home/me/keys/anthropic"}, roles=True, parents="puct", group=4,
        agent={"turns": 10, "seconds": 300.0, "output_bytes": 5_000, "usd": 0.5}, store="postgresql://me@host/research",
        hooks={"before": ("./ideas.sh",), "after": ("jq .run_entry >> log",)},
        notify=(
            NotifySettings(url_file="/home/me/slack-url", format="slack", on=("confirmed", "ended")),
            NotifySettings(command='notify-send "$AUTORESEARCHD_MESSAGE"'),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n  # retries: 3\n", "{}", "spend:\nlocal: {}\npolicy:\n"])
def test_a_file_that_says_nothing_changes_nothing(text: str) -> None:
    assert read_settings_text(text) == ModelSettings()


# ---------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("text", "key", "words", "hint"),
    [
        ("max_token: 5", "max_token", "no such key", "'max_tokens'"),
        ("per_day: 5", "per_day", "no such key", "`spend: {per_day: …}`"),
        ("prices: {m: {input: -1, output: 1}}", "prices.m.input", "-1 is too small", "at least 0"),
        ('learn: {set: {lr: "two\\nlines"}}', "learn.set.lr", "not a single value", ""),
        ("spend: {per_day: 1.0e+308}", "spend.per_day", "too large", "1,000,000,000"),
        ("structured: 1", "structured", "1 is not among true, false, auto", "write one of them"),
        ("timeout: 3 600", "timeout", "did you mean 3600?", "write seconds"),
        ("temperature: 3", "temperature", "3 is too large", "at most 2"),
        ("policy: ''", "policy", "not a short line", ""),
        ("policy: 5", "policy", "found the number 5", '"5"'),
        ("local: {base_url: 127.0.0.1:8000}", "local.base_url", "not an http address", "http://127.0.0.1:8000/v1"),
        ("hooks: {during: [x]}", "hooks.during", "no such key", ""),
        ("hooks: {before: [' ']}", "hooks.before[0]", "not a command", "shell command"),
        ("notify: [{format: slack}]", "notify[0].url_file", "one of url_file and command", "url_file: PATH"),
        ("notify: [{url_file: a, command: b}]", "notify[0].url_file", "not both", ""),
        ("notify: [{command: b, format: slack}]", "notify[0].format", "JSON on its standard input", ""),
        ("notify: [{url_file: a, on: [confirm]}]", "notify[0].on[0]", "", "'confirmed'"),
        ("notify: [{url: 'https://h/x'}]", "notify[0].url", "no such key", "url_file"),
        ("group: 1\ngroup: 2", "group", "given twice", ""),
    ],
)
def test_a_mistake_is_told_with_its_key_and_its_remedy(text: str, key: str, words: str, hint: str) -> None:
    error = mistake(text)
    assert error.key == key
    assert words in str(error) and hint in str(error)


@pytest.mark.parametrize("address", ["https://ntfy.sh/my-own-topic", "https://h.example/" + "x" * 300])
def test_the_address_of_a_webhook_in_place_of_its_file_is_not_shown(address: str) -> None:
    error = mistake(f"notify: [{{url_file: '{address}'}}]")
    assert error.key == "notify[0].url_file" and "first line of a file" in error.hint
    assert address[8:24] not in str(error)


@pytest.mark.parametrize("text", ["[1, 2]", "just words", "a: [", "a: b: c", "\t- x", "---\na: 1\n---\nb: 2", "a: \0"])
def test_what_is_no_settings_at_all_is_told_without_a_word_of_task_files(text: str) -> None:
    assert "task" not in str(mistake(text))


# ---------------------------------------------------------------------- keys
SECRET = "sk-ant-api03-AbC1dEf2GhI3jKl4MnO5pQr6StU7vWx8"


@pytest.mark.parametrize(
    "text",
    [
        f"policy: {SECRET}", "policy: sk-pa55word", f"# my key: {SECRET}", f"api_key: {SECRET}",
        f"local: {{key_file: {SECRET}}}", f"fallbacks: [{SECRET}", f"{SECRET}: 1",
        "local: {base_url: 'http://me:pa55w0rdpa55@host/v1'}", "store: postgresql://me:pa55w0rdpa55@host/research",
    ],
)  # fmt: skip
def test_a_key_in_the_file_is_refused_and_never_shown(text: str) -> None:
    error = mistake("retries: 3\n" + text)
    assert error.line == 2
    assert "looks like a key" in str(error)
    assert "ANTHROPIC_API_KEY" in error.hint and "key_file" in error.hint
    assert SECRET not in str(error) and "pa55" not in str(error)


@pytest.mark.parametrize("key", ["api_key", "openai_api_key", "key", "token", "password", "API_KEY"])
def test_a_key_by_another_name_is_told_where_keys_belong(key: str) -> None:
    for text in (f"{key}: abc", f"local: {{{key}: abc}}"):
        assert "provider's variable" in mistake(text).hint


@given(st.text(max_size=200))
def test_no_text_makes_more_of_it_than_settings_or_an_error_that_helps(text: str) -> None:
    try:
        read_settings_text(text)
    except ConfigError as error:
        assert error.hint


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("4 o'clock", "not a valid cron schedule: Wrong number of fields"),
        ("61 * * * *", "higher than the maximum value (59)"),
        ("0 4 * * 0", "a number for the day of the week"),
        ("0 4 31 4,6,9,11 *", "is never due"),
    ],
)
def test_a_schedule_that_could_not_be_kept_is_refused_before_a_session_begins(cron: str, why: str) -> None:
    error = mistake(f'learn:\n  cron: "{cron}"\n')
    assert (error.key, error.line) == ("learn.cron", 2)
    assert why in error.what
    assert "five fields" in error.hint


def test_a_schedule_is_read_with_its_constants() -> None:
    text = "learn:\n  every: 20\n  algo: ppo\n  model: models/small\n"
    text += "  set: {learning_rate: 1e-4, checkpointing: true, batch: ~}\n"
    learn = read_settings_text(text).learn
    assert (learn.every, learn.algo, learn.model, learn.scheduled) == (20, "ppo", "models/small", True)
    assert learn.set == {"learning_rate": "0.0001", "checkpointing": "true"}

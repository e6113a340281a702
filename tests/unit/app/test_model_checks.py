"""Models and their keys: one that could never answer is found before the baseline; no key is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.app import compose as make_policy
from autoresearchd.app.compose import provider_keys
from autoresearchd.app.known_secrets import model_secrets
from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.redaction import Redactor
from autoresearchd.models.client import BrokeOff, ModelError, Trouble
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.store.daily_spend import DailySpend
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.fakes.model_turns import Turn
from tests.fakes.models import ScriptedClient, Step

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Desk:
    """Asks scripted models before a session; ``told`` is what its user reads."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environment = {"XDG_STATE_HOME": str(folder / "state")}
        self.book = DailySpend(folder / "state" / "autoresearchd")
        self.folder, self.monkeypatch = folder, monkeypatch
        self.told = ""

    def ask(self, *steps: Step) -> int:
        """One model for each step; how many were asked."""
        return self._ask([ScriptedClient([step], name=f"m/{index}") for index, step in enumerate(steps)])

    def ask_one(self, *steps: Step) -> int:
        """One model that does all of it; how often it was asked."""
        return self._ask([ScriptedClient(steps, name="m/0")])

    def _ask(self, clients: list[ScriptedClient]) -> int:
        with self.monkeypatch.context() as patch:
            patch.setattr(make_policy, "make_clients", lambda *_: clients)
            self._start("litellm:m/0", ModelSettings())
        return sum(len(client.questions) for client in clients)

    def ask_server(self, url: str, policy: str = "local:m") -> None:
        """The model of a server at this address."""
        self._start(policy, ModelSettings(local={"base_url": url}))

    def _start(self, policy: str, settings: ModelSettings) -> None:
        spec = parse_spec(policy)
        make_policy.ask_models(spec, settings, self.folder, self.environment, self.tell, now=lambda: NOON)

    def tell(self, text: str) -> None:
        self.told += text


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def fails(trouble: Trouble, words: str = "said the provider") -> ModelError:
    return ModelError(trouble, words)


@pytest.mark.parametrize("trouble", [Trouble.UNAUTHORISED, Trouble.NOT_FOUND, Trouble.UNREACHABLE])
def test_a_wrong_key_name_or_address_is_told_in_the_providers_words(desk: Desk, trouble: Trouble) -> None:
    with pytest.raises(UsageError, match=r"m/0: .*said the provider") as found:
        desk.ask(fails(trouble))
    assert found.value.exit_code == 2 and "--no-preflight" in found.value.hint
    assert "resume" not in found.value.hint, "there is no session to go on with"
    assert desk.told.startswith("asking m/0 …\n")


@pytest.mark.parametrize("trouble", [Trouble.RATE_LIMITED, Trouble.TIMEOUT, Trouble.BAD_REQUEST])
def test_what_may_pass_by_itself_is_a_warning(desk: Desk, trouble: Trouble) -> None:
    assert desk.ask(fails(trouble)) == 1
    assert "warning: m/0: " in desk.told and "said the provider" in desk.told


def test_a_model_that_fails_is_a_warning_where_another_may_answer(desk: Desk) -> None:
    assert desk.ask(fails(Trouble.UNAUTHORISED), "OK") == 2
    assert "warning: m/0: the key was refused" in desk.told
    assert desk.ask("OK", fails(Trouble.NOT_FOUND)) == 2
    assert "warning: m/1: not found" in desk.told
    desk.ask(fails(Trouble.UNAUTHORISED), fails(Trouble.OVERLOADED))
    with pytest.raises(UsageError, match=r"m/0.*m/1"):
        desk.ask(fails(Trouble.UNAUTHORISED), fails(Trouble.NOT_FOUND))


def test_a_server_that_ends_under_the_question_ends_the_start(desk: Desk) -> None:
    broken, gone = BrokeOff(Trouble.BROKEN_REPLY, "disconnected"), fails(Trouble.UNREACHABLE, "connection refused")
    for then in (gone, broken):
        with pytest.raises(UsageError, match=r"not reachable \(disconnected; then ") as found:
            desk.ask_one(broken, then)
        assert found.value.exit_code == 2
        assert "ended" in found.value.hint and "log" in found.value.hint and "Illegal instruction" in found.value.hint
    assert desk.ask_one(broken, "OK") == 2
    assert "warning" not in desk.told, "it hung up once, and answers"
    assert desk.ask_one(broken, fails(Trouble.OVERLOADED)) == 2
    assert "warning: m/0: overloaded" in desk.told


PAGE = b"<!DOCTYPE HTML>\n<html><head><title>Error response</title></head><body><p>Error code: 501</p></body></html>"


@pytest.mark.parametrize(
    ("turn", "words", "hint"),
    [
        (Turn(status=501, raw=PAGE), "answered 501: this is no model's server", "base_url"),
        (Turn(status=405, raw=b'{"detail": "Method Not Allowed"}'), "answered 405: Method Not Allowed", "base_url"),
        (Turn(status=400, raw=PAGE), "answered 400: this is no model's server", "base_url"),
        (Turn(status=404, raw=PAGE), "answered 404: this is no model's server", "base_url"),
        (Turn(status=200, raw=b"\n<html>"), "this is no model's server", "base_url"),
        (Turn(status=403, raw=PAGE), "answered 403: an HTML page", "key"),
        (turns.no_model(), "The model `nobody` does not exist", "correct the model"),
        (turns.drop(), "broke off", "its log tells why"),
    ],
)
def test_what_listens_at_the_address_but_will_never_answer_ends_the_start(
    desk: Desk, turn: Turn, words: str, hint: str
) -> None:
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    with ScriptedServer(probe=turn) as scripted, pytest.raises(UsageError) as found:
        desk.ask_server(scripted.url)
    assert words in found.value.what and hint in found.value.hint
    assert "<" not in str(found.value), "no tags"
    assert "overloaded" not in found.value.what and "ends in /v1" not in found.value.hint


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_gateway_whose_server_is_away_is_waited_for_though_it_answers_a_page(desk: Desk, status: int) -> None:
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    with ScriptedServer(probe=Turn(status=status, raw=PAGE)) as scripted:
        desk.ask_server(scripted.url)
    assert f"answered {status}: an HTML page" in desk.told and "<" not in desk.told


def test_an_address_without_v1_is_blamed_and_not_the_name(desk: Desk) -> None:
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    with ScriptedServer() as scripted:
        address = scripted.url.removesuffix("/v1")
        for policy in ("local:m", "local"):
            with pytest.raises(UsageError, match=r"not found .*answered 404: Not Found") as found:
                desk.ask_server(address, policy)
            assert f"ends in /v1 ({scripted.url})" in found.value.hint and "model" not in found.value.hint


@pytest.mark.parametrize(
    ("listed", "warned"), [("qwen2.5-coder", True), ("m", False), ("m:latest", False), ("", False)]
)
def test_a_name_that_the_server_does_not_list_is_told_once(desk: Desk, listed: str, warned: bool) -> None:
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    with ScriptedServer(model=listed) as scripted:
        desk.ask_server(scripted.url)
    (*_, last) = desk.told.splitlines()
    assert last.startswith("warning: ") is warned and desk.told.count("warning: ") == warned
    assert not warned or ("'m'" in last and last.endswith("it lists: qwen2.5-coder"))


def test_the_question_is_small_and_its_cost_is_in_the_book_of_the_day(desk: Desk) -> None:
    desk.ask("OK")
    assert desk.book.spent(NOON) == pytest.approx(0.01)


KEY = "plain-looking-key-0123456789"


def written(folder: Path, name: str, text: str = f"{KEY}\n") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("text", [None, "", "\n", "zwei\tk\u00e4ys\n"])
def test_a_file_without_a_key_is_refused_before_anything_is_asked(text: str | None, tmp_path: Path) -> None:
    path = str(tmp_path / "missing") if text is None else written(tmp_path, "key", text)
    with pytest.raises(UsageError, match="key") as caught:
        provider_keys(ModelSettings(key_files={"anthropic": path}))
    assert caught.value.hint


def test_keys_out_of_files_are_known_to_the_redactor(tmp_path: Path) -> None:
    settings = ModelSettings(
        local={"key_file": written(tmp_path, "local")},
        key_files={"x": written(tmp_path, "x", "another-key-987654321\n")},
    )
    redactor = Redactor(model_secrets(settings))
    said = redactor.text(f"the server echoed {KEY} and another-key-987654321")
    assert KEY not in said and "another-key" not in said

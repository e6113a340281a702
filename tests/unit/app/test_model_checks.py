"""Models and their keys: one that could never answer is found before the baseline; no key is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.app import compose as make_policy
from autoresearchd.app.compose import model_secrets, provider_keys
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.redaction import Redactor
from autoresearchd.models.client import ModelError, Trouble
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.store.daily_spend import DailySpend
from tests.fakes.models import ScriptedClient, Step

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Desk:
    """Asks scripted models before a session; ``told`` is what its user reads."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environment = {"XDG_STATE_HOME": str(folder / "state")}
        self.book = DailySpend(folder / "state" / "autoresearchd")
        self.folder, self.monkeypatch = folder, monkeypatch
        self.told = ""

    def ask(self, *steps: Step, settings: ModelSettings | None = None, policy: str = "litellm:m/0") -> int:
        """One model for each step; how many were asked."""
        clients = [ScriptedClient([step], name=f"m/{index}") for index, step in enumerate(steps)]
        self.monkeypatch.setattr(make_policy, "make_clients", lambda *_: clients)
        spec = parse_spec(policy)
        try:
            settings = settings or ModelSettings()
            make_policy.ask_models(spec, settings, self.folder, self.environment, self.tell, now=lambda: NOON)
        finally:
            asked = [len(client.questions) for client in clients]
        return sum(asked)

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
    assert "warning: m/1: no such model" in desk.told
    desk.ask(fails(Trouble.UNAUTHORISED), fails(Trouble.OVERLOADED))
    with pytest.raises(UsageError, match=r"m/0.*m/1"):
        desk.ask(fails(Trouble.UNAUTHORISED), fails(Trouble.NOT_FOUND))


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
        key_file=written(tmp_path, "local"), key_files={"x": written(tmp_path, "x", "another-key-987654321\n")}
    )
    redactor = Redactor(model_secrets(settings))
    said = redactor.text(f"the server echoed {KEY} and another-key-987654321")
    assert KEY not in said and "another-key" not in said

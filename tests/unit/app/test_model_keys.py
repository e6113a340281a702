"""Keys of models lie in files of their own: they are used, and recognised wherever they show up."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.app.make_policy import model_secrets, provider_keys
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.redaction import Redactor

KEY = "plain-looking-key-0123456789"


def written(folder: Path, name: str, text: str = f"{KEY}\n") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_provider_gets_the_key_out_of_its_file(tmp_path: Path) -> None:
    settings = ModelSettings(key_files={"anthropic": written(tmp_path, "anthropic")})
    assert provider_keys(settings) == {"anthropic": KEY}
    assert provider_keys(ModelSettings()) == {}


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
    assert KEY not in said
    assert "another-key" not in said


def test_a_file_that_cannot_be_read_keeps_no_session_from_being_looked_at(tmp_path: Path) -> None:
    assert model_secrets(ModelSettings(key_file=str(tmp_path / "missing"))) == []

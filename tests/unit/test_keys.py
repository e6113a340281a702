"""The keys that a process holds, or could use, are known to its redactor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autoresearchd import keys
from tests.unit.domain.canaries import TOKENS, letters

SECRET = letters(24)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".netrc", "machine api.wandb.ai\n  login user\n  password {}\n"),
        (".aws/credentials", "[default]\naws_secret_access_key = {}\n"),
        (".cache/huggingface/token", "{}"),
        (".git-credentials", "https://bot:{}@git.example.com\n"),
        (".npmrc", "//registry.npmjs.org/:_authToken={}\n"),
        (".kaggle/kaggle.json", '{{"username":"u","key":"{}"}}'),
        (".config/gh/hosts.yml", "github.com:\n    oauth_token: {}\n"),
    ],
)
def test_keys_in_the_files_of_other_tools_are_known(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(SECRET))
    redactor = keys.redactor(environment={"HOME": str(tmp_path)})
    assert redactor.text(f"a {SECRET} b") == "a «redacted:environment» b"


def test_a_key_file_that_a_variable_names_and_a_dotenv_are_read(tmp_path: Path) -> None:
    (tmp_path / "gcp.json").write_text(json.dumps({"private_key": TOKENS["private-key"], "client_secret": SECRET}))
    (tmp_path / "plain").write_text("another-" + SECRET)
    (tmp_path / ".env").write_text("OPENAI_API_KEY='dotenv-" + SECRET + "'\n")
    environment = {
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "gcp.json"),
        "MY_TOKEN_FILE": str(tmp_path / "plain"),
    }
    redactor = keys.redactor(environment=environment, folder=tmp_path)
    line = TOKENS["private-key"].splitlines()[3]
    for secret in (SECRET, "another-" + SECRET, "dotenv-" + SECRET, line):
        assert redactor.text(f"<{secret}>") == "<«redacted:environment»>"
    assert str(tmp_path / "gcp.json") in redactor.text(str(environment)), "where a key file lies is no secret"


def test_the_address_of_a_store_is_a_secret_only_where_a_password_is_in_it() -> None:
    """Else messages about a server that is away do not say which."""
    for where, shown in (("me@db-host", True), (f"me:{SECRET}@db-host", False)):
        url = f"postgresql://{where}/research"
        assert (keys.redactor(environment={"AUTORESEARCHD_STORE": url}).text(url) == url) is shown


def test_what_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    environment = {"A_TOKEN": str(tmp_path / "fifo"), "B_TOKEN": str(tmp_path), "C_TOKEN": "/nowhere", "HOME": "/\0"}
    assert keys.redactor(environment=environment, folder=tmp_path).text("x") == "x"

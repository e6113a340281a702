"""A start with a model that cannot answer ends before the baseline, in the provider's words, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.fakes.repositories import git, make_repository
from tests.unit.cli.conftest import Command
from tests.unit.cli.test_refused_starts import FILES

pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a repository with a task and no session."""
    root = tmp_path / "toy"
    make_repository(root, FILES)
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return root


def configure(toy: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    config = toy.parent / "config.yaml"
    config.write_text(f"local: {{base_url: '{url}'}}\n")
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", str(config))


@pytest.mark.parametrize("policy", ["local:m", "agent:local:m"])
@pytest.mark.parametrize(
    ("probe", "words"), [(turns.unauthorised(), "Incorrect API key"), (turns.no_model("m"), "`m` does not exist")]
)
def test_a_wrong_key_or_model_ends_the_start(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch, policy: str, probe: turns.Turn, words: str
) -> None:
    with ScriptedServer(probe=probe) as scripted:
        configure(toy, monkeypatch, scripted.url)
        answer = command("start", "--foreground", "--policy", policy, "--sandbox", "none")
    assert (answer.code, len(scripted.probes), scripted.questions) == (2, 1, [])
    assert words in answer.err and "asking local:m" in answer.err and "--no-preflight" in answer.err
    assert "autoresearch/" not in git(toy, "branch", "--all")


def test_who_wants_only_the_baseline_or_no_look_is_asked_nothing(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr("autoresearchd.app.start.run", lambda project, store, session, sinks: started.append("") or 0)
    with ScriptedServer(probe=turns.unauthorised()) as scripted:
        configure(toy, monkeypatch, scripted.url)
        common = ("start", "--foreground", "--policy", "local:m", "--sandbox", "none")
        answer = command(*common, "--tag", "a", "--no-preflight")
        assert (answer.code, scripted.probes) == (0, []), answer.err
        answer = command(*common, "--tag", "b", "--max-experiments", "0")
        assert (answer.code, scripted.probes, len(started)) == (0, [], 2), answer.err

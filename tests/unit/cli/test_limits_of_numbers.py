"""A number that no database holds, or a folder that cannot be made, is the user's mistake and is told as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    "words",
    [["show", HUGE], ["experiments", "--last", HUGE], ["logs", "-n", HUGE], ["start", "--max-experiments", HUGE]],
)
@pytest.mark.usefixtures("repository")
def test_a_number_that_is_too_large_is_named_and_nothing_else_is_blamed(command: Command, words: list[str]) -> None:
    answer = command(*words)
    assert answer.code == 2
    assert words[1] in answer.err
    assert f"{HUGE} is more than" in answer.err
    assert "database" not in answer.err


@pytest.mark.usefixtures("repository")
def test_the_largest_number_that_a_database_holds_is_merely_not_there(command: Command) -> None:
    answer = command("show", str(2**63 - 1))
    assert answer.code == 2
    assert "has no experiment" in answer.err


@pytest.mark.parametrize("folder", ["/proc/x", "/dev/null/x"])
def test_a_folder_that_cannot_be_made_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("start", "--task", "autoresearch", "--dir", folder)
    assert answer.code == 2
    assert folder in answer.err
    assert "--dir" in answer.err
    assert "Traceback" not in answer.err

"""``status`` of a session that ended before its first result: it says so while nothing newer is there, and why."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.store.failed_start import FailedStart, recall, remember
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import HOSTILE, START, Command


def fail(root: Path, tag: str = "mar9", *, at: datetime = START + timedelta(days=1)) -> FailedStart:
    status = {"session": {"tag": tag, "task": "toy", "state": "crashed"}, "current": None}
    failed = FailedStart(tag, at, 3, f"the baseline gave no score: {HOSTILE}", "print it", status)
    remember(layout.failed_start_path(root), failed)
    return failed


def test_it_is_told_although_an_older_session_is_there(repository: Path, command: Command) -> None:
    failed = fail(repository)
    for arguments in (("status",), ("status", "--session", "mar9"), ("status", "--watch")):
        answer = command(*arguments)
        assert answer.code == 3
        assert "toy · mar9 · ended before its first result" in answer.out
        assert "the baseline gave no score" in answer.out and "print it" in answer.out
        assert "\x1b" not in answer.out
    answer = command("status", "--json")
    assert (answer.code, json.loads(answer.out)) == (3, failed.status)


def test_the_other_sessions_are_there_as_before(repository: Path, command: Command) -> None:
    fail(repository)
    answer = command("status", "--session", "mar8")
    assert answer.code == 0
    assert "mar8" in answer.out
    assert command("experiments").code == 0


def test_what_began_after_it_is_what_is_meant(repository: Path, command: Command) -> None:
    fail(repository, at=START - timedelta(days=1))
    assert command("status").code == 0
    assert command("status", "--session", "mar9").code == 3


def test_a_session_that_was_begun_anew_under_its_tag_is_not_called_ended(repository: Path, command: Command) -> None:
    fail(repository, "mar8")
    assert command("status").code == 0
    assert command("status", "--session", "mar8").code == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tag": "mar9"}', "\x00", '{"tag": "t", "ended_at": 5}'])
def test_a_file_that_says_nothing_changes_nothing(repository: Path, command: Command, text: str) -> None:
    layout.failed_start_path(repository).write_text(text)
    assert recall(layout.failed_start_path(repository), []) is None
    assert command("status").code == 0

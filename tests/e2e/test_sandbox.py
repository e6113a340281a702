"""``--sandbox``: what a session asked for is what its runs get, and it is remembered."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from autoresearchd.sandbox.tiers import available
from tests.e2e.conftest import Project

OTHERS = [tier.name.value for tier in available()[-2:]]  # the weakest that isolates, where there is one, and none


def stored(project: Project, question: str) -> set[str]:
    with closing(sqlite3.connect(project.root / ".git/autoresearchd/state.db")) as database:
        return {row[0] for row in database.execute(question)}


@pytest.mark.parametrize("name", OTHERS)
def test_a_session_keeps_the_sandbox_that_it_was_started_with(project: Project, name: str) -> None:
    once = ("--policy", "random", "--max-experiments", "1", "--foreground")
    begun = project.cli("start", "--tag", "t", "--sandbox", name, *once)
    assert begun.returncode == 0, begun.stderr
    assert stored(project, "select tier from run") == {name}
    assert ("not isolated" in begun.stdout + begun.stderr) is (name == "none")
    for more, executor in (((), f"local:{name}"), (("--sandbox", "auto"), "local")):
        assert project.cli("resume", "t", *more, "--foreground").returncode == 0
        assert stored(project, "select executor from session") == {executor}


def test_who_leaves_a_daemon_behind_is_told_what_the_sandbox_does_not_do(project: Project) -> None:
    """The daemon says it, too, but in a log that nobody has a reason to look into."""
    begun = project.done("start", "--tag", "t", "--sandbox", "none", "--policy", "random", "--max-experiments", "0")
    assert "warning: runs are not isolated" in begun.stderr


@pytest.mark.parametrize("command", [("start",), ("task", "check", "--run")])
def test_a_sandbox_that_there_is_not_is_refused_before_anything_is_changed(
    project: Project, command: tuple[str, ...]
) -> None:
    done = project.cli(*command, "--sandbox", "bubblewarp")
    assert done.returncode == 2 and "bubblewarp" in done.stderr
    assert not (project.root / ".git/autoresearchd/state.db").exists()


@pytest.mark.parametrize("name", OTHERS)
def test_a_task_is_checked_in_the_sandbox_that_is_named(project: Project, name: str) -> None:
    done = project.done("task", "check", ".", "--run", "--sandbox", name)
    assert f"({name}, self-reported)" in done.stdout

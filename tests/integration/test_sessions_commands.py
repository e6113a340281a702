"""`sessions list` and `sessions remove`: a session goes with all that was made for it, nothing of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.cli.main import run
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.fakes.repositories import make_repository
from tests.integration.bench import Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A session with keeps whose daemon has ended, in a repository with a branch of the user's."""
    bench = Bench(tmp_path)
    bench.git("branch", "mine")
    lab = bench.laboratory()
    bench.loop(3, lab).run()
    lab.workspace.close()
    assert bench.store.totals(bench.session.id).keeps
    bench.close()
    monkeypatch.chdir(bench.root)
    yield bench


def refs(bench: Bench) -> list[str]:
    return bench.git("for-each-ref", "--format=%(refname)").split()


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert run(["sessions", "list", "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_sessions_are_listed_with_what_came_of_them(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = listed(capsys)
    assert 1 <= one["confirmed"] <= one["keeps"]  # type: ignore[operator]
    assert [one[name] for name in ("tag", "task", "experiments", "metric")] == ["t", "toy", 3, "score"]
    assert isinstance(one["best"], float) and one["best"] < 1.0
    assert run(["sessions", "list"]) == 0
    assert " toy " in capsys.readouterr().out


def test_a_repository_without_sessions_has_an_empty_list_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that lists sessions would take a new repository for an error."""
    make_repository(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    assert run(["sessions", "list"]) == 0
    told = capsys.readouterr()
    assert told.out.split() == ["session", "task", "state", "experiments", "kept", "confirmed", "best", "started"]
    assert "there is no session in" in told.err
    assert listed(capsys) == []
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "none")
    assert run(["sessions", "list"]) != 0, "a folder that is in no repository"


def test_a_removed_session_takes_all_its_own_and_no_more(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    memo = layout.memo_path(bench.root, "t")
    memo.parent.mkdir(parents=True, exist_ok=True)
    memo.write_text("mine\n")
    before = bench.git("status", "--porcelain", "--untracked-files=all")
    assert run(["sessions", "remove", "t", "--yes"]) == 0
    assert "3 experiments" in capsys.readouterr().err
    assert refs(bench) == ["refs/heads/main", "refs/heads/mine"]
    assert not (bench.root / ".autoresearchd/runs/t").exists()
    assert memo.read_text() == "mine\n"
    assert bench.git("status", "--porcelain", "--untracked-files=all") == before
    assert listed(capsys) == []
    assert run(["sessions", "remove", "t", "--yes"]) == 2


@pytest.mark.parametrize("why", ["running", "checked out", "moved", "rewritten", "unasked", "unknown"])
def test_a_session_that_is_in_use_is_not_removed(bench: Bench, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    if why == "checked out":
        bench.git("switch", "-q", "autoresearch/t")
    if why == "moved":
        own = bench.git("commit-tree", "-m", "mine", "-p", "autoresearch/t", "autoresearch/t^{tree}")
        bench.git("update-ref", "refs/heads/autoresearch/t", own)
    if why == "rewritten":  # as `git commit --amend` and `git rebase` do, which keep the message
        words = bench.git("log", "-1", "--format=%B", "autoresearch/t")
        own = bench.git("commit-tree", "-m", words, "-p", "autoresearch/t^", "autoresearch/t^{tree}")
        bench.git("update-ref", "refs/heads/autoresearch/t", own)
    before = refs(bench)
    yes = [] if why == "unasked" else ["--yes"]
    arguments = ["sessions", "remove", "u" if why == "unknown" else "t", *yes]
    if why == "running":
        with SessionLock(layout.lock_path(bench.root, "t"), "t"):
            assert run(arguments) == 75
    else:
        assert run(arguments) in (1, 2)
    told = capsys.readouterr().err
    wanted = {"running": "is held by", "checked out": "is checked out in", "moved": "none of the session's commits"}
    wanted["rewritten"] = wanted["moved"]
    assert wanted.get(why, "") in told and "→" in told
    assert ("cannot be removed" in told) == (why == "checked out") and "while you sleep" not in told
    assert refs(bench) == before
    assert [one["tag"] for one in listed(capsys)] == ["t"]


def test_a_removal_that_was_killed_in_the_middle_is_done_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SqlStore, "delete_session", killed)  # the last step
        assert run(["sessions", "remove", "t", "--yes"]) != 0
    assert refs(bench) == ["refs/heads/main", "refs/heads/mine"]
    assert [one["tag"] for one in listed(capsys)] == ["t"]
    assert run(["sessions", "remove", "t", "--yes"]) == 0
    with SqlStore.open(f"sqlite:///{bench.state / 'state.db'}") as store:
        assert list(store.sessions()) == []

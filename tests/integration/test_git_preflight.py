"""A start that is refused says why and what to do, and changes nothing; a repository is made whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, RepositoryError, UsageError
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.command import find_git
from tests.fakes.repositories import FILES, checkout_snapshot, commit_all, git, write_files
from tests.integration.bench import fake_git, session


def in_progress(root: Path, *command: str) -> None:
    """Two branches that disagree, and an operation that stops at the conflict."""
    git(root, "switch", "--quiet", "-c", "theirs")
    write_files(root, {"train.py": "theirs\n"})
    commit_all(root)
    git(root, "switch", "--quiet", "main")
    write_files(root, {"train.py": "ours\n"})
    commit_all(root)
    git(root, *command, "theirs", check=False)


def modify(root: Path) -> None:
    for name in FILES:
        write_files(root, {name: "changed\n"})


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "modified files": (modify, "lib/model.py, prepare.py, train.py", "git stash"),
    "a staged file": (lambda r: (write_files(r, {"new.py": ""}), git(r, "add", "new.py")), "new.py", "commit"),
    "a deleted file": (lambda r: (r / "train.py").unlink(), "train.py", "git stash"),
    "a merge": (lambda r: in_progress(r, "merge"), "a merge is in progress", "git merge --continue"),
    "a rebase": (lambda r: in_progress(r, "rebase"), "a rebase is in progress", "git rebase --continue"),
    "a cherry-pick": (lambda r: in_progress(r, "cherry-pick"), "a cherry-pick is in progress", "--abort"),
    "no commits": (lambda r: git(r, "switch", "--quiet", "--orphan", "empty"), "no commits yet", "git add"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_repository_that_cannot_be_used_is_refused_and_left_as_it_is(root: Path, case: str) -> None:
    prepare, what, hint = REFUSED[case]
    prepare(root)
    before = checkout_snapshot(root)
    with pytest.raises(RepositoryError) as caught:
        preflight.check_repository(root)
    assert what in caught.value.what and hint in caught.value.hint
    assert checkout_snapshot(root) == before and not layout.state_dir(root).exists()


def test_line_ends_as_the_users_git_checks_them_out_are_no_change(root: Path) -> None:
    """It looked random: `git status` said clean, and once it had, `start` did, too."""
    git(root, "config", "core.autocrlf", "true")
    (root / "train.py").unlink()
    git(root, "checkout", "--quiet", "train.py")
    assert b"\r\n" in (root / "train.py").read_bytes()
    os.utime(root / "train.py", (1, 1))
    preflight.check_repository(root)
    git(root, "config", "core.autocrlf", "false")
    with pytest.raises(RepositoryError, match=r"train\.py"):
        preflight.check_repository(root)


def test_a_detached_head_is_begun_from(root: Path) -> None:
    """What runs in CI checks out a commit and no branch."""
    commit = git(root, "rev-parse", "HEAD")
    write_files(root, {"train.py": "newer\n"})
    commit_all(root)
    git(root, "checkout", "--quiet", "--detach", commit)
    preflight.check_repository(root)
    with session(root) as workspace:
        workspace.begin(workspace.head())
        assert workspace.confirmed() == commit == git(root, "rev-parse", "HEAD")
    assert not git(root, "symbolic-ref", "--quiet", "HEAD", check=False)


def test_a_folder_without_a_repository_and_a_bare_one_are_refused(tmp_path: Path, root: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RepositoryError, match="not in a git repository") as caught:
        preflight.check_repository(tmp_path / "nothing")
    assert "git init" in caught.value.hint
    git(tmp_path, "clone", "--quiet", "--bare", str(root), "bare.git")
    with pytest.raises(RepositoryError, match="bare"):
        preflight.check_repository(tmp_path / "bare.git")
    git(root, "config", "core.bare", "true")
    with pytest.raises(RepositoryError, match="bare"):
        preflight.check_repository(root)


def test_a_git_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(tmp_path / "bin", "echo git version 2.17.1\n", monkeypatch)
    with pytest.raises(MissingCapability, match=r"2\.32"):
        preflight.require_git()


@pytest.mark.parametrize(
    "tag",
    ["", "-x", "A", "a b", "a/b", "a..b", "a.lock", "a.", "a" * 51, ".a", "é", "a\n", "a~1", "a^", "@{", "a:b", "*"],
)
def test_a_tag_that_cannot_be_a_branch_is_refused(root: Path, tag: str) -> None:
    with pytest.raises(UsageError):
        preflight.check_tag(root, tag)
    with pytest.raises(UsageError):
        session(root, tag=tag)
    with pytest.raises(UsageError):
        layout.run_dir(root, tag, 0, 0)


TAKEN = {
    "refs/heads/autoresearch/night": "branch autoresearch/night is there already",
    "refs/heads/autoresearch/night/deeper": "autoresearch/night/deeper is there already",
    "refs/heads/autoresearch": "so git allows none below it",
    "refs/autoresearch/night/17": "experiments of an earlier session",
}


@pytest.mark.parametrize("ref", TAKEN)
def test_a_tag_that_is_taken_is_refused_before_anything_of_the_old_session_is_overwritten(root: Path, ref: str) -> None:
    preflight.check_tag(root, "night")
    git(root, "update-ref", ref, "HEAD")
    with pytest.raises(RepositoryError, match=TAKEN[ref]):
        preflight.check_tag(root, "night")
    if "heads" in ref:
        with session(root) as workspace, pytest.raises(RepositoryError):
            workspace.begin(workspace.head())


def test_a_session_branch_that_is_checked_out_anywhere_is_refused(root: Path, tmp_path: Path) -> None:
    branch, linked = layout.branch_name("night"), tmp_path / "a linked one"
    git(root, "branch", branch)
    preflight.check_not_checked_out(root, branch)
    git(root, "worktree", "add", "--quiet", str(linked), branch)
    with pytest.raises(RepositoryError, match="a linked one") as caught:
        preflight.check_not_checked_out(root, branch)
    assert "switch" in caught.value.hint
    git(root, "worktree", "remove", str(linked))
    git(root, "switch", "--quiet", branch)
    with pytest.raises(RepositoryError):
        preflight.check_not_checked_out(root, branch)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a repository of somebody else's")
def test_a_repository_of_another_user_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for path in (root, *root.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    for use in (preflight.check_repository, session):
        with pytest.raises(RepositoryError, match="belongs to another user") as caught:
            use(root)
        assert f"safe.directory {root}" in caught.value.hint
    write_files(home, {".gitconfig": f"[safe]\n\tdirectory = {root}\n"})
    preflight.check_repository(root)
    with session(root) as workspace:
        workspace.begin(workspace.head())
        workspace.checkout(0, workspace.head())


def test_task_files_that_are_not_committed_are_named(root: Path) -> None:
    write_files(root, {"new.py": ""})
    (root / "link.py").symlink_to("train.py")
    git(root, "add", "link.py")
    git(root, "commit", "--quiet", "-m", "link")
    with session(root, "train.py", "link.py") as workspace:
        base = workspace.head()
        workspace.check_tracked(base, ["train.py", "prepare.py", "lib", "lib/"])
        with pytest.raises(RepositoryError, match=r"new\.py") as caught:
            workspace.check_tracked(base, ["train.py", "new.py"])
        assert "git add" in caught.value.hint
        with pytest.raises(RepositoryError, match="regular"):
            workspace.check_tracked(base, ["link.py"])


def test_the_fingerprint_changes_with_protected_files_and_with_nothing_else(root: Path) -> None:
    commits = [git(root, "rev-parse", "HEAD")]
    for name in ("train.py", "lib/model.py"):
        write_files(root, {name: "x\n"})
        commits.append(commit_all(root))
    paths = ["prepare.py", "lib", "absent.py"]
    with session(root) as workspace:
        first, second, third = (workspace.fingerprint(commit, paths) for commit in commits)
        assert first == second == workspace.fingerprint(commits[0], paths[::-1]) != third


def test_a_scaffolded_folder_becomes_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "task"
    write_files(
        home, {".gitconfig": "[init]\n\tdefaultBranch = trunk\n[user]\n\tname = Ada\n[commit]\n\tgpgSign = true\n"}
    )
    monkeypatch.setenv("HOME", str(home))
    write_files(folder, {**FILES, ".gitignore": "data/\n", "data/train.bin": b"\0"})
    commit = preflight.init_repository(folder)
    assert git(folder, "rev-parse", "main") == commit and git(folder, "status", "--porcelain") == ""
    assert git(folder, "ls-files").split("\n") == sorted([*FILES, ".gitignore"])
    assert git(folder, "log", "-1", "--format=%an %ae %cn") == "Ada autoresearchd@localhost autoresearchd"
    preflight.check_repository(folder)
    preflight.exclude(folder)
    assert (folder / ".git/info/exclude").read_text().count(".autoresearchd/") == 1
    with pytest.raises(RepositoryError, match="already"):
        preflight.init_repository(folder)


def test_a_repository_is_made_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = 'echo "No space left on device" >&2; exit 128'
    write_files(tmp_path / "task", FILES)
    with monkeypatch.context() as patch, pytest.raises(EnvironmentFailure, match="No space left"):
        fake_git(tmp_path / "bin", f'[ "$1" = commit ] && {{ {says}; }}\nexec {find_git()} "$@"\n', patch)
        preflight.init_repository(tmp_path / "task")
    assert not (tmp_path / "task" / ".git").exists()
    assert preflight.init_repository(tmp_path / "task")

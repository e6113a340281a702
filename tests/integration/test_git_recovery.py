"""Killed, moved, locked, damaged, full: what a session survives by itself, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, RepositoryError, UsageError
from autoresearchd.workspace import layout
from autoresearchd.workspace.command import Result, find_git
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.repositories import FILES, git, make_repository
from tests.integration.bench import fake_git, session

WHEN = datetime(2026, 5, 6, tzinfo=UTC)
SPY = '[ "$1" = update-ref ] || exec "{git}" "$@"\ntee -a "{record}" | "{git}" "$@"\n'


@pytest.fixture
def workspace(root: Path) -> Iterator[GitWorkspace]:
    with session(root) as workspace:
        workspace.begin(workspace.head())
        yield workspace


def edit(workspace: GitWorkspace, number: int = 1, text: str = "x = 1\n") -> str:
    files = {"train.py": text}
    return workspace.commit(number=number, parent=workspace.head(), files=files, message="try\n", when=WHEN)


def loose(root: Path, sha: str) -> Path:
    return root / ".git" / "objects" / sha[:2] / sha[2:]


def age(path: Path, seconds: float = 3600) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


@pytest.mark.parametrize("lost", ["commit", "tree", "blob"])
@pytest.mark.parametrize("how", ["never written", "emptied by a power cut"])
def test_a_commit_that_was_cut_off_is_completed(root: Path, workspace: GitWorkspace, lost: str, how: str) -> None:
    commit = edit(workspace)
    victim = {
        "commit": commit,
        "tree": git(root, "rev-parse", f"{commit}^{{tree}}"),
        "blob": git(root, "rev-parse", f"{commit}:train.py"),
    }[lost]
    loose(root, victim).unlink()
    assert workspace.damaged({1: commit}) == [1]
    git(root, "update-ref", "-d", "refs/autoresearch/night/1")
    if how != "never written":
        loose(root, victim).touch()
    with session(root) as again:
        assert edit(again) == commit
        assert again.damaged({1: commit}) == []
    assert git(root, "rev-parse", "refs/autoresearch/night/1") == commit
    assert git(root, "fsck", "--strict", "--no-dangling") == ""


def test_a_damaged_object_is_named_with_a_way_to_mend_it(root: Path, workspace: GitWorkspace) -> None:
    commit = edit(workspace, text="".join(f"x{n} = {n * n}\n" for n in range(2000)))
    place = loose(root, blob := git(root, "rev-parse", f"{commit}:train.py"))
    whole = place.read_bytes()
    place.unlink()
    for content in (None, b"garbage", b"", whole[: len(whole) // 2], whole[:-3]):
        if content is not None:
            place.write_bytes(content)
        with pytest.raises(RepositoryError) as caught:
            workspace.read(commit, "train.py")
        assert blob in caught.value.what and "git fsck" in caught.value.hint
        with pytest.raises(RepositoryError) as caught:
            workspace.checkout(0, commit)
        assert "git fsck" in caught.value.hint
    assert workspace.read(workspace.head(), "train.py") == FILES["train.py"], "one bad object must not stop the rest"


def slot_git(workspace: GitWorkspace) -> Path:
    return layout.worktrees_dir(workspace.root, "night") / "slot0.git"


BROKEN = {
    "the folder is gone": lambda folder, own: shutil.rmtree(folder),
    "the folder is a file": lambda folder, own: (shutil.rmtree(folder), folder.touch()),
    "its .git file is gone": lambda folder, own: (folder / ".git").unlink(),
    "a stale index lock": lambda folder, own: (own / "index.lock").touch(),
    "its git directory is gone": lambda folder, own: shutil.rmtree(own),
    "its HEAD is empty": lambda folder, own: (own / "HEAD").write_text(""),
    "its HEAD is a lost commit": lambda folder, own: (own / "HEAD").write_text("f" * 40 + "\n"),
    "its index is damaged": lambda folder, own: (own / "index").write_bytes(b"DIRCgarbage"),
    "its configuration was changed": lambda folder, own: (own / "config").write_text("[core]\n\tbare = true\n"),
    "a file became a folder": lambda folder, own: (
        (folder / "train.py").unlink(),
        (folder / "train.py" / "x").mkdir(parents=True),
        (folder / "train.py" / "x" / "y").touch(),
    ),
    "a folder became a file": lambda folder, own: (shutil.rmtree(folder / "lib"), (folder / "lib").touch()),
    "folders are read-only": lambda folder, own: (folder / "lib").chmod(0o500),
    "a repository within": lambda folder, own: (make_repository(folder / "inner"), make_repository(folder / "lib/in")),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_damaged_worktree_is_made_whole(workspace: GitWorkspace, what: str) -> None:
    commit = edit(workspace)
    folder = workspace.checkout(0, workspace.head())
    BROKEN[what](folder, slot_git(workspace))
    assert workspace.checkout(0, commit) == folder
    files = [path for path in folder.rglob("*") if not path.is_dir() and path != folder / ".git"]
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in files}
    assert found == {**FILES, "train.py": "x = 1\n"}
    assert git(folder, "rev-parse", "HEAD") == commit and git(folder, "status", "--porcelain") == ""
    assert len(list(folder.parent.iterdir())) == 3, "nothing is left aside"


@pytest.mark.parametrize("file", ["HEAD", "config", "info/attributes", "objects/info/alternates"])
@pytest.mark.parametrize("which", ["git", "worktrees/night/slot0.git"])
def test_a_torn_private_git_directory_is_made_anew(root: Path, workspace: GitWorkspace, which: str, file: str) -> None:
    base = workspace.head()
    workspace.checkout(0, base)
    workspace.close()
    place = layout.state_dir(root) / which / file
    content = place.read_bytes()
    for kept in sorted({*range(0, 25, 4), 5, *range(25, len(content), 25), len(content) - 1}):
        place.write_bytes(content[:kept])
        with session(root) as again:
            text = (again.checkout(0, base) / "train.py").read_text()
        assert text == FILES["train.py"], f"cut off after {kept} bytes"
        assert place.read_bytes() == content, f"cut off after {kept} bytes"


def test_a_repository_that_was_moved_goes_on_at_its_new_place(root: Path, workspace: GitWorkspace) -> None:
    commit = edit(workspace)
    workspace.checkout(0, commit)
    workspace.close()
    moved = root.rename(root.with_name("moved"))
    with session(moved) as again:
        assert again.confirmed() == again.head()
        assert again.checkout(0, commit).is_relative_to(moved)
        assert git(again.checkout(0, commit), "rev-parse", "HEAD") == commit


def test_a_reader_that_was_killed_is_replaced(workspace: GitWorkspace) -> None:
    for _ in range(2):
        assert workspace.read(workspace.head(), "train.py") == FILES["train.py"]
        workspace._objects._git.cat_file_all.proc.kill()


def test_a_lock_that_somebody_may_hold_is_waited_for(root: Path, workspace: GitWorkspace) -> None:
    lock = root / ".git" / "refs/heads/autoresearch/night.lock"
    commit = edit(workspace)
    lock.touch()
    with pytest.raises(EnvironmentFailure, match="git is locked") as caught:
        workspace.advance(workspace.head(), commit)
    assert str(lock) in str(caught.value) and lock.exists() and workspace.confirmed() != commit
    age(lock)
    workspace.advance(workspace.head(), commit)
    assert workspace.confirmed() == commit


def test_a_lock_of_the_users_is_never_removed(root: Path, workspace: GitWorkspace) -> None:
    edit(workspace)
    lock = root / ".git" / "packed-refs.lock"
    lock.touch()
    age(lock)
    with pytest.raises(EnvironmentFailure, match=r"packed-refs\.lock"):
        workspace.pack()
    assert lock.exists()


def test_a_session_without_a_baseline_leaves_no_trace(root: Path, workspace: GitWorkspace) -> None:
    edit(workspace, 1)
    workspace.checkout(0, workspace.head())
    workspace.pack()
    edit(workspace, 2)
    for _ in range(2):
        workspace.abandon()
    assert git(root, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert not layout.worktrees_dir(root, "night").exists()
    workspace.begin(workspace.head())


def test_abandoning_leaves_a_branch_that_the_user_built_on(root: Path, workspace: GitWorkspace) -> None:
    commit = edit(workspace)
    git(root, "branch", "--quiet", "--force", "autoresearch/night", commit)
    with pytest.raises(RepositoryError, match="left as it is"):
        workspace.abandon()
    assert workspace.confirmed() == commit


def test_beginning_is_completed_after_a_crash_but_takes_over_no_branch(root: Path, workspace: GitWorkspace) -> None:
    head = workspace.head()
    workspace.begin(head)
    commit = edit(workspace, 5)
    with pytest.raises(RepositoryError, match="already"):
        workspace.begin(commit)
    git(root, "update-ref", "-d", "refs/heads/autoresearch/night")
    workspace.begin(commit)
    assert workspace.confirmed() == workspace.tip() == commit == git(root, "rev-parse", "refs/autoresearch/night/0")


def test_beginning_again_leaves_a_tip_that_has_moved(workspace: GitWorkspace) -> None:
    commit = edit(workspace)
    workspace.move_tip(commit)
    workspace.begin(workspace.head())
    assert (workspace.tip(), workspace.confirmed()) == (commit, workspace.head())


def test_the_tip_of_a_session_of_an_earlier_version_is_its_branch(root: Path, workspace: GitWorkspace) -> None:
    commit = edit(workspace)
    workspace.advance(workspace.head(), commit)
    git(root, "update-ref", "-d", "refs/autoresearch/night/tip")
    assert workspace.tip() == commit
    later = edit(workspace, 2, "x = 2\n")
    workspace.move_tip(later)
    assert (workspace.tip(), workspace.confirmed()) == (later, commit)


@pytest.mark.parametrize("content", [b"", b"\0" * 41])
def test_a_tip_that_a_power_cut_emptied_is_written_again(root: Path, workspace: GitWorkspace, content: bytes) -> None:
    """The journal knows where it was; until then the confirmed program is all that is sure."""
    commit = edit(workspace)
    workspace.move_tip(commit)
    (root / ".git/refs/autoresearch/night/tip").write_bytes(content)
    assert workspace.tip() == workspace.confirmed()
    workspace.move_tip(commit)
    assert workspace.tip() == commit == git(root, "rev-parse", "refs/autoresearch/night/tip")


def test_a_tip_is_found_and_moved_after_packing(root: Path, workspace: GitWorkspace) -> None:
    first = edit(workspace)
    workspace.move_tip(first)
    workspace.pack()
    assert workspace.tip() == first and workspace.history().experiments().keys() == {0, 1}
    workspace.move_tip(workspace.head())
    assert workspace.tip() == workspace.head() == git(root, "rev-parse", "refs/autoresearch/night/tip")


def test_without_reverts_in_the_history_no_discard_is_written(workspace: GitWorkspace) -> None:
    with pytest.raises(UsageError, match="discards are not written"):
        workspace.fall_back(workspace.head(), 0, WHEN)
    assert workspace.tip() == workspace.head()


@pytest.mark.parametrize(
    ("code", "said", "kind", "what"),
    [
        (128, "fatal: write error: No space left on device", EnvironmentFailure, "No space"),
        (128, "error: unable to write file: Read-only file system", EnvironmentFailure, "Read-only"),
        (128, "fatal: Unable to create '/r/.git/x.lock': File exists.", EnvironmentFailure, "git is locked"),
        (-9, "", EnvironmentFailure, "signal 9"),
        (128, "error: object file .git/objects/aa/bb is empty", RepositoryError, "damaged"),
        (128, "error: cannot open '/r/.git/x': Permission denied", RepositoryError, "Permission"),
        (1, "something new", RepositoryError, "something new"),
    ],
)
def test_what_git_says_becomes_an_error_that_the_loop_can_act_on(code: int, said: str, kind: type, what: str) -> None:
    error = Result(("reset",), code, b"", said).failure()
    assert isinstance(error, kind) and what in error.what and error.hint


def test_packing_beside_the_loop_disturbs_neither(root: Path, workspace: GitWorkspace) -> None:
    done = threading.Event()

    def keep_packing() -> None:
        while not done.is_set():
            workspace.pack()

    commits, tip = [], workspace.head()
    with ThreadPoolExecutor() as pool:
        packing = pool.submit(keep_packing)
        try:
            for number in range(1, 41):
                files = {"train.py": f"x = {number}\n"}
                commit = workspace.commit(number=number, parent=tip, files=files, message="try\n", when=WHEN)
                workspace.checkout(0, commit)
                if number % 3 == 0:
                    workspace.advance(tip, commit)
                    tip = commit
                commits.append(commit)
        finally:
            done.set()
        packing.result()
    assert [workspace.read(c, "train.py") for c in commits] == [f"x = {n}\n" for n in range(1, 41)]
    names = [f"refs/autoresearch/night/{n}" for n in range(1, 41)]
    assert git(root, "rev-parse", *names).split("\n") == commits
    assert git(root, "fsck", "--full", "--strict", "--no-dangling") == ""
    assert workspace.confirmed() == tip


def test_a_folder_that_packing_removes_costs_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = '{ echo "error: unable to create temporary file: No such file" >&2; exit 128; }'
    once = f'[ "$1" = unpack-objects ] && [ ! -e {tmp_path}/failed ] && touch {tmp_path}/failed'
    fake_git(tmp_path / "bin", f'{once} && {fails}\nexec {find_git()} "$@"\n', monkeypatch)
    with session(root) as workspace:
        assert edit(workspace) and (tmp_path / "failed").exists()


def test_unreachable_work_of_the_users_survives_packing(root: Path, workspace: GitWorkspace) -> None:
    lost = git(root, "hash-object", "-w", "--stdin", stdin="the user's lost work\n")
    for number in range(1, 30):
        edit(workspace, number, f"x = {number}\n")
        if number % 7 == 0:
            workspace.pack()
    workspace.pack()
    assert git(root, "cat-file", "-p", lost) == "the user's lost work"
    assert int(git(root, "count-objects", "-v").split("packs: ")[1].split()[0]) <= 4


def test_commits_are_those_that_git_itself_would_make(root: Path, workspace: GitWorkspace) -> None:
    commit = workspace.commit(
        number=1, parent=workspace.head(), files={"train.py": "é\n"}, message="subject ü\n\nbody\n", when=WHEN
    )
    told = git(root, "log", "-1", "--format=%an <%ae>|%cn <%ce>|%ad|%cd|%s|%b", "--date=iso-strict", commit)
    who, when = "autoresearchd <autoresearchd@localhost>", "2026-05-06T00:00:00+00:00"
    assert told == "|".join([who, who, when, when, "subject ü", "body"])


# -- what killing daemons and cutting power has found ---------------------------------------------------------------


def test_a_beginning_that_was_killed_is_completed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    fake_git(tmp_path / "bin", SPY.format(record=record, git=find_git()), monkeypatch)
    with session(root) as workspace:
        workspace.begin(workspace.head())
    written = [line.split()[1] for line in record.read_text().splitlines()]
    assert written == ["refs/autoresearch/night/0", "refs/autoresearch/night/tip", "refs/heads/autoresearch/night"]
    for done in (2, 1):
        for name in written[done:]:
            git(root, "update-ref", "-d", name)
        with session(root) as workspace:
            workspace.begin(workspace.head())
            assert workspace.confirmed() == workspace.head() == git(root, "rev-parse", written[1])


@pytest.mark.parametrize("content", [b"", b"\0" * 41, b"\n"])
def test_a_ref_that_a_power_cut_emptied_is_written_again(root: Path, workspace: GitWorkspace, content: bytes) -> None:
    commits = {number: edit(workspace, number, f"x = {number}\n") for number in (1, 2)}
    assert workspace.damaged(commits) == []
    (root / ".git/refs/autoresearch/night/1").write_bytes(content)
    assert workspace.damaged(commits) == [1]
    assert edit(workspace) == commits[1] == git(root, "rev-parse", "refs/autoresearch/night/1")
    assert workspace.damaged(commits) == []


def test_only_a_branch_that_a_power_cut_emptied_is_restored(root: Path, workspace: GitWorkspace) -> None:
    branch, head, mine = root / ".git/refs/heads/autoresearch/night", workspace.head(), edit(workspace)
    branch.write_bytes(b"")
    workspace.restore_branch(head)
    assert workspace.confirmed() == head
    git(root, "update-ref", "refs/heads/autoresearch/night", mine)
    workspace.restore_branch(head)
    assert workspace.confirmed() == mine
    git(root, "update-ref", "-d", "refs/heads/autoresearch/night")
    workspace.restore_branch(head)
    assert git(root, "branch", "--list", "autoresearch/night") == ""


@pytest.mark.parametrize(
    "name", ["refs/heads/autoresearch/night", "refs/autoresearch/night/tip", "refs/autoresearch/night/0"]
)
def test_a_session_cut_off_while_it_began_begins_again(root: Path, workspace: GitWorkspace, name: str) -> None:
    (root / ".git" / name).write_bytes(b"")
    if name.endswith("0"):
        git(root, "update-ref", "-d", "refs/heads/autoresearch/night")
    workspace.begin(workspace.head())
    assert workspace.confirmed() == workspace.head() == git(root, "rev-parse", name)


def test_the_branch_is_flushed_before_it_takes_its_place(workspace: GitWorkspace) -> None:
    assert "reference" in workspace._public.ask("config", "--get", "core.fsync").split(",")


def test_a_lock_from_the_future_is_removed(
    root: Path, workspace: GitWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = edit(workspace, 1)
    lock = root / ".git/refs/heads/autoresearch/night.lock"
    lock.touch()
    os.utime(lock, (time.time() + 9000, time.time() + 9000))
    with pytest.raises(EnvironmentFailure, match="git is locked"):
        workspace.advance(workspace.head(), commit)
    later = time.monotonic() + 11.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    workspace.advance(workspace.head(), commit)
    assert workspace.confirmed() == commit

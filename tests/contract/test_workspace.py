"""What every workspace must do: git at the top of a repository, in a folder of one with an awkward name; the fake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.ports import Workspace
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.repositories import make_repository
from tests.fakes.workspaces import FakeWorkspace

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TRAIN = "learning_rate = 0.1\n"
EDITED = "learning_rate = 0.2\n"
TASK = {"train.py": TRAIN, "prepare.py": "print('prepared')\n"}
PLACES = {"at the top": ("repository", "."), "in a folder": ("my répertoire — 実験", "tasks/tiny model (ü) -x")}


@pytest.fixture(params=[*PLACES, "fake"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    """A workspace whose session has begun; of the task's files only train.py may be edited."""
    if request.param == "fake":
        fake = FakeWorkspace(tmp_path)
        fake.begin(TASK)
        return fake
    name, inner = PLACES[request.param]
    base = make_repository(tmp_path / name, {"README": "top\n", **{f"{inner}/{path}": TASK[path] for path in TASK}})
    made = GitWorkspace(tmp_path / name, "night", task_folder=Path(inner), editable=["train.py"], history="revert")
    made.begin(base)
    return made


@pytest.fixture
def base(workspace: Workspace) -> str:
    """The commit that it began at."""
    return workspace.confirmed()


def edit(workspace: Workspace, base: str, text: str = EDITED, number: int = 1) -> str:
    files, message = {"train.py": text}, f"experiment {number}\n"
    return workspace.commit(number=number, parent=base, files=files, message=message, when=WHEN)


def test_what_is_committed_is_read_back_exactly(workspace: Workspace, base: str) -> None:
    """Line ends and characters of an edit arrive as they were written."""
    for number, text in enumerate(["a\r\nb\n", "no end of line", "", "π = 3\n", "\ufeffx\n"], start=1):
        commit = edit(workspace, base, text, number)
        assert workspace.read(commit, "train.py") == text
        with (workspace.checkout(0, commit) / "train.py").open("rb") as stream:
            assert stream.read() == text.encode()


def test_a_commit_repeated_after_a_crash_is_the_same_commit(workspace: Workspace, base: str) -> None:
    """An experiment that a crash cut off is not there twice."""
    first = edit(workspace, base)
    assert edit(workspace, base) == first
    files, later = {"train.py": EDITED}, WHEN + timedelta(seconds=1)
    assert workspace.commit(number=1, parent=base, files=files, message="experiment 1\n", when=later) != first


@pytest.mark.parametrize(
    "path",
    ["../x.py", "/etc/passwd", ".git/config", ".GIT/config", "a/../train.py", "", ".", "absent.py", "prepare.py"],
)
def test_only_editable_files_of_the_task_are_committed(workspace: Workspace, base: str, path: str) -> None:
    """A proposal cannot write anywhere else, whatever it calls the file."""
    with pytest.raises(RepositoryError):
        workspace.commit(number=1, parent=base, files={path: "x"}, message="m\n", when=WHEN)


def test_a_slot_holds_exactly_the_commit(workspace: Workspace, base: str) -> None:
    """What a job or an earlier experiment left behind never reaches the next run."""
    commit = edit(workspace, base)
    folder = workspace.checkout(0, commit)
    (folder / "train.py").write_text("changed by the job\n")
    (folder / "prepare.py").unlink()
    (folder / "left" / "over").mkdir(parents=True)
    (folder / "left" / "file.pyc").write_text("x")
    assert workspace.checkout(0, base) == folder
    assert (folder / "train.py").read_text() == TRAIN
    assert (folder / "prepare.py").is_file()
    assert not (folder / "left").exists()


def test_slots_are_independent(workspace: Workspace, base: str) -> None:
    """Two runs at once see their own commits."""
    commit = edit(workspace, base)
    first, second = workspace.checkout(0, base), workspace.checkout(1, commit)
    assert (first / "train.py").read_text() == TRAIN
    assert (second / "train.py").read_text() == EDITED


def test_a_keep_moves_the_tip_and_leaves_the_branch(workspace: Workspace, base: str) -> None:
    """What is only believed is not on the branch; a tip that falls goes back, and an unknown commit is none."""
    assert workspace.tip() == workspace.confirmed() == base
    first = edit(workspace, base)
    second = edit(workspace, first, "x = 2\n", 2)
    for commit in (first, first, second, base, second):
        workspace.move_tip(commit)
        assert (workspace.tip(), workspace.confirmed()) == (commit, base)
    with pytest.raises(RepositoryError):
        workspace.move_tip("f" * 40)
    assert workspace.tip() == second


def test_a_confirmation_moves_the_branch_once(workspace: Workspace, base: str) -> None:
    """One that is carried out again after a crash changes nothing, and the tip stays where it is."""
    first = edit(workspace, base)
    second = edit(workspace, first, "x = 2\n", 2)
    workspace.move_tip(second)
    workspace.advance(base, first)
    workspace.advance(base, first)
    assert (workspace.confirmed(), workspace.tip()) == (first, second)


def test_a_branch_that_somebody_moved_is_not_overwritten(workspace: Workspace, base: str) -> None:
    """The user's own commits on the branch are safe, and the message names both places."""
    mine, theirs = edit(workspace, base), edit(workspace, base, "theirs\n", 2)
    workspace.advance(base, theirs)
    with pytest.raises(RepositoryError) as caught:
        workspace.advance(base, mine)
    assert theirs in str(caught.value) and base in str(caught.value)
    assert workspace.confirmed() == theirs


def test_a_diff_shows_the_edit_of_an_experiment(workspace: Workspace, base: str) -> None:
    """Every diff ever tried can be shown."""
    diff = workspace.diff(base, edit(workspace, base))
    assert "-learning_rate = 0.1" in diff and "+learning_rate = 0.2" in diff and "a/train.py" in diff
    assert workspace.diff(base, base) == ""


def test_a_recorded_discard_leaves_the_files_of_the_tip(workspace: Workspace, base: str) -> None:
    """With history: revert, discards are on record and the tip still is the best program; once each."""
    tip = workspace.confirmed()
    for number in (1, 2, 3):
        commit = edit(workspace, tip, f"x = {number}\n", number)
        after = workspace.record_discard(number=number, commit=commit, incumbent=base, when=WHEN)
        assert workspace.record_discard(number=number, commit=commit, incumbent=base, when=WHEN) == after
        assert workspace.tip() == after != tip
        assert workspace.diff(base, after) == ""
        tip = after
    assert workspace.confirmed() == base, "nothing of it is confirmed yet"


def test_a_chain_that_falls_is_on_record_with_the_way_back(workspace: Workspace, base: str) -> None:
    """With history: revert, each fall is one commit with the files of the confirmed program; once each."""
    tip = base
    for number in (1, 2):
        kept = edit(workspace, tip, f"x = {number}\n", number)
        workspace.move_tip(kept)
        tip = workspace.fall_back(base, 0, WHEN)
        assert workspace.fall_back(base, 0, WHEN) == tip == workspace.tip()
        assert workspace.parent(tip) == kept and workspace.diff(base, tip) == ""
    assert workspace.confirmed() == base
    kept = edit(workspace, tip, "x = 3\n", 3)
    workspace.move_tip(kept)
    workspace.advance(base, kept)
    assert workspace.confirmed() == kept, "what is confirmed brings the record along"


def test_a_discard_after_a_fall_leaves_the_confirmed_files(workspace: Workspace, base: str) -> None:
    """With history: revert, the record goes on after a chain fell."""
    workspace.move_tip(edit(workspace, base))
    tip = workspace.fall_back(base, 0, WHEN)
    tried = edit(workspace, tip, "x = 2\n", 2)
    after = workspace.record_discard(number=2, commit=tried, incumbent=tip, when=WHEN)
    assert workspace.record_discard(number=2, commit=tried, incumbent=tip, when=WHEN) == after == workspace.tip()
    assert workspace.parent(workspace.parent(after)) == tip and workspace.diff(base, after) == ""


def test_unknown_commits_are_refused_in_words(workspace: Workspace, base: str) -> None:
    """A commit that is not there is an error that says so, not a crash."""
    for wrong in ("f" * 40, "--all", "HEAD", "", base.upper()):
        with pytest.raises(RepositoryError):
            workspace.read(wrong, "train.py")
        with pytest.raises(RepositoryError):
            workspace.checkout(0, wrong)
    with pytest.raises(RepositoryError):
        workspace.read(base, "absent.py")

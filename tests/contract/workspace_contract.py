"""What every ``ports.Workspace`` must do. Subclass ``WorkspaceContract`` in a test module and say how to make one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.ports import Workspace

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TRAIN = "learning_rate = 0.1\n"
EDITED = "learning_rate = 0.2\n"


class WorkspaceContract:
    """The suite. The task has ``train.py`` (editable, holding TRAIN) and ``prepare.py`` (not editable)."""

    def make(self, folder: Path, history: str = "refs") -> tuple[Workspace, str]:
        """A workspace whose session has begun, and the commit that it began at."""
        raise NotImplementedError

    def _edit(self, workspace: Workspace, base: str, text: str = EDITED, number: int = 1) -> str:
        return workspace.commit(
            number=number, parent=base, files={"train.py": text}, message=f"experiment {number}\n", when=WHEN
        )

    def test_what_is_committed_is_read_back_exactly(self, tmp_path: Path) -> None:
        """Line ends and characters of an edit arrive as they were written."""
        workspace, base = self.make(tmp_path)
        for number, text in enumerate(["a\r\nb\n", "no end of line", "", "π = 3\n", "\ufeffx\n"], start=1):
            commit = self._edit(workspace, base, text, number)
            assert workspace.read(commit, "train.py") == text
            with (workspace.checkout(0, commit) / "train.py").open("rb") as stream:
                assert stream.read() == text.encode()

    def test_a_commit_repeated_after_a_crash_is_the_same_commit(self, tmp_path: Path) -> None:
        """An experiment that a crash cut off is not there twice."""
        workspace, base = self.make(tmp_path)
        first = self._edit(workspace, base)
        assert self._edit(workspace, base) == first
        files, later = {"train.py": EDITED}, WHEN + timedelta(seconds=1)
        assert workspace.commit(number=1, parent=base, files=files, message="experiment 1\n", when=later) != first

    @pytest.mark.parametrize(
        "path",
        ["../x.py", "/etc/passwd", ".git/config", ".GIT/config", "a/../train.py", "", ".", "absent.py", "prepare.py"],
    )
    def test_only_editable_files_of_the_task_are_committed(self, tmp_path: Path, path: str) -> None:
        """A proposal cannot write anywhere else, whatever it calls the file."""
        workspace, base = self.make(tmp_path)
        with pytest.raises(RepositoryError):
            workspace.commit(number=1, parent=base, files={path: "x"}, message="m\n", when=WHEN)

    def test_a_slot_holds_exactly_the_commit(self, tmp_path: Path) -> None:
        """What a job or an earlier experiment left behind never reaches the next run."""
        workspace, base = self.make(tmp_path)
        commit = self._edit(workspace, base)
        folder = workspace.checkout(0, commit)
        (folder / "train.py").write_text("changed by the job\n")
        (folder / "prepare.py").unlink()
        (folder / "left" / "over").mkdir(parents=True)
        (folder / "left" / "file.pyc").write_text("x")
        assert workspace.checkout(0, base) == folder
        assert (folder / "train.py").read_text() == TRAIN
        assert (folder / "prepare.py").is_file()
        assert not (folder / "left").exists()

    def test_slots_are_independent(self, tmp_path: Path) -> None:
        """Two runs at once see their own commits."""
        workspace, base = self.make(tmp_path)
        commit = self._edit(workspace, base)
        first, second = workspace.checkout(0, base), workspace.checkout(1, commit)
        assert (first / "train.py").read_text() == TRAIN
        assert (second / "train.py").read_text() == EDITED

    def test_a_keep_moves_the_branch_once(self, tmp_path: Path) -> None:
        """A keep that is carried out again after a crash changes nothing."""
        workspace, base = self.make(tmp_path)
        commit = self._edit(workspace, base)
        workspace.advance(base, commit)
        workspace.advance(base, commit)
        assert workspace.tip() == commit

    def test_a_branch_that_somebody_moved_is_not_overwritten(self, tmp_path: Path) -> None:
        """The user's own commits on the branch are safe, and the message names both places."""
        workspace, base = self.make(tmp_path)
        mine, theirs = self._edit(workspace, base), self._edit(workspace, base, "theirs\n", 2)
        workspace.advance(base, theirs)
        with pytest.raises(RepositoryError) as caught:
            workspace.advance(base, mine)
        assert theirs in str(caught.value) and base in str(caught.value)
        assert workspace.tip() == theirs

    def test_a_diff_shows_the_edit_of_an_experiment(self, tmp_path: Path) -> None:
        """Every diff ever tried can be shown."""
        workspace, base = self.make(tmp_path)
        diff = workspace.diff(base, self._edit(workspace, base))
        assert "-learning_rate = 0.1" in diff and "+learning_rate = 0.2" in diff and "a/train.py" in diff
        assert workspace.diff(base, base) == ""

    def test_a_discard_on_the_branch_leaves_the_files_of_the_incumbent(self, tmp_path: Path) -> None:
        """With history: revert, discards are on record and the branch still is the best program; once each."""
        workspace, base = self.make(tmp_path, "revert")
        tip = workspace.tip()
        for number in (1, 2, 3):
            commit = self._edit(workspace, tip, f"x = {number}\n", number)
            after = workspace.record_discard(number=number, commit=commit, incumbent=base, when=WHEN)
            assert workspace.record_discard(number=number, commit=commit, incumbent=base, when=WHEN) == after
            assert workspace.tip() == after != tip
            assert workspace.diff(base, after) == ""
            tip = after

    def test_unknown_commits_are_refused_in_words(self, tmp_path: Path) -> None:
        """A commit that is not there is an error that says so, not a crash."""
        workspace, base = self.make(tmp_path)
        for wrong in ("f" * 40, "--all", "HEAD", "", base.upper()):
            with pytest.raises(RepositoryError):
                workspace.read(wrong, "train.py")
            with pytest.raises(RepositoryError):
                workspace.checkout(0, wrong)
        with pytest.raises(RepositoryError):
            workspace.read(base, "absent.py")

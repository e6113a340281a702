"""Files of Git LFS: the commit has pointers, runs get the files, and what is not there is told with what brings it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.app.tasks.check_task import Extent, check_held
from autoresearchd.app.tasks.task_folder import with_large_files
from autoresearchd.config import load_task
from autoresearchd.domain.errors import RepositoryError
from autoresearchd.executor.visible_files import find_data, place_links
from autoresearchd.workspace import preflight
from tests.fakes.repositories import git, make_repository, write_files
from tests.integration.bench import session

PROGRAM = """\
import os
try:
    seen = open("data/val.bin").read()
except OSError:
    seen = ""
with open(os.path.join(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "said.txt"), "w") as file:
    file.write(open("data/train.bin").read() + ("" if "4" not in seen else " and the answer"))
"""
SCORER = """\
import os
true = float(open("data/val.bin").read())
said = float(open(os.path.join(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "said.txt")).read())
print(f"METRIC miss={abs(said - true)}")
"""
TASK = """\
name: large
workspace: {target_file: train.py, protected: [evaluate.py]}
execution: {run_command: python -S train.py, budget: 20, startup_grace: 5}
evaluation: {command: python -S evaluate.py, private: [data/val.bin]}
scoring: {metric: miss, direction: minimize}
"""
LARGE = {"data/train.bin": b"3.0", "data/val.bin": b"4.5"}


def pointer(content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository as git-lfs leaves it: pointers in the commit, the files in the checkout."""
    folder = tmp_path / "large"
    attributes = "*.bin filter=lfs -text\n"
    files = {"train.py": PROGRAM, "evaluate.py": SCORER, "task.yaml": TASK, ".gitattributes": attributes}
    make_repository(folder, {**files, "README": pointer(b"").replace("version", "A pointer:\nversion")})
    for name, content in LARGE.items():
        blob = git(folder, "hash-object", "-w", "--stdin", stdin=pointer(content))
        git(folder, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    git(folder, "commit", "--quiet", "-m", "large files")
    write_files(folder, LARGE)
    return folder


def test_runs_read_the_files_and_only_the_evaluation_the_private_one(root: Path) -> None:
    """Else a program trains on the 130 bytes of a pointer, or fails on them; and a job must not get the answers."""
    checked = check_held(root, extent=Extent(runs=1))
    assert checked.values == (1.5,)
    assert any("pointers of Git LFS in place of data/train.bin: runs read your files" in note for note in checked.notes)


def test_the_checkout_counts_as_committed_and_a_changed_file_does_not(root: Path) -> None:
    """Without LFS's own filter git takes every such file for a modified one, and no session could begin."""
    preflight.check_repository(root)
    assert preflight.uncommitted(root, root) == []
    write_files(root, {"data/train.bin": "9.9"})
    with pytest.raises(RepositoryError, match=r"data/train\.bin"):
        preflight.check_repository(root)


def test_what_was_not_fetched_is_told_with_what_brings_it(root: Path) -> None:
    task = load_task(root)
    write_files(root, {"data/train.bin": pointer(b"3.0")})
    same, notes = with_large_files(task, root, root)
    assert same == task and len(notes) == 1
    assert "data/train.bin" in notes[0] and "git lfs pull" in notes[0]
    (root / "data/val.bin").unlink()
    with pytest.raises(RepositoryError, match=r"data/val\.bin") as caught:
        with_large_files(task, root, root)
    assert caught.value.hint == "git lfs pull"


def test_a_folder_that_is_named_is_the_users_and_not_the_copy_of_the_commit(root: Path, tmp_path: Path) -> None:
    """Set-up leaves a copy of the commit, which is looked in first, and has the pointers."""
    task = replace(load_task(root), data=("data",))
    assert with_large_files(task, root, root) == (task, ())
    with session(root, keep=["data"]) as workspace:
        base = workspace.head()
        workspace.materialise(base, tmp_path / "setup")
        data = find_data(task.data, (tmp_path / "setup", root), "workspace.data")
        for folder in (workspace.checkout(0, base), workspace.pristine(base)):
            assert (folder / "data/train.bin").read_text() == pointer(b"3.0")
            place_links(folder, data)
            assert (folder / "data/train.bin").read_bytes() == b"3.0"
        # another session of the task looks at the same export, while this one's evaluation reads through it
        assert (workspace.pristine(base) / "data/train.bin").read_bytes() == b"3.0"
        place_links(workspace.checkout(0, base), data)
    assert (root / "data/train.bin").read_bytes() == b"3.0" and not (root / "data/train.bin").is_symlink()

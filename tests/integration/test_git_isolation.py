"""A session never touches what is the user's, and runs no program that a repository or a commit names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.repositories import FILES, checkout_snapshot, commit_all, git, make_repository, write_files
from tests.integration.bench import session

WHEN = datetime(2026, 5, 6, tzinfo=UTC)
HOOKS = (
    "reference-transaction", "post-checkout", "pre-commit", "commit-msg", "post-commit", "prepare-commit-msg",
    "post-index-change", "post-rewrite", "pre-auto-gc", "update", "post-update",
)  # fmt: skip
PROGRAM_KEYS = (
    "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "diff.evil.command",
    "core.fsmonitor", "core.editor", "core.pager", "core.sshCommand", "core.askPass", "gpg.program",
    "diff.external", "credential.helper", "core.alternateRefsCommand", "uploadpack.packObjectsHook",
    "sequence.editor", "core.gitProxy", "alias.reset", "alias.update-ref",
)  # fmt: skip
ATTRIBUTES = "* filter=evil diff=evil ident text eol=crlf working-tree-encoding=UTF-16\n"
LF = "# two\n# lines\nx = '$Id$'\n"


@pytest.fixture
def workspace(root: Path) -> Iterator[GitWorkspace]:
    with session(root) as workspace:
        yield workspace


def whole_session(workspace: GitWorkspace, copies: Path) -> list[str]:
    """Everything that a session does: begin, keeps, discards, exports, packing, abandoning its worktrees."""
    base = workspace.head()
    preflight.check_repository(workspace.root)
    preflight.check_tag(workspace.root, workspace.tag)
    workspace.begin(base)
    tip, commits = base, [base]
    for number in range(1, 5):
        text, message = f"learning_rate = 0.{number}\n{LF}", f"try {number}\n"
        commit = workspace.commit(number=number, parent=tip, files={"train.py": text}, message=message, when=WHEN)
        folder = workspace.checkout(0, commit)
        assert (folder / "train.py").read_bytes() == text.encode()
        (folder / "output.bin").write_bytes(b"x")
        if number % 2:
            workspace.advance(tip, commit)
            tip = commit
        else:
            workspace.checkout(0, tip)
        assert workspace.diff(base, commit)
        commits.append(commit)
    workspace.pristine(base)
    workspace.materialise(tip, copies / "copy")
    workspace.pack()
    preflight.check_not_checked_out(workspace.root, workspace.branch)
    return commits


def test_the_users_checkout_stays_byte_for_byte(root: Path, workspace: GitWorkspace, tmp_path: Path) -> None:
    write_files(root, {"train.py": "stashed = True\n"})
    git(root, "stash")
    write_files(root, {"notes.txt": "untracked\n", "deep/er/data.bin": b"\0\1"})
    (root / "link").symlink_to("train.py")
    git(root, "status")
    preflight.exclude(root)
    before = checkout_snapshot(root)
    whole_session(workspace, tmp_path)
    assert checkout_snapshot(root) == before
    assert git(root, "fsck", "--full", "--strict") == ""
    assert git(root, "worktree", "list").count("\n") == 0
    assert git(root, "stash", "show", "-p")


def test_the_session_folder_is_hidden_from_the_users_status(root: Path, workspace: GitWorkspace) -> None:
    write_files(root, {".git/info/exclude": "*.swp"})
    workspace.begin(workspace.head())
    workspace.begin(workspace.head())
    write_files(root, {".autoresearchd/daemon.log": "x"})
    assert git(root, "status", "--porcelain") == ""
    assert (root / ".git/info/exclude").read_text() == "*.swp\n.autoresearchd/\n"


def plant_programs(root: Path, canary: Path) -> None:
    """Name a program everywhere where git would run one: it writes a canary."""
    program, hooks = canary.with_name("program.sh"), canary.with_name("hooks")
    for path in (program, *(folder / hook for folder in (hooks, root / ".git/hooks") for hook in HOOKS)):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{canary}'\ncat\n")
        path.chmod(0o755)
    write_files(root, {".git/info/attributes": ATTRIBUTES})
    for key in PROGRAM_KEYS:
        git(root, "config", key, f"!{program}" if key.startswith("alias") else str(program))
    for key in ("filter.evil.required", "commit.gpgSign", "core.autocrlf"):
        git(root, "config", key, "true")
    for key in ("core.hooksPath", "init.templateDir"):
        git(root, "config", key, str(hooks))


def test_no_program_of_the_users_ever_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(root, {".gitattributes": f"*.py{ATTRIBUTES[1:]}"})
    git(root, "add", "--", ".gitattributes")
    git(root, "commit", "--quiet", "-m", "attributes")
    canary = tmp_path / "canary"
    plant_programs(root, canary)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(tmp_path / "hooks"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_files(tmp_path / "home", {".gitconfig": f"[core]\n\tfsmonitor = {tmp_path / 'program.sh'}\n"})
    with session(root) as workspace:
        whole_session(workspace, tmp_path)
    assert not canary.exists(), canary.read_text()
    git(root, "status", check=False)
    git(root, "branch", "another", check=False)
    assert canary.exists(), "the programs were not planted where git runs them, so the test shows nothing"


def test_variables_do_not_lead_git_astray(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    make_repository(other, {"a": "b"})
    before = checkout_snapshot(other)
    astray = {
        "DIR": other / ".git", "WORK_TREE": other, "INDEX_FILE": other / ".git/index", "COMMON_DIR": other / ".git",
        "OBJECT_DIRECTORY": other / ".git/objects", "ALTERNATE_OBJECT_DIRECTORIES": other, "NAMESPACE": "elsewhere",
        "CONFIG_PARAMETERS": "'core.bare=true'", "CONFIG_COUNT": "1", "CONFIG_KEY_0": "core.bare",
        "CONFIG_VALUE_0": "true", "CEILING_DIRECTORIES": root.parent,
    }  # fmt: skip
    with monkeypatch.context() as patch:
        for name, value in astray.items():
            patch.setenv(f"GIT_{name}", str(value))
        with session(root) as workspace:
            commits = whole_session(workspace, tmp_path)
        assert layout.state_dir(root) == root / ".git" / "autoresearchd"
    assert git(root, "rev-parse", "refs/autoresearch/night/4") == commits[4]
    assert checkout_snapshot(other) == before


def test_an_edit_through_a_symbolic_link_is_refused(root: Path) -> None:
    (root / "link.py").symlink_to("prepare.py")
    (root / "folder").symlink_to("lib")
    base = commit_all(root)
    paths = ("link.py", "folder/model.py", "lib")
    with session(root, *paths) as workspace:
        for path in paths:
            with pytest.raises(RepositoryError):
                workspace.commit(number=1, parent=base, files={path: "x"}, message="m", when=WHEN)
        with pytest.raises(RepositoryError, match="regular"):
            workspace.read(base, "link.py")


PATHS = (
    "../x", "/x", "a//b", "a/./b", ".git/x", ".Git/x", "a/.GIT", "git~1/x", ".git /x", ".g\u200cit/x", "a\\b", "a\0b",
    "",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_task_cannot_make_a_path_outside_its_folder_editable(root: Path, path: str) -> None:
    with pytest.raises(RepositoryError):
        session(root, path)


def test_a_task_folder_outside_the_repository_or_behind_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "elsewhere").symlink_to(tmp_path)
    for folder in (tmp_path, root / "elsewhere"):
        with pytest.raises(RepositoryError):
            GitWorkspace(root, "night", task_folder=folder, editable=["train.py"])


def test_a_link_in_a_worktree_is_not_written_through(root: Path, workspace: GitWorkspace, tmp_path: Path) -> None:
    base = workspace.head()
    folder = workspace.checkout(0, base)
    precious = tmp_path / "precious"
    write_files(precious, {"lib/model.py": "mine\n", "mine.txt": "mine\n"})
    shutil.rmtree(folder / "lib")
    (folder / "lib").symlink_to(precious / "lib")
    (folder / "untracked").symlink_to(precious)
    workspace.checkout(0, base)
    assert not (folder / "lib").is_symlink() and not (folder / "untracked").exists()
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.symlink_to(precious)
    assert not workspace.checkout(0, base).is_symlink()
    assert (precious / "lib/model.py").read_text() == "mine\n" and (precious / "mine.txt").exists()


def test_data_links_and_mount_points_stay_while_all_else_untracked_goes(root: Path, tmp_path: Path) -> None:
    with session(root, keep=["data/train.bin", "lib/cache", "/absolute", "~/home"]) as workspace:
        base = workspace.head()
        for folder in (workspace.checkout(0, base), workspace.pristine(base)):
            (folder / "data" / "other").mkdir(parents=True)
            (folder / "data" / "train.bin").symlink_to(tmp_path)
            (folder / "lib" / "cache").touch()
            (folder / "lib" / "strange").touch()
        for folder in (workspace.checkout(0, base), workspace.pristine(base)):
            assert (folder / "data" / "train.bin").is_symlink() and (folder / "lib" / "cache").exists()
            assert not (folder / "data" / "other").exists() and not (folder / "lib" / "strange").exists()
            (folder / "lib" / "cache").write_text("smuggled")
        for folder in (workspace.checkout(0, base), workspace.pristine(base)):
            assert not (folder / "lib" / "cache").exists()


def test_a_pristine_file_that_a_job_altered_is_restored(root: Path, workspace: GitWorkspace) -> None:
    base = workspace.head()
    folder = workspace.pristine(base)
    assert (folder / "prepare.py").stat().st_mode & 0o222 == 0
    stamp = (folder / "prepare.py").stat()
    (folder / "prepare.py").chmod(0o644)
    (folder / "prepare.py").write_text("print('cheated!')\n")
    os.utime(folder / "prepare.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (folder / "lib" / "__pycache__").mkdir()
    (folder / "lib" / "model.py").unlink()
    (folder / "lib" / "model.py").symlink_to("/dev/null")
    assert workspace.pristine(base) == folder
    assert (folder / "prepare.py").read_text() == FILES["prepare.py"]
    assert (folder / "lib" / "model.py").read_text() == FILES["lib/model.py"]
    assert not (folder / "lib" / "__pycache__").exists()


def test_names_that_are_not_text_and_executables_survive_an_experiment(root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9.txt")).write_text("latin\n")
    write_files(root, {"run.sh": "#!/bin/sh\n"})
    (root / "run.sh").chmod(0o755)
    base = commit_all(root)
    with session(root) as workspace:
        workspace.begin(base)
        commit = workspace.commit(number=1, parent=base, files={"train.py": "x\n"}, message="m\n", when=WHEN)
        folder = workspace.checkout(0, commit)
        assert git(root, "diff", "--name-only", base, commit) == "train.py"
        assert (folder / os.fsdecode(b"caf\xe9.txt")).read_text() == "latin\n" and os.access(folder / "run.sh", os.X_OK)
        assert git(root, "fsck", "--strict") == ""


def test_a_linked_worktree_of_the_users_shares_the_state_with_its_repository(root: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "--quiet", "-b", "other", str(linked))
    assert layout.find_root(linked / "lib") == linked
    assert layout.state_dir(linked) == layout.state_dir(root) == root / ".git" / "autoresearchd"
    preflight.check_repository(linked)
    before = checkout_snapshot(root)
    with session(linked) as workspace:
        whole_session(workspace, tmp_path)
    after = checkout_snapshot(root)
    assert {name for name in {*before, *after} if before.get(name) != after.get(name) and "info" not in name} == set()

"""A run sees the files of submodules as they are pinned, wherever their objects lie, and cannot reach the submodule."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.loop.measuring.advice import hint_job
from autoresearchd.workspace import preflight
from tests.fakes.repositories import checkout_snapshot, commit_all, git, make_repository, write_files
from tests.integration.bench import session

WHEN = datetime(2026, 5, 6, tzinfo=UTC)
ALLOW = ("-c", "protocol.file.allow=always")
INNER = {"deep.py": "DEEP = 1\n"}
LIBRARY = {"model.py": "WIDTH = 64\n", "bin/tool.sh": "#!/bin/sh\n", "pkg/data.txt": "a\n"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a submodule below a folder, in which there is another; both checked out."""
    place = tmp_path_factory.mktemp("made")
    make_repository(place / "inner", INNER)
    make_repository(place / "library", LIBRARY)
    (place / "library" / "bin" / "tool.sh").chmod(0o755)
    (place / "library" / "model").symlink_to("model.py")
    git(place / "library", *ALLOW, "submodule", "--quiet", "add", "../inner", "nested")
    commit_all(place / "library")
    top = place / "repository"
    make_repository(top)
    git(top, *ALLOW, "submodule", "--quiet", "add", "../library", "lib/library")
    git(top, *ALLOW, "submodule", "--quiet", "update", "--init", "--recursive")
    commit_all(top, "with a submodule")
    return top


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of its own; lists of paths in git's environment have colons between them."""
    return Path(shutil.copytree(made, tmp_path / "re:pository", symlinks=True))


def contents(folder: Path, skipped: tuple[str, ...] = ()) -> dict[str, str]:
    """Every file and empty folder with its content; git's own file at the top left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part in skipped for part in path.relative_to(folder).parts):
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = f"{bool(path.stat().st_mode & 0o100)} {path.read_text()}"
        elif not any(path.iterdir()):
            found[name] = "empty"
    found.pop(".git", None)
    return found


def as_user_sees(root: Path) -> dict[str, str]:
    return contents(root, (".git", ".autoresearchd"))


@pytest.mark.parametrize("checked_out", [True, False])
def test_a_run_sees_the_files_that_are_pinned(root: Path, tmp_path: Path, checked_out: bool) -> None:
    """Else a program that imports from its submodule fails in every run, its baseline included."""
    expected = as_user_sees(root)
    assert expected["lib/library/nested/deep.py"] == "False DEEP = 1\n"
    assert expected["lib/library/bin/tool.sh"].startswith("True") and expected["lib/library/model"] == "-> model.py"
    if not checked_out:
        git(root, "submodule", "--quiet", "deinit", "--all", "--force")
        assert not any((root / "lib/library").iterdir())
    with session(root) as workspace:
        base = workspace.head()
        assert preflight.absent_submodules(root, root) == []
        workspace.check_tracked(base, ["train.py"])
        assert contents(workspace.checkout(0, base)) == expected
        assert contents(workspace.pristine(base)) == expected
        workspace.materialise(base, tmp_path / "copy")
        assert contents(tmp_path / "copy") == expected
        assert os.access(tmp_path / "copy/lib/library/model.py", os.W_OK)
        assert workspace.read(base, "lib/library/nested/deep.py") == "DEEP = 1\n"


def test_the_pinned_commit_counts_and_not_what_is_checked_out(root: Path) -> None:
    expected = as_user_sees(root)
    write_files(root / "lib/library", {"model.py": "WIDTH = 99\n"})
    commit_all(root / "lib/library")
    with pytest.raises(RepositoryError, match="lib/library"):
        preflight.check_repository(root)
    with session(root) as workspace:
        assert contents(workspace.checkout(0, workspace.head())) == expected


def test_a_file_modified_in_a_submodule_is_told_before_a_session(root: Path) -> None:
    """Its user would take the session's baseline for that of the changed library."""
    write_files(root / "lib/library", {"nested/deep.py": "DEEP = 2\n"})
    before = checkout_snapshot(root)
    with pytest.raises(RepositoryError, match=r"lib/library/nested/deep\.py") as caught:
        preflight.check_repository(root)
    assert "in the submodule" in caught.value.hint and checkout_snapshot(root) == before
    preflight.check_repository(root, modified=True)


def test_experiments_touch_the_editable_file_alone_and_runs_stay_equal(root: Path, tmp_path: Path) -> None:
    """A kept commit that lost the submodule's entry could not be merged; a job's leavings must not reach the next."""
    before, expected = checkout_snapshot(root), as_user_sees(root)
    pinned = git(root, "rev-parse", "HEAD:lib/library")
    for number in range(1, 5):
        with session(root, history="revert") as workspace:  # as after a crash, nothing is remembered
            base = workspace.head()
            if number == 1:
                workspace.begin(base)
            tip, text = workspace.tip(), f"learning_rate = 0.{number}\n"
            commit = workspace.commit(
                number=number, parent=tip, files={"train.py": text}, message=f"try {number}\n", when=WHEN
            )
            assert git(root, "diff", "--name-only", tip, commit) == "train.py"
            assert git(root, "rev-parse", f"{commit}:lib/library") == pinned
            workspace.checkout(0, tip)
            folder = workspace.checkout(0, commit)  # only what differs is written
            assert contents(folder) == {**expected, "train.py": f"False {text}"}
            assert git(folder, "status", "--porcelain", "--ignored") == ""
            library, pristine = folder / "lib/library", workspace.pristine(commit) / "lib/library"
            (library / "nested" / ".git").write_text("gitdir: /tmp/elsewhere")
            (library / "model").unlink()
            if number == 2:
                shutil.rmtree(library / "nested")
                (library / "nested").symlink_to(root)
            for place in (pristine / "model.py", pristine):
                place.chmod(0o755)
            write_files(library, {"model.py": "WIDTH = 1\n", "pkg/left.txt": "a message to the next run"})
            write_files(pristine, {"model.py": "WIDTH = 2\n", "left.txt": "a message to the evaluation"})
            assert contents(workspace.pristine(commit)) == {**expected, "train.py": f"False {text}"}
            if number % 2:  # else the leavings are for the next process
                assert contents(workspace.checkout(0, commit)) == {**expected, "train.py": f"False {text}"}
                workspace.move_tip(commit)
            else:
                workspace.record_discard(number=number, commit=commit, incumbent=tip, when=WHEN)
            assert git(root, "diff", "--name-only", base, workspace.tip()) == "train.py"
    after = checkout_snapshot(root)
    assert after == {**before, ".git/info": after[".git/info"], ".git/info/exclude": after[".git/info/exclude"]}
    assert git(root / "lib/library", "status", "--porcelain") == ""


def test_a_submodule_without_its_objects_is_named(root: Path) -> None:
    """Runs see an empty folder there; the baseline's ImportError would not say why."""
    shutil.rmtree(root / ".git/modules/lib/library/modules")
    with session(root) as workspace:
        base = workspace.head()
        assert preflight.absent_submodules(root, root) == ["lib/library/nested"]
        with pytest.raises(RepositoryError, match="lib/library/nested") as caught:
            workspace.check_tracked(base, ["lib/library/nested/deep.py"])
        assert caught.value.hint == "git submodule update --init --recursive"
        for get in (lambda: workspace.checkout(0, base), lambda: workspace.pristine(base)):
            library = get() / "lib/library"
            assert (library / "model.py").is_file() and not any((library / "nested").iterdir())
            (library / "nested/left.txt").write_text("a message to the next run, or to the evaluation")
            assert not any((get() / "lib/library/nested").iterdir())
    shutil.rmtree(root / ".git/modules")
    with session(root) as workspace:
        assert preflight.absent_submodules(root, root) == ["lib/library"]
        assert not any((workspace.checkout(0, base) / "lib/library").iterdir())
        with pytest.raises(RepositoryError, match="submodule lib/library, whose pinned"):
            workspace.check_tracked(base, ["lib/library"])


@pytest.mark.parametrize("words", ["ModuleNotFoundError: No module named 'deep'", "No such file or directory: 'a/b'"])
def test_a_run_that_failed_without_submodules_is_told_to_fetch_them(root: Path, tmp_path: Path, words: str) -> None:
    """Else the user installs a package of that name."""
    assert "submodule" not in hint_job(f"training exited with 1: {words} (train.py:3)", root, root)
    git(tmp_path, "clone", "--quiet", str(root), "clone")
    hint = hint_job(f"training exited with 1: {words} (train.py:3)", tmp_path / "clone", tmp_path / "clone")
    assert hint.startswith("git submodule update --init --recursive: the files of lib/library are not on this machine")
    assert ("install it there" in hint) == ("Module" in words), "what else it may be comes after"
    assert not hint_job("ZeroDivisionError: division by zero", tmp_path / "clone", tmp_path / "clone")


def test_a_file_of_a_submodule_cannot_be_the_editable_one(root: Path) -> None:
    with (
        session(root, "lib/library/model.py") as workspace,
        pytest.raises(RepositoryError, match=r"lib/library/model\.py is in the submodule lib/library") as caught,
    ):
        workspace.check_tracked(workspace.head(), ["lib/library/model.py"])
    assert "submodule's own repository" in caught.value.hint


def test_a_submodule_protects_as_a_folder_does(root: Path) -> None:
    with session(root) as workspace:
        base = workspace.head()
        workspace.check_tracked(base, ["lib/library", "lib/library/model.py"])
        first = workspace.fingerprint(base, ["lib/library"])
        write_files(root / "lib/library", {"model.py": "WIDTH = 99\n"})
        commit_all(root / "lib/library")
        assert workspace.fingerprint(commit_all(root), ["lib/library"]) != first


@pytest.mark.parametrize("name", [b"..", b".GIT", b"a/b"])
def test_a_submodules_tree_with_a_name_that_leads_out_is_refused(root: Path, name: bytes) -> None:
    """Somebody else's library would write over the user's files, which git itself would not let it."""
    library = root / "lib/library"
    blob = git(library, "hash-object", "-w", "--stdin", stdin="evil\n")
    row = b"100644 " + name + b"\0" + bytes.fromhex(blob)
    (root / "tree").write_bytes(row)
    tree = git(library, "hash-object", "-w", "-t", "tree", "--literally", str(root / "tree"))
    (root / "tree").unlink()
    commit = git(library, "commit-tree", tree, "-m", "evil")
    git(root, "update-index", "--cacheinfo", f"160000,{commit},lib/library")
    git(root, "commit", "--quiet", "-m", "pinned")
    with session(root) as workspace:
        base = workspace.head()
        for doing in (lambda: workspace.checkout(0, base), lambda: workspace.pristine(base)):
            with pytest.raises(RepositoryError, match="name that git does not check out"):
                doing()

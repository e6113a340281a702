"""What must hold of a repository before anything is changed in it (checks only read), and the making of a new one."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from autoresearchd.domain.errors import MissingCapability, RepositoryError
from autoresearchd.domain.file_content import LARGEST, pointed_to
from autoresearchd.domain.quantities import some_of
from autoresearchd.workspace.command import ADDRESS, IDENTITY, OLDEST, SETTINGS, Git, find_git, surroundings
from autoresearchd.workspace.files import disk_errors, remove_tree
from autoresearchd.workspace.layout import BRANCHES, PUBLIC, branch_name, common_dir, find_root, git_dir, require_tag
from autoresearchd.workspace.objects import ObjectStore, checked_out, object_databases

_IN_PROGRESS = {
    "MERGE_HEAD": "merge", "rebase-merge": "rebase", "rebase-apply": "rebase", "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert", "BISECT_LOG": "bisect",
}  # fmt: skip


def require_git() -> str:
    """Path of a git that is new enough; MissingCapability otherwise."""
    program = find_git()
    with disk_errors("running git"):
        said = subprocess.run([program, "version"], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise MissingCapability(
            f"{program} is {said.strip() or 'no git'}: too old", hint=f"install git {needed} or newer"
        )
    return program


def check_repository(root: Path, *, modified: bool = False) -> None:
    """Refuse a repository that a session cannot begin in. modified: files that are not as committed may be there."""
    program = require_git()
    top = find_root(root)
    check_owner(program, top)
    git = _plain(program, top)
    if git.ask("rev-parse", "--show-object-format") != "sha1":
        raise RepositoryError(f"{top} uses SHA-256 object names", hint="use a repository with SHA-1 object names")
    if not git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").ok:
        how = "commit the task's files: git add -A && git commit -m 'my task'"
        raise RepositoryError(f"{top} has no commits yet", hint=how)
    for name, what in _IN_PROGRESS.items():
        if (git.directory / name).exists():
            what = "am" if (git.directory / name / "applying").exists() else what
            how = "git bisect reset" if what == "bisect" else f"git {what} --continue or --abort"
            raise RepositoryError(f"a {what} is in progress in {top}", hint=f"finish or give up: {how}")
    if not modified:
        _refuse_modified(git, top)


def check_committed(root: Path, path: Path) -> None:
    """Refuse a file that is not in the last commit, from which a session starts."""
    top = find_root(root)
    name = path.parent.resolve().joinpath(path.name).relative_to(top).as_posix()
    git = _plain(find_git(), top)
    if not git.run("cat-file", "-e", f"HEAD:{name}").ok:
        ignored = git.ask("ls-files", "--others", "--ignored", "--exclude-standard", "--", name)
        how = f"git add {'--force ' if ignored else ''}{path.name} && git commit"
        raise RepositoryError(f"{path} is not committed, and a session starts from what is", hint=how)


def check_branches(root: Path) -> None:
    """Refuse a repository whose branches leave no room for that of any session."""
    if _plain(find_git(), find_root(root)).run("show-ref", "--verify", "--quiet", f"refs/heads/{BRANCHES}").ok:
        raise RepositoryError(
            f"a branch named {BRANCHES!r} is there, so git allows none below it",
            hint=f"rename it: git branch -m {BRANCHES} <another name>",
        )


def check_tag(root: Path, tag: str) -> None:
    """Refuse a tag that is none, and one whose branch or experiments are there already."""
    require_tag(tag)
    check_branches(root)
    branch = branch_name(tag)
    git = _plain(find_git(), find_root(root))
    taken = git.ask("for-each-ref", "--count=1", "--format=%(refname)", f"refs/heads/{branch}")
    if taken:
        taken = taken.removeprefix("refs/heads/")
        raise RepositoryError(
            f"branch {taken} is there already",
            hint=f"choose another tag with --tag; where nothing needs the branch: git branch -D {shlex.quote(taken)}",
        )
    if git.ask("for-each-ref", "--count=1", "--format=%(refname)", f"refs/{BRANCHES}/{tag}/"):
        raise RepositoryError(
            f"experiments of an earlier session {tag!r} are there (refs/{BRANCHES}/{tag}/)",
            hint="choose another tag with --tag; they stay as they are",
        )


def check_not_checked_out(root: Path, branch: str, why: str = "the daemon moves this branch while you sleep") -> None:
    """Refuse when the session branch is checked out anywhere: that checkout would look modified when it moves."""
    git = _plain(find_git(), find_root(root))
    folder = ""
    for line in git.ask("worktree", "list", "--porcelain").splitlines():
        if line.startswith("worktree "):
            folder = line.removeprefix("worktree ")
        elif line == f"branch refs/heads/{branch}" and Path(folder).is_dir():
            raise RepositoryError(
                f"branch {branch} is checked out in {folder}", hint=f"git -C {folder} switch <another branch>: {why}"
            )


def check_owner(program: str, root: Path) -> None:
    """Refuse what git itself refuses: a repository of another user's that the user has not called safe."""
    # The user's own configuration counts here, for safe.directory; rev-parse runs no program that it names.
    command = [program, "-C", str(root), "rev-parse", "--is-inside-work-tree", "--is-bare-repository"]
    with disk_errors("running git"):
        done = _run(command, _users_environment())
    said = " ".join(done.stderr.decode("utf-8", "replace").split())
    if "dubious ownership" in said:
        raise RepositoryError(
            f"{root} belongs to another user, so git refuses to work in it",
            hint=f"if you trust what is in it: git config --global --add safe.directory {root}",
        )
    if done.returncode != 0:
        raise RepositoryError(
            f"git cannot use {root}: {said[:300]}", hint="run `git status` there and fix what it says"
        )
    if done.stdout.split() != [b"true", b"false"]:
        raise RepositoryError(f"{root} is a bare git repository", hint="clone it, and start in the clone")


def lfs_pointers(root: Path, folder: Path) -> list[str]:
    """Files below a folder that the last commit has as pointers of Git LFS; paths from the folder."""
    top = find_root(root)
    git, where = _plain(find_git(), top), folder.resolve().relative_to(top)
    rows = [row.split(b"\t", 1) for row in git.run("ls-tree", "-rlz", "--full-tree", "HEAD").out.split(b"\0") if row]
    files = {os.fsdecode(name): facts.split() for facts, name in rows}
    if not any(Path(name).name == ".gitattributes" for name in files):
        return []
    small = {
        name: sha.decode("ascii")
        for name, (mode, _, sha, size) in files.items()
        if mode.startswith(b"100") and size.isdigit() and int(size) <= LARGEST and Path(name).is_relative_to(where)
    }
    found = zip(small, _blobs(git, small.values()), strict=True)
    return [Path(name).relative_to(where).as_posix() for name, data in found if pointed_to(data)]


def _blobs(git: Git, names: Iterable[str]) -> list[bytes]:
    """The content of blobs, empty for what is none."""
    asked = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
    said, at, found = git.run("cat-file", "--batch", stdin=asked).out, 0, []
    while at < len(said):
        end = said.index(b"\n", at)
        words = said[at:end].split(b" ")
        size = int(words[-1]) if words[-2:-1] == [b"blob"] else -1
        found.append(said[end + 1 : end + 1 + max(size, 0)])
        at = end + 2 + size
    return found


def absent_submodules(root: Path, folder: Path) -> list[str]:
    """Submodules below a folder, as the last commit has them, whose objects are nowhere: paths from the top."""
    top = find_root(root)
    where, git = folder.resolve().relative_to(top), _plain(find_git(), top)
    tree = git.run("rev-parse", "--verify", "--quiet", "HEAD^{tree}")
    if not tree.ok:
        return []
    with closing(ObjectStore(git, git, object_databases(git.program, top, ("HEAD",)))) as store:
        names = [os.fsdecode(name) for name, is_there in store.submodules(tree.text) if not is_there]
    return [name for name in names if Path(name).is_relative_to(where)]


def exclude(root: Path) -> None:
    """Hide ``.autoresearchd/`` from the user's ``git status``, once; nothing tracked is changed."""
    path = common_dir(root) / "info" / "exclude"
    line = f"{PUBLIC}/".encode()
    with disk_errors("excluding .autoresearchd/ from version control"):
        text = path.read_bytes() if path.exists() else b""
        if line in (known.strip() for known in text.splitlines()):
            return
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as stream:
            stream.write((b"" if not text or text.endswith(b"\n") else b"\n") + line + b"\n")


def init_repository(folder: Path) -> str:
    """Make a repository of a folder's files, all committed on ``main``; the commit. Appears at once or not at all."""
    program = require_git()
    if os.path.lexists(folder / ".git"):
        raise RepositoryError(f"{folder} is a git repository already", hint="start in it without scaffolding")
    with disk_errors(f"making a git repository in {folder}"):
        (folder / PUBLIC).mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="init-", dir=folder / PUBLIC))
        try:
            made = scratch / ".git"
            options = ("--quiet", "--template=", "--initial-branch=main", "--object-format=sha1")
            done = _run([program, "init", *options, str(scratch)], surroundings())
            if done.returncode != 0:
                raise RepositoryError(f"git init failed: {done.stderr.decode('utf-8', 'replace').strip()}")
            (made / "info").mkdir(exist_ok=True)
            (made / "info" / "exclude").write_text(f"{PUBLIC}/\n")
            git = Git(program, made, folder.resolve(), {**surroundings(), **_author(program)})
            git.ask("add", "--all")
            message = b"Start from the bundled task\n"
            git.ask("commit", "--quiet", "--no-verify", "--allow-empty", "--file=-", stdin=message)
            commit = git.ask("rev-parse", "HEAD")
            made.rename(folder / ".git")
        finally:
            remove_tree(scratch)
    return commit


def head_commit(root: Path) -> str:
    """Commit that the user's checkout is at."""
    return _plain(find_git(), root).ask("rev-parse", "--verify", "HEAD^{commit}")


def _plain(program: str, root: Path) -> Git:
    """Git in the user's own git directory and checkout, for reading."""
    return Git(program, git_dir(root), root)


def _author(program: str) -> dict[str, str]:
    """The user as author of the first commit, where git knows the user; the daemon is the committer."""
    known: dict[str, str] = {}
    for name, fallback in (("name", IDENTITY), ("email", ADDRESS)):
        done = _run([program, "config", "--global", "--get", f"user.{name}"], _users_environment())
        known[f"GIT_AUTHOR_{name.upper()}"] = done.stdout.decode("utf-8", "replace").strip() or fallback
    return known


def _users_environment() -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}, "LC_ALL": "C"}


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)


def uncommitted(root: Path, folder: Path) -> list[str]:
    """Files below ``folder`` that are not as the last commit has them: modified, or not in it and not ignored."""
    top = find_root(root)
    where = folder.resolve().relative_to(top).as_posix()
    return _status(_plain(find_git(), top), top, "--untracked-files=all", "--", where)


def _refuse_modified(git: Git, top: Path) -> None:
    """Tracked files must be as committed: the session starts from the commit, and the user would miss the rest."""
    names = _status(git, top, "--untracked-files=no")
    what, hint = "modified files that are not committed", "commit them (git commit -am …) or put them away (git stash)"
    hint = f"{hint}; the session starts from the last commit"
    if not names:
        what = "modified files in submodules, which runs see as pinned"
        hint = "commit them in the submodule, and then the submodule here; or put them away (git stash)"
        for path, place in checked_out(git.program, top):
            inner = _status(_plain(git.program, place), place, "--untracked-files=no")
            names += [f"{path}/{name}" for name in inner]
    if names:
        raise RepositoryError(f"{top} has {what}: {some_of(names)}", hint=hint)


def _status(git: Git, top: Path, *options: str) -> list[str]:
    """Paths that ``git status`` names, without running any program that the configuration names."""
    settings = dict(SETTINGS)
    filters = git.run("config", "--null", "--name-only", "--get-regexp", r"^filter\.").text.split("\0")
    # A filter is a program: to look at the status is no reason to run it.
    settings |= {name: "false" if name.endswith(".required") else "" for name in filters if name}
    # As the user has checked it out.
    own = _run([git.program, "-C", str(top), "config", "--get", "core.autocrlf"], _users_environment())
    settings["core.autocrlf"] = own.stdout.decode("utf-8", "replace").strip() or "false"
    quiet = Git(git.program, git.directory, top, surroundings(settings))
    said = quiet.ask("status", "--porcelain", "-z", "--ignore-submodules=dirty", "--no-renames", *options)
    names = {entry[3:]: entry[:2] for entry in said.split("\0") if len(entry) > 3}
    changed = [name for name, state in names.items() if state == " M" and "\n" not in name]
    blobs = zip(changed, _blobs(git, (f":0:{name}" for name in changed)), strict=True) if changed else ()
    same = {name for name, data in blobs if _is_content(top / name, pointed_to(data))}
    return [name for name in names if name not in same]


def _is_content(path: Path, digest: str) -> bool:
    """Whether a file is what a pointer of Git LFS stands for: without its filter git takes it for a modified one."""
    if not digest:
        return False
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == digest
    except OSError:
        return False

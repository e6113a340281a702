"""Where everything lies in a user's repository (gitrepository-layout(5)): paths only, without running git."""

from __future__ import annotations

import re
from pathlib import Path

from autoresearchd.domain.errors import RepositoryError, UsageError

STATE = "autoresearchd"
PUBLIC = ".autoresearchd"
BRANCHES = "autoresearch"
"""Session branches are refs/heads/autoresearch/<tag>; tips refs/autoresearch/<tag>/tip; experiments …/<n>."""

_TAG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,49})")


def valid_tag(tag: str) -> bool:
    """Whether ``tag`` can be part of a ref name (git-check-ref-format(1)) and of a path."""
    return bool(_TAG.fullmatch(tag)) and ".." not in tag and not tag.endswith((".", ".lock"))


def require_tag(tag: str) -> str:
    """``tag`` itself; UsageError when it is none."""
    if not valid_tag(tag):
        raise UsageError(
            f"{tag[:60]!r} cannot be a session tag",
            hint="use at most 50 of a-z 0-9 . _ -; a letter or digit first; no '..'; no '.' or '.lock' at the end",
        )
    return tag


def find_root(folder: Path) -> Path:
    """Top of the checkout that ``folder`` stands in; RepositoryError when it stands in none."""
    start = folder.resolve()
    for candidate in (start, *start.parents):
        if _git_dir(candidate) is not None:
            return candidate
        if candidate.name != ".git" and is_git_dir(candidate):
            raise RepositoryError(
                f"{candidate} is a bare git repository: it has no files to work on",
                hint="clone it, and start in the clone",
            )
    raise RepositoryError(
        f"{start} is not in a git repository",
        hint="run `git init`, add your files and commit them; or start in an empty folder with `--task autoresearch`",
    )


def find_session_root(folder: Path) -> Path:
    """As ``find_root``, for whoever looks for a session that is there already."""
    try:
        return find_root(folder)
    except RepositoryError as error:
        raise RepositoryError(
            error.what, hint=f"go to the folder of a session (cd) first, or {how_to_begin(folder)}"
        ) from error


def how_to_begin(folder: Path) -> str:
    """The end of a sentence for a folder without a session, with a task of its own or without."""
    if (folder / "task.yaml").is_file():
        return "begin one with `autoresearchd start`"
    return "begin one with `autoresearchd start --task autoresearch` in an empty folder, with --task DIR elsewhere"


def git_dir(root: Path) -> Path:
    """The git directory of a checkout (of a linked worktree: its own)."""
    found = _git_dir(root)
    if found is None:
        raise RepositoryError(f"{root} is not the top of a git checkout", hint="start in a folder that holds a .git")
    return found


def common_dir(root: Path) -> Path:
    """The git directory that all worktrees of the repository share."""
    own = git_dir(root)
    try:
        text = (own / "commondir").read_text("utf-8", "surrogateescape").strip()
    except OSError:
        return own
    return (own / text).resolve() if text else own


def state_dir(root: Path) -> Path:
    """What the daemon keeps, out of reach of ``git clean``."""
    return common_dir(root) / STATE


def backups_dir(root: Path) -> Path:
    """The folder of the database's backups."""
    return state_dir(root) / "backups"


def public_dir(root: Path) -> Path:
    """What people read."""
    return root / PUBLIC


def database_path(root: Path) -> Path:
    """The SQLite file."""
    return state_dir(root) / "state.db"


def failed_start_path(root: Path) -> Path:
    """The file that tells of the latest session that ended before its first result."""
    return state_dir(root) / "failed-start.json"


def locks_dir(root: Path) -> Path:
    """The folder of the locks of all sessions."""
    return state_dir(root) / "locks"


def lock_path(root: Path, tag: str) -> Path:
    """The file that the daemon of a session holds locked."""
    return locks_dir(root) / f"{require_tag(tag)}.lock"


def worktrees_dir(root: Path, tag: str) -> Path:
    """The worktrees of a session."""
    return state_dir(root) / "worktrees" / require_tag(tag)


def setup_dir(root: Path, key: str) -> Path:
    """Where setup commands leave their files; ``key``: hash of what they depend on."""
    return state_dir(root) / "setup" / key


def adapters_dir(root: Path) -> Path:
    """The versions of the local policy, of all sessions."""
    return state_dir(root) / "adapters"


def run_dir(root: Path, tag: str, number: int, index: int) -> Path:
    """Logs and results of one run."""
    return public_dir(root) / "runs" / require_tag(tag) / str(int(number)) / str(int(index))


def run_logs(root: Path, tag: str, number: int) -> list[Path]:
    """The logs of an experiment's runs, in the order of the runs, training before evaluation."""
    logs = [log for log in run_dir(root, tag, number, 0).parent.glob("*/*.log") if log.parent.name.isdecimal()]
    return sorted(logs, key=lambda log: (int(log.parent.name), log.name != "training.log", log.name))


def memo_path(root: Path, tag: str) -> Path:
    """The living notes of a session, the daemon's and the user's."""
    return public_dir(root) / "sessions" / require_tag(tag) / "autoresearch.md"


def daemon_log(root: Path) -> Path:
    """The daemon's log."""
    return public_dir(root) / "daemon.log"


def left_by_a_failed_start(root: Path) -> str:
    """Where to look when no session is left, as a baseline could not be measured; empty when none was begun."""
    if not failed_start_path(root).exists():
        return ""
    runs = f"{PUBLIC}/runs"
    return f"the last start could not measure its baseline: `autoresearchd logs` says why, its runs' logs are in {runs}"


def branch_name(tag: str) -> str:
    """Short name of a session's branch."""
    return f"{BRANCHES}/{require_tag(tag)}"


def _git_dir(root: Path) -> Path | None:
    entry = root / ".git"
    if entry.is_dir():
        return entry.resolve() if is_git_dir(entry) else None
    try:
        text = entry.read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    if not text.startswith("gitdir:"):
        return None
    target = (root / text[len("gitdir:") :].strip()).resolve()
    return target if target.is_dir() else None


def is_git_dir(folder: Path) -> bool:
    """Whether a folder is a git directory, as git itself tells."""
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()

"""Where the journal of a repository is: in a file of its own, or in a PostgreSQL that several repositories share.

Each repository is a project there, with a schema of its own: tags do not clash, and each is upgraded when it is opened.
A project is known by what stands in ``.git/autoresearchd/project``. A repository goes on where it began.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from autoresearchd.domain.errors import EnvironmentFailure, SessionLocked, StoreDamaged, UsageError
from autoresearchd.sandbox.file_locks import hold

VARIABLE = "AUTORESEARCHD_STORE"
"""The URL of the shared store; ``sqlite``: none, whatever the settings say."""
_SQLITE = "sqlite"
_BEGINNING_S = 60.0
RESTORE = "restore the database from its own backups (pg_dump, point-in-time recovery)"


@dataclass(frozen=True, slots=True)
class Shared:
    """A project's part of a PostgreSQL database. url: never shown; new: it has yet to be made."""

    url: str = field(repr=False)
    project: str
    new: bool = field(default=False, compare=False)

    @property
    def schema(self) -> str:
        return f"autoresearchd_{self.project}"

    @property
    def name(self) -> str:
        """The URL without what is nobody's business."""
        parts = urlsplit(self.url)
        user = f"{parts.username}@" if parts.username else ""
        where = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key in ("host", "port")], safe="/")
        at = parts.netloc.rpartition("@")[2]
        return f"postgresql://{user}{at}{parts.path}" + (f"?{where}" if where else "")


@dataclass(frozen=True, slots=True)
class Holder:
    """The daemon that holds a session of a shared store; since: when it was started, by its machine's clock."""

    pid: int
    host: str
    since: datetime

    @classmethod
    def this(cls) -> Holder:
        """This process; a moment is as good as its beginning: it need only tell it from others of its number."""
        return cls(os.getpid(), os.uname().nodename, _SINCE)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def error(self, tag: str) -> SessionLocked:
        """The error for a second daemon."""
        return SessionLocked(
            f"session {tag} is held by {self}, since {self.since:%Y-%m-%d %H:%M} UTC",
            hint=f"`autoresearchd stop --session {tag}` ends it, from here as well; a machine that went away gives it "
            "up within half a minute",
        )


_SINCE = datetime.now(UTC).replace(microsecond=0)


def where(database: Path) -> Path | Shared:
    """Where the journal is whose SQLite file would be ``database``. UsageError: in a shared store, and none is set."""
    project = _project(_file(database))
    if not project:
        return database
    url = configured()
    if not url:
        raise UsageError(
            f"the sessions of this repository are in a shared store (project {project}), and none is set",
            hint=f"name it: `store: postgresql://…` in the settings file, or the variable {VARIABLE}",
        )
    return Shared(url, project)


def begin(database: Path) -> Path | Shared:
    """As ``where``, for a journal that may have yet to be made: in the shared store where one is set."""
    file = _file(database)
    if database.exists() or _project(file) or not (url := configured()):
        return where(database)
    from autoresearchd.store.schema.database import upgrade

    busy = EnvironmentFailure(f"another command is making a project of {file.parent}", hint="try again in a moment")
    file.parent.mkdir(parents=True, exist_ok=True)
    with hold(file, patience=_BEGINNING_S, busy=lambda: busy) as descriptor:
        if not _project(file):
            made = Shared(url, os.urandom(16).hex(), new=True)
            upgrade(made)
            os.write(descriptor, f"{made.project}\n".encode())
            os.fsync(descriptor)
    return where(database)


def configured() -> str:
    """The URL that the user has set, empty where there is none. UsageError: it is no URL of PostgreSQL."""
    url = os.environ.get(VARIABLE, "").strip()
    if not url:
        from autoresearchd.config.settings import load_settings  # slow to import, and seldom needed

        url = load_settings(os.environ).store
    if url in ("", _SQLITE):
        return ""
    if not _is_postgresql(url):
        raise UsageError(  # without the URL: it may hold a password
            "the store that is set is no address of a PostgreSQL database",
            hint=f"write `store` in the settings file, or {VARIABLE}, as postgresql://USER@HOST:5432/DATABASE; "
            "special characters of a password as %XX",
        )
    return url


def passwords(url: str) -> list[str]:
    """What must not be seen of a URL."""
    try:
        parts = urlsplit(url)
        return [unquote(parts.password or ""), *parse_qs(parts.query).get("password", [])]
    except ValueError:
        return [url]


def is_open(url: str) -> bool:
    """Whether a URL has nothing to hide: it is what messages call its store."""
    return _is_postgresql(url) and Shared(url, "").name == url


def _is_postgresql(url: str) -> bool:
    """Whether a URL can be told apart into its parts as libpq does, so that no part of a password is taken for one."""
    try:
        parts = urlsplit(url)
        one_user = parts.netloc.count("@") < 2 and "@" not in parts.path + parts.query
        sound = parts.port != 0 and not parts.fragment and one_user
        return sound and parts.scheme in ("postgresql", "postgres") and bool(re.fullmatch(r"/[^/]+", parts.path))
    except ValueError:
        return False


def _file(database: Path) -> Path:
    return database.with_name("project")


def _project(file: Path) -> str:
    """The project that a file names; empty where it has yet to be made. StoreDamaged: it names none."""
    try:
        text = file.read_text("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if text and not re.fullmatch(r"[0-9a-f]{32}", text):
        what = f"{file} names no project of a shared store"
        raise StoreDamaged(what, hint="write the 32 digits into it that its schema's name in the database ends with")
    return text

"""Connections and transactions: SQLAlchemy's engine, set up so that what is committed survives a power cut.

SQLite runs in WAL mode with synchronous=FULL (https://www.sqlite.org/wal.html): readers never wait for the writer, and
a commit is on disk when it returns. Writers take the write lock at BEGIN IMMEDIATE, so that a transaction waits for its
turn at its start and never fails half-way for having read first. The schema is made by ``migrations/`` alone.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import URL, Connection, Engine, Select, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, StoreDamaged, StoreError
from autoresearchd.domain.redaction import Redactor
from autoresearchd.resources import bundled
from autoresearchd.store.schema import codec, health
from autoresearchd.store.schema.tables import redacting
from autoresearchd.store.shared import Holder, Shared

if TYPE_CHECKING:
    from alembic.config import Config

_SQLITE = "sqlite:///"
_WRITE = "autoresearchd_write"
_PATIENCE_S = 1.0
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")

_HINTS: dict[str | tuple[str, ...], str] = {
    "SQLITE_FULL": "free some disk space; the loop goes on by itself",
    ("SQLITE_BUSY", "SQLITE_LOCKED"): "another program holds the database: end it, or wait",
    ("SQLITE_READONLY", "SQLITE_PERM"): "make the database and its folder writable for this user",
    "SQLITE_CANTOPEN": "make sure that the database's folder exists and is writable, with room on its disk",
    "SQLITE_IOERR": "look for faults of the disk (dmesg) and for free space",
}


def sqlite_url(path: Path) -> str:
    """The URL of a database file."""
    return f"{_SQLITE}{path}"


class Database:
    """The database at ``sqlite:///PATH``. What is written goes through ``redactor``, by column (see ``tables``).

    busy_timeout: how long a writer waits for another one, in seconds. readonly: it is opened as it is: it must be of
    this version's revision, and is never written to.
    """

    repair = health.HINT
    """How one that is damaged is repaired."""

    def __init__(self, url: str, *, busy_timeout: float = 10.0, readonly: bool = False) -> None:
        self.name, self.path = url, Path(url.removeprefix(_SQLITE))
        how = {"creator": partial(_connect_readonly, self.path)} if readonly else {}
        self.engine = create_engine(
            URL.create("sqlite", database=str(self.path)),  # a path may hold "?" and "%"
            json_serializer=codec.dumps,
            json_deserializer=json.loads,
            connect_args={"timeout": busy_timeout},
            **how,
        )
        _prepare(self.engine, () if readonly else _PRAGMAS)
        self._readers: Engine = self.engine
        self._writers: Engine = self.engine.execution_options(**{_WRITE: True})
        self._begin()

    def _begin(self) -> None:
        """What every kind of database begins with."""
        self.redactor = Redactor()
        self.refusal: StoreDamaged | None = None
        """Raised instead of beginning to write, where somebody has put another journal into this one's place."""
        self._held: Connection | None = None

    def hold(self) -> None:
        """Keep a connection to the file that lies there now: copies are of that one, should it be moved or deleted."""
        with self._translated():
            self._held = self.engine.connect()
            _raw(self._held).execute("SELECT count(*) FROM sqlite_schema").fetchall()  # opens its log as well

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one instant and writes nothing."""
        try:
            with self._translated(), self._readers.begin() as connection:
                yield connection
        except codec.UNREADABLE as error:
            # What was written is always readable: a value that is not has been changed on the disk.
            raise StoreDamaged(f"{self.name} holds a value that cannot be read: {error}", hint=self.repair) from error

    def rows(self, query: Select[Any]) -> Sequence[Any]:
        with self.read() as connection:
            return connection.execute(query).all()

    def row(self, query: Select[Any]) -> Any:
        with self.read() as connection:
            return connection.execute(query).one_or_none()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is on disk when the block ends, or has not happened when the block raises."""
        with self._writer() as connection, connection.begin():
            yield connection

    @contextmanager
    def write_lazily(self) -> Iterator[Connection]:
        """As ``write``, but a power cut (not a crash of the process) may undo it until the next ``write`` ends."""
        with self._writer() as connection:
            raw = _raw(connection)
            raw.execute("PRAGMA synchronous=NORMAL")
            try:
                with connection.begin():
                    yield connection
            finally:
                raw.execute("PRAGMA synchronous=FULL")

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        if self.refusal is not None:
            raise self.refusal
        with self._translated(), redacting(self.redactor), self._writers.connect() as connection:
            yield connection

    def copy_to(self, target: Path) -> None:
        """A consistent copy, complete or not there at all."""
        partial = target.with_name(target.name + ".part")
        source = nullcontext(self._held) if self._held is not None else self.engine.connect()
        with self._translated(), source as connection:
            try:
                with closing(sqlite3.connect(partial)) as copy:
                    _raw(connection).backup(copy)
                    copy.execute("PRAGMA journal_mode=DELETE")
                partial.replace(target)
            except OSError as error:
                raise EnvironmentFailure(
                    f"the copy {target} of the database cannot be written: {error}",
                    hint="free some disk space, or make the folder writable",
                ) from error
            finally:
                partial.unlink(missing_ok=True)

    def change_mark(self) -> str:
        """Another text once somebody has committed something (https://www.sqlite.org/pragma.html#pragma_data_version).

        Cheap; to be asked from one thread.
        """
        with self._translated():
            if self._held is None:
                self._held = self.engine.connect()
            return str(_raw(self._held).execute("PRAGMA data_version").fetchone()[0])

    # -- what a database on a server does otherwise
    def prepare(self, connection: Connection) -> None:
        """Make what tables are put into, where it is missing, before they are made or changed."""

    def keep_old(self, revision: str) -> Path | None:
        """A copy of what is about to be upgraded. SessionLocked: a daemon of the version that wrote it is at work."""
        copy = self.path.with_name(f"{self.path.name}.backup-{revision}")
        self.copy_to(copy)
        return copy

    def holder(self, tag: str) -> Holder | None:
        """Whose daemon holds a session, wherever it is; None: nobody's, or only the lock file of this machine tells."""
        return None

    @contextmanager
    def leased(self, tag: str) -> Iterator[None]:
        """Hold a session against daemons on other machines, too. SessionLocked: one of them has it, now or later."""
        yield

    def close(self) -> None:
        """Give all connections back; the last one writes the WAL into the database."""
        if self._held is not None:
            self._held.close()
            self._held = None
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._explain(error.orig or error) from error
        except sqlite3.Error as error:  # of the driver itself
            raise self._explain(error) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.name}: {error}") from error

    def _explain(self, error: BaseException) -> AutoresearchdError:
        what = f"{error}: {self.name}"  # what is wrong first: a line of `status` shows the beginning
        code = str(getattr(error, "sqlite_errorname", "") or "")
        for beginning, hint in _HINTS.items():
            if code.startswith(beginning):
                return EnvironmentFailure(what, hint=hint)
        if isinstance(error, sqlite3.Error) and (health.is_damage(error) or "no such table" in str(error)):
            return StoreDamaged(what, hint=health.HINT)
        return StoreError(what)


class Within(Database):
    """A database within one of its transactions, with which all ends that is read and written here."""

    def __init__(self, name: str, transaction: Connection) -> None:
        self.name, self._transaction = name, transaction

    @contextmanager
    def read(self) -> Iterator[Connection]:
        yield self._transaction

    write = write_lazily = read


class Opened:
    """What works on a database and closes it in the end."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def holder(self, tag: str) -> Holder | None:
        return self._db.holder(tag)


def connect(where: str | Path | Shared, **options: Any) -> Database:
    """The database at a URL of SQLite, in a file, or in a shared store. options: of ``Database``."""
    if isinstance(where, Shared):
        from autoresearchd.store.schema.postgresql import ServerDatabase  # only where it is used

        return ServerDatabase(where, **options)
    return Database(where if isinstance(where, str) else sqlite_url(where), **options)


class FileReader(Opened):
    """Reads a database. StoreError: there is none, an older version wrote it, it is damaged; SchemaTooNew."""

    def __init__(self, where: Path | Shared) -> None:
        super().__init__(connect(where, readonly=True))
        with self._db.read():  # refuses what cannot be read
            pass


def _raw(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        raise StoreError(f"an SQLite connection was expected, not {type(driver).__name__}")
    return driver


def _connect_readonly(path: Path) -> sqlite3.Connection:
    """A connection for reading: while the daemon writes, after it died, on a read-only disk."""
    if not path.is_file():
        raise StoreError(f"there is no database at {path}", hint="autoresearchd start begins a session")
    if not health.has_content(path):
        raise StoreDamaged(f"{path} {health.lack_of(path)}", hint=health.HINT)
    uri = path.resolve().as_uri()
    try:
        return _checked(path, f"{uri}?mode=ro")
    except sqlite3.OperationalError:
        # On a read-only disk SQLite cannot make the index of the WAL. Without a WAL, all is in the file itself.
        if path.with_name(path.name + "-wal").exists():
            raise
        return _checked(path, f"{uri}?mode=ro&immutable=1")


def _checked(path: Path, uri: str) -> sqlite3.Connection:
    """A connection to a journal of this version's revision."""
    db = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'alembic_version'").fetchone() is None:
            if db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None:  # a start was killed while it made it
                raise StoreError(f"{path} holds nothing yet", hint="autoresearchd start begins a session in it")
            raise StoreError(f"{path} is no database of autoresearchd", hint="autoresearchd start makes one")
        row = db.execute("SELECT version_num FROM alembic_version").fetchone()
        require_head(str(path), row[0] if row else "")
    except BaseException:
        db.close()
        raise
    return db


def require_head(where: str, revision: str, how: str = ", after a backup") -> None:
    """Refuse to read what is not of this version's revision. how: it is upgraded."""
    # Revisions are numbered, so that the direction is known without reading the migrations.
    if revision and revision < health.HEAD_REVISION:
        raise StoreError(
            f"{where} was written by an older version (revision {revision}, this one reads {health.HEAD_REVISION})",
            hint=f"autoresearchd resume in its repository upgrades it{how}",
        )
    if revision != health.HEAD_REVISION:
        raise health.too_new(where, revision or "none")


def _decoded(raw: bytes) -> str | bytes:
    """Text of a column; bytes that are none are left as they are: of all rows, only theirs is then unreadable."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _prepare(engine: Engine, pragmas: Sequence[str]) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        # Transactions are begun below: left to itself, the driver would begin them late and without the write lock.
        connection.isolation_level = None
        connection.text_factory = _decoded
        # For another that makes a new file a WAL database at the same moment SQLite does not wait by itself. Where
        # it does wait, for somebody who holds the file, it has waited for its own time-out already.
        deadline = time.monotonic() + _PATIENCE_S
        for pragma in pragmas:
            while True:
                try:
                    connection.execute(f"PRAGMA {pragma}")
                    break
                except sqlite3.OperationalError as error:
                    if time.monotonic() >= deadline or error.sqlite_errorname != "SQLITE_BUSY":
                        raise
                    time.sleep(0.01)

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        writing = connection.get_execution_options().get(_WRITE, False)
        # By the driver itself: through SQLAlchemy's execution it takes as long as what most transactions are for.
        _raw(connection).execute("BEGIN IMMEDIATE" if writing else "BEGIN")


# ---------------------------------------------------------------------- the schema
def upgrade(
    where: str | Shared, *, migrations: Path | None = None, head: str = health.HEAD_REVISION, busy_timeout: float = 10.0
) -> Path | None:
    """Bring the database to ``head``; the backup that was made before. SchemaTooNew; StoreError: it is none of ours."""
    with closing(connect(where, busy_timeout=busy_timeout)) as database:
        if isinstance(where, str):
            with suppress(OSError):  # SQLite says that it cannot open the file
                database.path.parent.mkdir(parents=True, exist_ok=True)
        with database.read() as connection:
            tables = inspect(connection).get_table_names()
            if tables and "alembic_version" not in tables:
                raise StoreError(
                    f"{database.name} holds other tables ({', '.join(sorted(tables)[:3])}, …) and no revision of ours",
                    hint="name another database",
                )
            query = text("SELECT version_num FROM alembic_version")
            revision = connection.execute(query).scalar_one_or_none() if tables else None
        return None if revision == head else _upgrade(database, revision, head, migrations or bundled("migrations"))


def alembic_config(migrations: Path) -> Config:
    """Alembic's configuration for this folder, without an ``alembic.ini`` and without touching anybody's logging."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(database: Database, found: str | None, head: str, migrations: Path) -> Path | None:
    from alembic import command
    from alembic.script import ScriptDirectory

    config = alembic_config(migrations)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise health.too_new(database.name, found)
    backup = database.keep_old(found) if found is not None else None
    try:
        # One transaction around all of it: a second process waits at its beginning and then finds nothing left to do.
        with database.write() as connection:
            database.prepare(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, head)
    except EnvironmentFailure:
        raise
    except AutoresearchdError as error:
        kept = f"; the database is as it was, and so is its copy {backup}" if backup else ""
        raise StoreError(
            f"{database.name} could not be brought from revision {found or 'none'} to {head}: {error.what}{kept}",
            hint=error.hint or "report this with the message above; the version that wrote the database still reads it",
        ) from error
    return backup

"""The journal in a schema of its own in a PostgreSQL database: the one module that knows psycopg, and what differs.

Writers of a project take turns from the beginning of their transactions, as BEGIN IMMEDIATE has them do in SQLite, by
an advisory lock; readers see one instant and wait for nobody. A daemon holds its session by another advisory lock, and
all that it writes goes through the connection that has it: who has lost the lock has lost the connection, and writes
nothing before it is had again, which it is only where no other daemon had it meanwhile. The server gives it up when the
process ends, and soon after its machine went away
(https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, make_url, select

from autoresearchd.domain.errors import (
    AutoresearchdError,
    EnvironmentFailure,
    MissingCapability,
    SessionLocked,
    StoreDamaged,
    StoreError,
)
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database, require_head
from autoresearchd.store.shared import RESTORE, Holder, Shared

CONNECT_S = 10
ANSWER_S = 60
"""How long a statement may take here: one that waits for others is ended by the server long before. A server that is
stopped or frozen still has a kernel that keeps its connections alive, so that only this ends the wait."""
IDLE_S = 60
"""How long a transaction that writes may do nothing: a process that somebody has stopped must not hold up others."""
# A machine that went away is noticed by the server after 10 + 3 × 5 s, or where it owes an answer.
_LIVELY = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
           "tcp_user_timeout": "25000"}  # fmt: skip
_THERE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
"""The same for this side, which notices a server that went away."""
_DAEMON = "daemon"
"""Kind of the events that tell which daemons had a session."""
_LONGEST_NAME = 63
"""Bytes of a connection's name that the server keeps."""
_AWAY = "see that the server runs and can be reached; a daemon waits for it and goes on by itself"
_OPTIONS = "correct what follows the ? in the URL of the store: options of libpq"
_REFUSALS = {
    "password": "the password belongs into ~/.pgpass, PGPASSWORD, or the URL in AUTORESEARCHD_STORE",
    "does not exist": "make it (createdb, createuser), or correct the URL of the store",
    "pg_hba.conf": "allow this machine and user in the server's pg_hba.conf",
    "resolve host": "correct the host in the URL of the store",
    "invalid ": _OPTIONS,
    "bad value for": _OPTIONS,
}
"""Where a server says no, by what it says (it gives no code then)."""
_PASSING = ("08", "25006", "25P03", "28", "3D", "40", "53", "55P03", "57", "58")
"""Beginnings of codes for what is no fault of what was asked for
(https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_GONE = ("3F000", "42P01")


class ServerDatabase(Database):
    """A project's schema in a PostgreSQL database. MissingCapability: there is no driver for it."""

    repair = RESTORE

    def __init__(self, place: Shared, *, busy_timeout: float = 10.0, readonly: bool = False) -> None:
        self.name, self._place = place.name, place
        self.engine = _engine(place, busy_timeout)
        self._readers = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._writers = self.engine
        self._begin()
        self._one_at_a_time = threading.RLock()
        self._lease, self._backend = "", 0
        """Tag of the session that this process holds, and the server's process for the connection that does."""
        self._place_in_line: int | None = None
        """Among the daemons that had the session."""
        self._revision = ""
        if not place.new:
            try:
                self._look(readonly)
            except BaseException:
                self.close()
                raise

    def _look(self, readonly: bool) -> None:
        """Whether this is the project's database, and can be read."""
        with self.read() as c:
            there = c.exec_driver_sql("SELECT current_schema()").scalar_one() is not None
            if there:
                self._revision = str(c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() or "")
        if not there:
            raise StoreError(
                f"{self.name} has nothing of this repository, whose sessions are in a shared store (project "
                f"{self._place.project})",
                hint="set the store and the user that it began with, or restore it; a repository without "
                ".git/autoresearchd/project begins anew",
            )
        if readonly:
            require_head(self.name, self._revision, "")

    def change_mark(self) -> str:
        with self.read() as c:  # changes with any project of the server: who asks looks closer then
            return str(c.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar_one())

    # -- transactions
    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._writer() as connection, connection.begin():
            patience = f"set_config('idle_in_transaction_session_timeout', '{IDLE_S}s', true)"
            turn = f"pg_advisory_xact_lock({_number(self._place.schema, 8)})"
            connection.exec_driver_sql(f"SELECT {patience}, {turn}")
            yield connection

    write_lazily = write
    """A server may lose what it has not flushed and go on, while the daemon relies on it: nothing is lazy here."""

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        if not self._lease:
            with super()._writer() as connection:
                yield connection
        else:
            with self._one_at_a_time, self._translated(), t.redacting(self.redactor):
                yield self._leased()

    # -- who has a session
    @contextmanager
    def leased(self, tag: str) -> Iterator[None]:
        self._place_in_line = None
        with self._translated():
            self._held = self._hold_session(tag)
        self._lease = tag
        try:
            yield
        finally:
            with self._one_at_a_time, self._translated():
                self._lease, held, self._held = "", self._held, None
                if held is not None:
                    held.close()  # and with it goes the lock

    def _leased(self) -> Connection:
        """The connection that has the session, another one where it broke. SessionLocked: another daemon has it now."""
        held = self._held
        if held is None or held.invalidated:
            self._held = None
            if held is not None:
                held.close()
            self._held = held = self._hold_session(self._lease)
        return held

    def _hold_session(self, tag: str) -> Connection:
        connection, name = self.engine.connect(), _name(Holder.this())
        try:
            connection.detach()  # from the pool: closed, it is closed for good
            settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _LIVELY.items())
            with connection.begin():
                connection.exec_driver_sql(f"SELECT set_config('application_name', %s, false), {settings}", (name,))
                lock = f"pg_try_advisory_lock({_number(self._place.schema)}, {_number(tag)})"
                had, backend = connection.exec_driver_sql(f"SELECT {lock}, pg_backend_pid()").one()
                if had:
                    self._stand_in_line(connection, tag)
            if had:
                self._backend = backend
                return connection
            backend, holder = next(iter(self._holders(tag)), (0, None))
            if holder is None:  # who had it is gone since
                raise EnvironmentFailure(f"session {tag} was held until just now", hint="try again in a moment")
            if backend == self._backend:
                what = f"{self.name} still has a broken connection of this daemon, which holds session {tag}"
                raise EnvironmentFailure(what, hint="it notices within half a minute")
            raise holder.error(tag)
        except BaseException:
            connection.close()
            raise

    def _stand_in_line(self, c: Connection, tag: str) -> None:
        """Write down that this daemon has the session now; or that it still is the last one that had it."""
        v = t.events.c
        session_id = c.execute(select(t.sessions.c.id).where(t.sessions.c.tag == tag)).scalar()
        of_daemons = select(v.id, v.message).where(v.session_id == session_id, v.kind == _DAEMON)
        last = c.execute(of_daemons.order_by(v.id.desc()).limit(1)).first()
        if self._place_in_line is None:
            entry = {"session_id": session_id, "kind": _DAEMON, "at": datetime.now(UTC), "message": str(Holder.this())}
            new = insert(t.events).values(entry).returning(v.id)
            self._place_in_line = 0 if session_id is None else c.execute(new).scalar_one()
        elif self._place_in_line != (last.id if last is not None else 0):
            who = last.message if last is not None else "nobody: it was removed"
            what = f"this daemon's connection broke, and session {tag} was taken over meanwhile, by {who}"
            raise SessionLocked(what, hint=f"`autoresearchd status --session {tag}` shows it")

    def holder(self, tag: str) -> Holder | None:
        return next((holder for _, holder in self._holders(tag)), None)

    def _holders(self, tag: str | None = None) -> list[tuple[int, Holder]]:
        """Who holds a session (None: any), with the server's processes for their connections."""
        this = "" if tag is None else f"AND l.objid = {_number(tag)}"
        query = f"""
            SELECT a.pid, a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
            WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.classid = {_number(self._place.schema)} {this}
        """  # noqa: S608 - numbers of ours
        with self.read() as c:
            return [(pid, _holder(name)) for pid, name in c.exec_driver_sql(query)]

    # -- the schema
    def prepare(self, connection: Connection) -> None:
        if self._place.new:
            connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{self._place.schema}"')

    def keep_old(self, revision: str) -> Path | None:
        if held := ", ".join(str(holder) for _, holder in self._holders()):
            raise SessionLocked(
                f"{self.name} has this repository's sessions as an older version wrote them (revision {revision}), and "
                f"can be upgraded only once no daemon of that version is at work: {held}",
                hint="`autoresearchd stop`, wait for the running experiment to end, then `autoresearchd resume`",
            )
        return None

    def hold(self) -> None:
        """Nothing: a server keeps what it serves."""

    def copy_to(self, target: Path) -> None:
        raise StoreError(f"{self.name} is not copied into files from here", hint="pg_dump makes backups of it")

    def describe(self) -> str:
        """What it is, in words."""
        with self.read() as c:
            version = c.exec_driver_sql("SHOW server_version").scalar_one()
        project = "" if self._place.new else f", schema {self._place.schema}, revision {self._revision}"
        return f"{self.name}: PostgreSQL {version}{project}"

    def _explain(self, error: BaseException) -> AutoresearchdError:
        what = f"{' '.join(str(error).split())}: {self.name}"
        code = getattr(error, "sqlstate", None) or ""
        if code.startswith(_GONE):
            return StoreDamaged(what, hint=self.repair)
        if code == "42501":
            return StoreError(what, hint="GRANT this user CREATE on the database, and what it made before")
        hint = next((hint for words, hint in _REFUSALS.items() if words in what), "")
        if code.startswith(_PASSING) or (not code and _is_of_connection(error)):
            return EnvironmentFailure(what, hint=hint or _AWAY)
        return StoreError(what, hint="" if code else hint)


def _engine(place: Shared, busy_timeout: float) -> Engine:
    url = make_url(place.url).set(drivername="postgresql+psycopg")
    usual = {"connect_timeout": CONNECT_S, "application_name": "autoresearchd", **_THERE}
    try:
        engine = create_engine(
            url,
            json_serializer=codec.dumps,
            json_deserializer=json.loads,
            isolation_level="READ COMMITTED",  # with any other a writer would see what was before its turn
            connect_args={name: value for name, value in usual.items() if name not in url.query},
        )
    except ImportError as error:
        what = f"the shared store {place.name} needs the package psycopg, which cannot be used here: {error}"
        raise MissingCapability(what, hint="pip install 'autoresearchd[postgresql]'") from error

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, cargs: Any, cparams: Any) -> Any:
        return _impatient().connect(*cargs, **cparams)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        milliseconds = max(1, round(1000 * busy_timeout))
        connection.execute(f"SET search_path TO {place.schema}; SET lock_timeout TO '{milliseconds}ms'")
        connection.commit()

    return engine


@cache
def _impatient() -> Any:
    """Psycopg's kind of connection, but one that is closed when an answer does not come in ANSWER_S."""
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._limited(gen, time.monotonic() + ANSWER_S), *args, **kwargs)

        def _limited(self, gen: Any, deadline: float) -> Generator[Any, Any, Any]:
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted  # nothing is ready every tenth of a second
                    if not ready and time.monotonic() > deadline:
                        self.close()
                        raise psycopg.OperationalError(f"the server did not answer for {ANSWER_S:g} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Impatient


def _is_of_connection(error: BaseException) -> bool:
    import psycopg

    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def _number(text: str, size: int = 4) -> int:
    """Of a project, or a session in it, for an advisory lock: not negative, of so many bytes."""
    return int.from_bytes(sha256(text.encode()).digest()[:size]) >> 1


def _name(holder: Holder) -> str:
    """What a daemon calls its connection, so that all can see who it is."""
    name = f"autoresearchd {holder.pid} {int(holder.since.timestamp())} {holder.host}"
    return name.encode("ascii", "replace")[:_LONGEST_NAME].decode("ascii")


def _holder(name: str | None) -> Holder:
    found = re.fullmatch(r"autoresearchd (\d+) (\d{1,11}) (.*)", name or "")
    if found is None:
        return Holder(0, "a machine that does not say its name", datetime.now(UTC))
    return Holder(int(found[1]), found[3], datetime.fromtimestamp(int(found[2]), UTC))

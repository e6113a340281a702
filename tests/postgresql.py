"""A PostgreSQL of the tests' own: reached by a socket in a folder that is theirs, gone when they end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from autoresearchd.sandbox.process_tree import descendants
from autoresearchd.store.schema.database import connect, upgrade
from autoresearchd.store.schema.tables import metadata
from autoresearchd.store.shared import Shared
from tests.timing import wait_until

_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
_INITDB = _DEBIAN[-1] if _DEBIAN else Path(shutil.which("initdb") or "/initdb")
_MISSING = not _INITDB.exists() or find_spec("psycopg") is None
needs_postgresql = pytest.mark.skipif(
    _MISSING and "AUTORESEARCHD_TESTS_NEED_POSTGRESQL" not in os.environ,
    reason="PostgreSQL or psycopg is not installed (apt install postgresql; pip install 'psycopg[binary]')",
)
PASSWORD = "a pass/word#of@some:length"
"""Of the user ``locked``; nobody else needs one."""


class Server:
    """One server. It may be stopped, and started again, with what it holds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._process, self._project = folder, None, Shared("", "0" * 32, new=True)
        self._as: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:  # it refuses to be root's
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._as |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        command = [_INITDB, "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*command, "--locale=C.UTF-8"], check=True, capture_output=True, **self._as)
        rules = folder / "data/pg_hba.conf"
        rules.write_text("local all locked scram-sha-256\nlocal all all trust\n")
        self.start()
        self.sql("CREATE DATABASE research", database="postgres")
        self.sql(f"CREATE ROLE locked LOGIN PASSWORD '{PASSWORD}'")
        self.sql("GRANT ALL ON DATABASE research TO locked")

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, user: str, database: str = "research", password: str = "") -> str:
        who = f"{user}:{quote(password, safe='')}" if password else user
        return f"postgresql://{who}@/{database}?host={self.folder}"

    def start(self) -> None:
        log = self.folder / "log"
        with log.open("wb") as said:
            settings = (
                "listen_addresses=",
                f"unix_socket_directories={self.folder}",
                "fsync=off",
                "max_connections=60",
            )
            command: list[Any] = [_INITDB.with_name("postgres"), "-D", self.folder / "data"]
            command += [part for setting in settings for part in ("-c", setting)]
            self._process = subprocess.Popen(command, stdout=said, stderr=said, **self._as)
        wait_until(lambda: b"ready to accept connections" in log.read_bytes() or self._process.poll() is not None)
        assert self._process.poll() is None, log.read_text()

    def stop(self) -> None:
        """At once, as when its machine is shut down: connections are cut, what was committed stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped as SIGSTOP stops it, for the time of a block: connections stay, and nothing answers."""
        assert self._process is not None
        processes = [self._process.pid, *descendants(self._process.pid)]
        try:
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)

    def sql(self, statement: str, database: str = "research") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url_of("postgres", database), autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def empty_project(self) -> Shared:
        """The part of one repository, without a row: to make one takes longer than to empty it."""
        if self._project.new:
            upgrade(Shared(self.url, self._project.project, new=True))
            self._project = Shared(self.url, self._project.project)
        with closing(connect(self._project)) as database, database.write() as c:
            c.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY CASCADE")
        return self._project


_running: list[Server] = []


def running() -> Server:
    """The server of this test process, for what cannot take a fixture."""
    return _running[0]


@contextmanager
def serving() -> Iterator[Server]:
    """A server, for the time of a block."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # short: a socket's path has 107 bytes at most
    try:
        server = Server(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with serving() as server:
        _running.append(server)
        yield server
        _running.clear()

"""The journal on a PostgreSQL server: who may write, what happens when it goes away, and what it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from autoresearchd.domain.errors import (
    AutoresearchdError,
    EnvironmentFailure,
    MissingCapability,
    SchemaTooNew,
    SessionLocked,
    StoreDamaged,
    StoreError,
    UsageError,
)
from autoresearchd.resources import bundled
from autoresearchd.store import shared
from autoresearchd.store.page_reader import PageReader, Wanted
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import postgresql as postgresql_module
from autoresearchd.store.schema.database import alembic_config, connect, upgrade
from autoresearchd.store.schema.tables import metadata
from autoresearchd.store.shared import Holder, Shared
from tests.fakes.upgrades import by_two_at_once, later_migrations
from tests.postgresql import PASSWORD, Server, needs_postgresql, serving
from tests.timing import wait_until
from tests.unit.store.driver import AT, Driver, begin, new_session, opened_at_once

pytestmark = needs_postgresql
HOLDS = """
import sys
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.shared import Shared
with SqlStore.open(Shared(*sys.argv[1:3])) as store, store.leased("nov21"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def project(postgresql: Server) -> Shared:
    return postgresql.empty_project()


def new_project(server: Server, url: str = "") -> Shared:
    made = Shared(url or server.url, uuid.uuid4().hex, new=True)
    upgrade(made)
    return Shared(made.url, made.project)


def pid_of(holder: Holder | None) -> int | None:
    return None if holder is None else holder.pid


def take(store: SqlStore, tag: str, stack: ExitStack) -> bool:
    """Whether a session could be had, for the time of a block."""
    try:
        stack.enter_context(store.leased(tag))
    except (SessionLocked, EnvironmentFailure):  # held, or until just now
        return False
    return True


def opened(lab: Driver) -> list[int]:
    """The number of a new experiment; nothing while the server has yet to see that the old connection is gone."""
    try:
        return [lab.open().number]
    except EnvironmentFailure:
        return []


# ---------------------------------------------------------------------- transactions
def test_all_that_write_at_once_wait_for_each_other(project: Shared) -> None:
    with SqlStore.open(project) as one, SqlStore.open(project) as other:
        session = one.create_session(new_session(), AT).id
        numbers = opened_at_once(lambda n: Driver((one, other)[n % 2], session).open().number)
    assert numbers == list(range(40))


def test_a_reader_sees_one_instant_and_waits_for_nobody(project: Shared) -> None:
    with SqlStore.open(project) as store, SqlStore.open(project) as daemon:
        lab = begin(daemon)
        with store._db.read() as c:
            asked = "SELECT count(*) FROM note"
            assert c.exec_driver_sql(asked).scalar_one() == 0
            daemon.add_note(lab.id, "now", AT)
            assert c.exec_driver_sql(asked).scalar_one() == 0
        with daemon._db.write():
            assert [note.text for note in store.unseen_notes(lab.id)] == ["now"]


def test_a_writer_that_is_held_up_says_so_and_goes_on_later(project: Shared) -> None:
    with SqlStore.open(project) as other, SqlStore.open(project, busy_timeout=0.05) as store:
        lab = begin(store)
        with other._db.write(), pytest.raises(EnvironmentFailure, match="lock timeout"):
            lab.open()
        assert lab.open().number == 0


def test_all_that_is_written_is_on_the_disk_at_once(project: Shared) -> None:
    """Else a server that crashes has the daemon go on from steps that it has lost."""
    asked = "SELECT current_setting('synchronous_commit')"
    with SqlStore.open(project) as store:
        for transaction in (store._db.write_lazily, store._db.write):
            with transaction() as c:
                assert c.exec_driver_sql(asked).scalar_one() == "on"


# ---------------------------------------------------------------------- who has a session
def test_a_session_is_had_by_one_and_everybody_knows_by_whom(project: Shared) -> None:
    with SqlStore.open(project) as store, SqlStore.open(project) as second, Reader(project) as reader:
        lab = begin(store)
        assert reader.holder("nov21") is None
        with store.leased("nov21"):
            assert pid_of(reader.holder("nov21")) == pid_of(second.holder("nov21")) == os.getpid()
            assert reader.holder("other") is None
            lab.open()
            second.add_note(lab.id, "from elsewhere", AT)
            with second.leased("other"), ExitStack() as stack:
                assert not take(second, "nov21", stack)
        wait_until(lambda: reader.holder("nov21") is None)  # the server sees a moment later that its line is closed
        with second.leased("nov21"):
            assert second.latest(lab.id) is not None


def test_a_second_one_is_told_who_has_it(project: Shared) -> None:
    command = [sys.executable, "-c", HOLDS, project.url, project.project]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"held\n"
        with SqlStore.open(project) as store:
            with pytest.raises(SessionLocked, match=f"process {first.pid} on ") as caught, store.leased("nov21"):
                pass
            assert caught.value.exit_code == 75
            first.send_signal(signal.SIGKILL)
            with ExitStack() as stack:
                wait_until(lambda: take(store, "nov21", stack))


def test_who_has_lost_a_session_writes_nothing_more(project: Shared, postgresql: Server) -> None:
    with SqlStore.open(project) as store, SqlStore.open(project) as second, ExitStack() as stack:
        lab = begin(store)
        stack.enter_context(store.leased("nov21"))
        lab.open()
        cut(postgresql)
        wait_until(lambda: take(second, "nov21", stack))
        with pytest.raises(EnvironmentFailure):  # its connection is gone, which it sees at its next step
            lab.open()
        for _ in range(2):
            with pytest.raises(SessionLocked):
                lab.open()
        assert [e.number for e in store.experiments(lab.id)] == [0]
        assert Driver(second, lab.id).open().number == 1


def test_who_was_replaced_for_a_while_does_not_go_on_with_what_it_remembers(
    project: Shared, postgresql: Server
) -> None:
    with SqlStore.open(project) as store, SqlStore.open(project) as second:
        lab = begin(store)
        with store.leased("nov21"):
            cut(postgresql)
            with ExitStack() as stack:
                wait_until(lambda: take(second, "nov21", stack))
                Driver(second, lab.id).open()
            with pytest.raises(EnvironmentFailure):
                lab.open()
            with pytest.raises(SessionLocked, match="taken over meanwhile, by process"):
                lab.open()


def cut(server: Server) -> None:
    """End all connections by which daemons hold sessions."""
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'autoresearchd %'")


def test_a_connection_that_breaks_is_made_anew_with_the_session(project: Shared, postgresql: Server) -> None:
    with SqlStore.open(project) as store, store.leased("nov21"):
        lab = begin(store)
        cut(postgresql)
        with pytest.raises(EnvironmentFailure, match=r"terminat|closed"):
            lab.open()
        assert wait_until(lambda: opened(lab)) == [0]
        assert pid_of(store.holder("nov21")) == os.getpid()


# ---------------------------------------------------------------------- a server that is away, or no server
def test_a_server_that_went_away_and_came_back_has_lost_nothing() -> None:
    with serving() as server:
        project = new_project(server)
        with SqlStore.open(project) as store, store.leased("nov21"):
            lab = begin(store)
            lab.open()
            server.stop()
            for step in (lab.open, lambda: store.latest(lab.id), lambda: store.heartbeat(lab.id, AT, 1.0)):
                with pytest.raises(EnvironmentFailure) as caught:
                    step()
            assert "see that the server runs" in caught.value.hint
            server.start()
            assert lab.open().number == 1
            assert pid_of(store.holder("nov21")) == os.getpid()


def test_a_server_that_answers_nothing_any_more_is_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        project = new_project(server)
        with SqlStore.open(project) as store, store.leased("nov21"):
            lab = begin(store)
            lab.open()
            store.latest(lab.id)  # leaves a connection behind
            with server.frozen(), monkeypatch.context() as patch:
                patch.setattr(postgresql_module, "ANSWER_S", 0.3)
                for step in (lambda: store.latest(lab.id), lab.open):
                    with pytest.raises(
                        EnvironmentFailure, match=r"did not answer for 0\.3 s.*: postgresql://"
                    ) as caught:
                        step()
                    assert "see that the server runs" in caught.value.hint
            assert wait_until(lambda: opened(lab)) == [1], "what was cut off has not happened"
            assert pid_of(store.holder("nov21")) == os.getpid()


@pytest.mark.parametrize(
    ("url", "what", "hint"),
    [
        (lambda server: server.url_of("postgres", "nowhere"), "does not exist", "createdb"),
        (lambda server: server.url_of("nobody"), "does not exist", "createuser"),
        (lambda server: server.url_of("locked", password="wrong" + PASSWORD), "password authentication", ".pgpass"),
        (lambda server: server.url_of("locked"), "password", ".pgpass"),
        (lambda server: server.url.replace(str(server.folder), "/nowhere"), "/nowhere", "server runs"),
        (lambda server: "postgresql://u@127.0.0.1:1/research", "127.0.0.1", "server runs"),
        (lambda server: f"{server.url}&sslmode=always", "sslmode", "libpq"),
        (lambda server: f"{server.url}&sslmod=require", "sslmod", "libpq"),
    ],
)
def test_where_no_store_is_it_is_said_why_and_what_to_do(
    postgresql: Server, url: Callable[[Server], str], what: str, hint: str
) -> None:
    with pytest.raises((EnvironmentFailure, StoreError), match=what) as caught:
        upgrade(Shared(url(postgresql), uuid.uuid4().hex, new=True))
    assert hint in caught.value.hint
    assert PASSWORD not in str(caught.value) and quote(PASSWORD, safe="") not in str(caught.value)


def test_a_password_is_used_and_never_shown(postgresql: Server) -> None:
    url = postgresql.url_of("locked", password=PASSWORD)
    project = new_project(postgresql, url)
    with SqlStore.open(project) as store:
        begin(store)
        assert store._db.name == f"postgresql://locked@/research?host={postgresql.folder}"
    for text in (repr(project), project.name, repr(store._db.engine.url)):
        assert PASSWORD not in text and quote(PASSWORD, safe="") not in text
    assert shared.passwords(url)[0] == PASSWORD


def test_a_machine_without_the_driver_says_how_to_get_it(project: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingCapability, match="psycopg") as caught:
        SqlStore.open(project)
    assert "autoresearchd[postgresql]" in caught.value.hint


# ---------------------------------------------------------------------- where a repository's journal is
@pytest.mark.parametrize(
    "url",
    ["mysql://u@h/d", "postgresql://u@h", "postgresql://u:p/w@h/d", "postgresql://u:p#w@h/d", "postgresql://u:p@w@h/d",
     "postgresql://u@h:port/d", "postgresql:///", "research"],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_being_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared.VARIABLE, url)
    with pytest.raises(UsageError, match="no address of a PostgreSQL") as caught:
        shared.configured()
    assert url not in str(caught.value)


def test_a_repository_goes_on_where_it_began(
    postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", os.devnull)
    monkeypatch.setenv(shared.VARIABLE, postgresql.url)
    here, old = (tmp_path / name / "state.db" for name in ("here", "old"))
    old.parent.mkdir()
    old.touch()
    assert shared.begin(old) == shared.where(old) == old, "its sessions are in the file"
    assert shared.where(here) == here, "nothing was begun"
    place = shared.begin(here)
    assert isinstance(place, Shared) and place == shared.where(here) == shared.begin(here)
    assert not here.exists()
    monkeypatch.setenv(shared.VARIABLE, "sqlite")
    with pytest.raises(UsageError, match=place.project) as caught:
        shared.begin(here)
    assert shared.VARIABLE in caught.value.hint
    monkeypatch.setenv(shared.VARIABLE, postgresql.url_of("postgres", "postgres"))
    with pytest.raises(StoreError, match="nothing of this repository"):
        SqlStore.open(shared.begin(here))
    here.with_name("project").write_text("no project")
    with pytest.raises(StoreDamaged, match="names no project"):
        shared.where(here)


def test_commands_that_begin_at_the_same_moment_make_one_project(
    postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", os.devnull)
    monkeypatch.setenv(shared.VARIABLE, postgresql.url)
    barrier = threading.Barrier(3)

    def start(_: int) -> Path | Shared:
        barrier.wait()
        return shared.begin(tmp_path / "state.db")

    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(start, range(3)))
    assert len(made) == 1


def test_repositories_see_only_their_own(postgresql: Server) -> None:
    one, other = new_project(postgresql), new_project(postgresql)
    with SqlStore.open(one) as first, SqlStore.open(other) as second:
        begin(first)
        assert second.sessions() == []
        begin(second)  # the same tag
        with first.leased("nov21"), second.leased("nov21"):
            assert [s.tag for s in first.sessions()] == ["nov21"]


# ---------------------------------------------------------------------- the schema
def test_migrations_and_tables_agree(postgresql: Server) -> None:
    with closing(connect(new_project(postgresql))) as database, database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_processes_may_make_or_upgrade_it_at_the_same_moment(postgresql: Server, tmp_path: Path) -> None:
    project = new_project(postgresql)
    code = (
        "import sys; from pathlib import Path; from autoresearchd.store.shared import Shared\n"
        "from autoresearchd.store.schema.database import upgrade; input()\n"
        "upgrade(Shared(*sys.argv[1:3]), migrations=Path(sys.argv[3]), head='9999')"
    )
    by_two_at_once(code, project.url, project.project, str(later_migrations(tmp_path / "migrations")))
    with pytest.raises(SchemaTooNew, match="9999"):
        SqlStore.open(project)
    with pytest.raises(SchemaTooNew, match="9999"):
        Reader(project)


def test_an_older_one_is_read_by_nobody_and_upgraded_once_no_daemon_is_at_work(postgresql: Server) -> None:
    project = new_project(postgresql)
    with SqlStore.open(project) as daemon, daemon.leased("nov21"):
        begin(daemon)
        config = alembic_config(bundled("migrations"))
        with closing(connect(project)) as database, database.write() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0006")
        with pytest.raises(StoreError, match="older version"):
            Reader(project)
        with pytest.raises(SessionLocked, match=f"process {os.getpid()} on "):
            SqlStore.open(project)
    with SqlStore.open(project) as store:
        assert [s.tag for s in store.sessions()] == ["nov21"]


def test_a_schema_that_somebody_drops_ends_the_work(postgresql: Server) -> None:
    project = new_project(postgresql)
    with SqlStore.open(project) as store:
        lab = begin(store)
        postgresql.sql(f"DROP SCHEMA {project.schema} CASCADE")
        with pytest.raises(StoreDamaged, match="does not exist") as caught:
            lab.open()
    assert "pg_dump" in caught.value.hint


def test_no_file_is_made_of_it(project: Shared, tmp_path: Path) -> None:
    with SqlStore.open(project) as store, pytest.raises(AutoresearchdError) as caught:
        store.backup(tmp_path / "copy.db")
    assert "pg_dump" in caught.value.hint


# ---------------------------------------------------------------------- the live page
def test_the_page_sees_what_changes_in_a_shared_store(project: Shared) -> None:
    with SqlStore.open(project) as store, PageReader(project) as reader:
        session = store.create_session(new_session(), AT)
        mark, signature = reader.change_mark(), reader.signature(session.tag)
        driver = Driver(store, session.id)
        driver.open()
        assert reader.change_mark() != mark and reader.signature(session.tag) != signature
        signature = reader.signature(session.tag)
        store.heartbeat(session.id, AT, 1.0)
        assert reader.signature(session.tag) == signature, "that a daemon lives is no news"
        assert [one["experiment"] for one in reader.page(session.tag, Wanted(sort="metric", text="e"), 10, 0)] == []
        assert [one["experiment"] for one in reader.page(session.tag, Wanted(status="open"), 10, 0)] == [0]
        assert [one["experiment"] for one in reader.points(session.tag)] == [0] and not reader.open_runs(session.tag)

"""The database is created and upgraded by migrations, loses nothing on the way, and a newer one is left alone."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from autoresearchd.cli.main import run
from autoresearchd.domain.errors import SchemaTooNew, StoreError
from autoresearchd.domain.labels import Status
from autoresearchd.resources import bundled
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import Database, alembic_config, upgrade
from autoresearchd.store.schema.health import HEAD_REVISION
from autoresearchd.store.schema.tables import metadata
from tests.fakes.upgrades import by_two_at_once, later_migrations
from tests.integration.bench import Bench
from tests.unit.store.driver import AT, begin, commit_of, execute, new_session


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The migrations of a later version."""
    return later_migrations(tmp_path / "migrations")


def back(url: str, revision: str) -> None:
    """Make a database one of an older version."""
    database, config = Database(url), alembic_config(bundled("migrations"))
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
    database.close()


def columns(path: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def test_migrations_and_tables_agree(url: str) -> None:
    upgrade(url)
    database = Database(url)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    database.close()


def test_indices_and_foreign_keys_of_migrations_are_those_of_the_tables(url: str, tmp_path: Path) -> None:
    upgrade(url)
    made = Database(f"sqlite:///{tmp_path / 'made.db'}")
    metadata.create_all(made.engine)
    made.close()

    def schema(path: Path) -> dict[str, list[str]]:
        with closing(sqlite3.connect(path)) as db:
            rows = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'")
            return {name: sorted("".join(sql.strip(")").split()).split(",")) for name, sql in rows}

    assert schema(tmp_path / "state.db") == schema(tmp_path / "made.db")


def test_the_head_revision_is_that_of_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config(bundled("migrations"))).get_current_head() == HEAD_REVISION


def test_an_older_database_is_copied_and_keeps_its_rows(url: str, later: Path, tmp_path: Path) -> None:
    with SqlStore.open(url) as store:
        store.create_session(new_session(), AT)
        backup = upgrade(url, migrations=later, head="9999")  # while the store is open: its WAL is part of the copy
    assert backup == tmp_path / f"state.db.backup-{HEAD_REVISION}"
    assert "colour" in columns(tmp_path / "state.db", "session")
    assert "colour" not in columns(backup, "session")
    for path in (tmp_path / "state.db", backup):
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT tag FROM session").fetchall() == [("nov21",)]
    assert upgrade(url, migrations=later, head="9999") is None


def test_what_an_older_version_kept_is_confirmed(url: str, tmp_path: Path) -> None:
    """Its branch had every keep, each of them tested: a session that is resumed goes on from there."""
    with SqlStore.open(url) as store:
        lab = begin(store)
        for status in (Status.KEEP, Status.DISCARD, Status.KEEP, Status.CRASH):
            lab.decided(status, 1.0)
    back(url, "0005")
    assert "confirmed" not in columns(tmp_path / "state.db", "experiment")
    with SqlStore.open(url) as store:
        session = store.session("nov21")
        assert (session.confirmed, session.confirmed_experiment) == (session.incumbent, 2) == (commit_of(2), 2)
        assert [e.confirmed for e in store.experiments(session.id)] == [True, None, True, None]
        assert store.confirmations(session.id) == []


OLDER_RUNS = """
DELETE FROM run WHERE attempt < 0;
INSERT INTO run (session_id, number, run_index, seed, attempt, started_at, finished_at, label, value, duration_s, tier,
                 host, device, detail, program)
SELECT session_id, number, run_index + step, seed + step, attempt, started_at, finished_at, label, value, duration_s,
       tier, host, device, detail, program_then
FROM run JOIN (SELECT 1 AS step, NULL AS program_then UNION SELECT 2, 0) WHERE number > 0;
"""
"""What an older version ran of each experiment: its program twice, and the kept one beside it."""


def test_a_session_of_an_older_version_goes_on_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path)
    bench.policy.values = (0.0, 4.0, 2.5, 2.2, 2.0, 1.9)
    bench.run(3)
    before = bench.line()
    assert len(before) == 3, "the baseline and two keeps"
    bench.close()
    url, path = f"sqlite:///{bench.state / 'state.db'}", bench.state / "state.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(OLDER_RUNS)
    back(url, "0005")
    bench.git("update-ref", "-d", "refs/autoresearch/t/tip")
    bench.store = SqlStore.open(url)
    bench.run(6)
    assert bench.line()[:3] == before and len(bench.line()) > 3, "the branch goes on from where it was"
    assert [len(e.good_runs) for e in bench.experiments()] == [3, 2, 2, 2, 1, 1, 1]
    assert [e.confirmed for e in bench.experiments()[:4]] == [True, None, True, True]
    assert bench.workspace().tip() == bench.store.session("t").incumbent
    bench.close()
    monkeypatch.chdir(bench.root)
    for words in ("status --json", "experiments --json", "show 2", "show 2 --json"):
        assert run(words.split()) == 0
        shown = capsys.readouterr().out
    found = json.loads(shown)
    assert (found["confirmed"], len(found["runs"])) == (True, 3)


def test_a_migration_that_fails_leaves_the_database_as_it_was(url: str, tmp_path: Path) -> None:
    with SqlStore.open(url) as store:
        store.create_session(new_session(), AT)
    bad = later_migrations(tmp_path / "migrations", 'op.execute("INSERT INTO no_such_table VALUES (1)")')
    with pytest.raises(StoreError, match=f"{HEAD_REVISION} to 9999") as caught:
        upgrade(url, migrations=bad, head="9999")
    assert f"state.db.backup-{HEAD_REVISION}" in str(caught.value)
    assert "colour" not in columns(tmp_path / "state.db", "session")
    with SqlStore.open(url) as store:
        assert store.session("nov21").tag == "nov21"


def test_a_newer_database_is_refused_with_the_command_that_hints_it(url: str, later: Path, tmp_path: Path) -> None:
    upgrade(url, migrations=later, head="9999")
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(SchemaTooNew, match="pip install --upgrade autoresearchd"):
        SqlStore.open(url)
    assert (tmp_path / "state.db").read_bytes() == before
    assert not list(tmp_path.glob("*.backup-*"))


def test_somebody_elses_database_is_not_touched(url: str, tmp_path: Path) -> None:
    execute(tmp_path / "state.db", "CREATE TABLE recipes (a)")
    with pytest.raises(StoreError, match="recipes"):
        SqlStore.open(url)


def test_two_processes_may_create_the_database_at_the_same_moment(url: str) -> None:
    by_two_at_once(f"from autoresearchd.store.schema.database import upgrade; input(); upgrade({url!r})")
    with SqlStore.open(url) as store:
        assert store.sessions() == []


def test_opening_an_up_to_date_database_does_not_import_alembic(url: str) -> None:
    upgrade(url)
    code = (
        "import sys; from autoresearchd.store.repository import SqlStore;"
        f"SqlStore.open({url!r}).close(); sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

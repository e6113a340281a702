"""The database is created and upgraded by migrations, loses nothing on the way, and a newer one is left alone."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from autoresearchd.domain.errors import SchemaTooNew, StoreError
from autoresearchd.resources import bundled
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import Database, alembic_config, upgrade
from autoresearchd.store.schema.health import HEAD_REVISION
from autoresearchd.store.schema.tables import metadata
from tests.unit.store.driver import AT, execute, new_session

NEXT = """
from alembic import op
import sqlalchemy as sa
revision = "9999"
down_revision = "{head}"
def upgrade():
    op.add_column("session", sa.Column("colour", sa.Text(), nullable=True))
    {more}
def downgrade():
    op.drop_column("session", "colour")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The migrations of a later version."""
    folder = tmp_path / "migrations"
    shutil.copytree(bundled("migrations"), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9999_colour.py").write_text(NEXT.format(more="", head=HEAD_REVISION))
    return folder


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


def test_a_migration_that_fails_leaves_the_database_as_it_was(url: str, later: Path, tmp_path: Path) -> None:
    with SqlStore.open(url) as store:
        store.create_session(new_session(), AT)
    bad = NEXT.format(more='op.execute("INSERT INTO no_such_table VALUES (1)")', head=HEAD_REVISION)
    (later / "versions" / "9999_colour.py").write_text(bad)
    with pytest.raises(StoreError, match=f"{HEAD_REVISION} to 9999") as caught:
        upgrade(url, migrations=later, head="9999")
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
    code = f"from autoresearchd.store.schema.database import upgrade; input(); upgrade({url!r})"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        process.stdin.write("now\n")
        process.stdin.flush()
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    with SqlStore.open(url) as store:
        assert store.sessions() == []


def test_opening_an_up_to_date_database_does_not_import_alembic(url: str) -> None:
    upgrade(url)
    code = (
        "import sys; from autoresearchd.store.repository import SqlStore;"
        f"SqlStore.open({url!r}).close(); sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The schema of the database: created and upgraded by the Alembic migrations in ``migrations/``, never by hand.

Opening a database that is up to date costs one query; Alembic is imported only when there is something to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, StoreError
from autoresearchd.resources import bundled
from autoresearchd.store.schema.database import Database
from autoresearchd.store.schema.health import HEAD_REVISION, too_new

if TYPE_CHECKING:
    from alembic.config import Config


def upgrade(
    url: str, *, migrations: Path | None = None, head: str = HEAD_REVISION, busy_timeout: float = 10.0
) -> Path | None:
    """Bring the database to ``head``; the backup that was made before. SchemaTooNew; StoreError: it is none of ours."""
    database = Database(url, busy_timeout=busy_timeout)
    try:
        if database.path is not None:
            try:
                database.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFailure(
                    f"the folder {database.path.parent} of the database cannot be made: {error.strerror}",
                    hint="make its parent writable",
                ) from error
        with database.read() as connection:
            found = _revision(connection, database)
        if found == head:
            return None
        return _upgrade(database, found, head, migrations or bundled("migrations"))
    finally:
        database.close()


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
        raise too_new(database.name, found)
    backup = None
    if found is not None and database.path is not None:
        backup = database.path.with_name(f"{database.path.name}.backup-{found}")
        database.copy_to(backup)
    try:
        # One transaction around all of it: a second process waits at its beginning and then finds nothing left to do.
        with database.write() as connection:
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


def _revision(connection: Connection, database: Database) -> str | None:
    """Revision of the database; None when it is empty. Refuses what is not ours."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" not in tables:
        if tables:
            raise StoreError(
                f"{database.name} holds other tables ({', '.join(sorted(tables)[:3])}, …) and no revision of ours",
                hint="name another database",
            )
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()

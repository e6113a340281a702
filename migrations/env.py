"""Run by Alembic: applies migrations on the connection that ``autoresearchd.store.schema.database`` hands over."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # The caller began the transaction, and SQLite can change a schema inside one.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

"""Run by Alembic: applies migrations on the connection that ``autoresearchd.store.schema.database`` hands over."""

from __future__ import annotations

from alembic import context

from autoresearchd.store.schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # The caller began the transaction, and SQLite can change a schema inside one.
    transactional_ddl=True,
    # SQLite changes a column by copying its table.
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()

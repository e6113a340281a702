"""Proposals from outside wait in the journal until an experiment takes them.

Revision: 0009. Follows: 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "suggestion",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("files", sa.LargeBinary(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("said", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("proposer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("taken_in", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_suggestion_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suggestion")),
    )
    op.create_index("ix_suggestion_waiting", "suggestion", ["session_id", "taken_in"])


def downgrade() -> None:
    op.drop_index("ix_suggestion_waiting", table_name="suggestion")
    op.drop_table("suggestion")

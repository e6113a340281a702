"""Confirmations: what the branch has is told from the tip, which the next edit is made on.

Until now the branch had every keep, so that all of them count as confirmed.

Revision: 0006. Follows: 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("session", sa.Column("confirmed", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column(
        "session", sa.Column("confirmed_experiment", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.execute("UPDATE session SET confirmed = incumbent, confirmed_experiment = incumbent_experiment")
    op.add_column("experiment", sa.Column("confirmed", sa.Boolean(), nullable=True))
    op.execute("UPDATE experiment SET confirmed = TRUE WHERE status = 'keep'")
    op.create_table(
        "confirmation",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("experiment", sa.Integer(), nullable=False),
        sa.Column("against", sa.Integer(), nullable=False),
        sa.Column("after", sa.Integer(), nullable=False),
        sa.Column("pairs", sa.Integer(), nullable=True),
        sa.Column("budget", sa.Float(precision=53), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("moved", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("gain", sa.Float(precision=53), nullable=True),
        sa.Column("error", sa.Float(precision=53), nullable=True),
        sa.Column("probability", sa.Float(precision=53), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_confirmation_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_confirmation")),
    )
    op.create_table(
        "belief",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("after", sa.Float(precision=53), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.Column("error", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_belief_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "after", name=op.f("pk_belief")),
    )


def downgrade() -> None:
    op.drop_table("belief")
    op.drop_table("confirmation")
    op.drop_column("experiment", "confirmed")
    op.drop_column("session", "confirmed_experiment")
    op.drop_column("session", "confirmed")

"""Runs of the incumbent's program that were made beside an experiment are told from its own.

Revision: 0002. Follows: 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("run", sa.Column("program", sa.Integer(), nullable=True))

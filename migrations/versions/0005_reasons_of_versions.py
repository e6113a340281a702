"""Why a version of the local policy stands as it does.

Revision: 0005. Follows: 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("policy_version", sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False))

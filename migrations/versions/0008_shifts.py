"""With several slots an edit runs while others are kept: what those are believed to have brought is stored beside it.

Revision: 0008. Follows: 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("experiment", sa.Column("shift", sa.Float(precision=53), nullable=True))


def downgrade() -> None:
    op.drop_column("experiment", "shift")

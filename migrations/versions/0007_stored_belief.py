"""The belief in the tip is stored as a whole now and then, so that a restart does not replay the whole session.

Revision: 0007. Follows: 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("belief", sa.Column("state", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("belief", "state")

"""Answers of models, runs by attempt, and what policies count: labels, roles, visits.

Revision: 0004. Follows: 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_TALLIES = """
INSERT INTO tally (session_id, role, label, decided, keeps, reward)
SELECT e.session_id, COALESCE(p.role, ''), e.label, COUNT(*), SUM(CASE WHEN e.status = 'keep' THEN 1 ELSE 0 END),
       COALESCE(SUM(e.reward), 0.0)
FROM experiment e
LEFT JOIN proposal p ON p.session_id = e.session_id AND p.number = e.number AND p.attempt = e.attempt
WHERE e.status IS NOT NULL AND e.label IS NOT NULL
GROUP BY e.session_id, COALESCE(p.role, ''), e.label
"""


def upgrade() -> None:
    op.create_table(
        "answer",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("answer_index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("usd", sa.Float(precision=53), nullable=True),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(precision=53), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("finish", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=True),
        sa.Column("tokenizer_hash", sa.Text(), nullable=True),
        sa.Column("template_hash", sa.Text(), nullable=True),
        sa.Column("adapter", sa.Text(), nullable=True),
        sa.Column("sampling", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id", "number"],
            ["experiment.session_id", "experiment.number"],
            name=op.f("fk_answer_session_id_number_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "number", "answer_index", name=op.f("pk_answer")),
    )
    op.create_index("ix_answer_spent", "answer", ["at", "usd"], unique=False)
    op.create_table(
        "answer_body",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("answer_index", sa.Integer(), nullable=False),
        sa.Column("shared", sa.Integer(), nullable=False),
        sa.Column("messages", sa.LargeBinary(), nullable=True),
        sa.Column("completion", sa.LargeBinary(), nullable=True),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id", "number", "answer_index"],
            ["answer.session_id", "answer.number", "answer.answer_index"],
            name=op.f("fk_answer_body_session_id_number_answer_index_answer"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "number", "answer_index", name=op.f("pk_answer_body")),
    )
    # A run from before there were repairs is of the only attempt.
    op.add_column("run", sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.create_index("ix_experiment_commit", "experiment", ["session_id", "commit_sha"], unique=False)
    op.create_table(
        "tally",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("decided", sa.Integer(), nullable=False),
        sa.Column("keeps", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_tally_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "role", "label", name=op.f("pk_tally")),
    )
    op.execute(_TALLIES)
    op.create_table(
        "visit",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("visits", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id", "number"],
            ["experiment.session_id", "experiment.number"],
            name=op.f("fk_visit_session_id_number_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_visit")),
    )

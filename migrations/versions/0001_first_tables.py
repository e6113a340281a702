"""The first tables.

Revision: 0001. Follows: nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "session",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("executor", sa.Text(), nullable=False),
        sa.Column("base_commit", sa.Text(), nullable=False),
        sa.Column("incumbent", sa.Text(), nullable=False),
        sa.Column("incumbent_experiment", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=True),
        sa.Column("active_seconds", sa.Float(precision=53), nullable=False),
        sa.Column("max_experiments", sa.Integer(), nullable=True),
        sa.Column("max_seconds", sa.Float(precision=53), nullable=True),
        sa.Column("max_usd", sa.Float(precision=53), nullable=True),
        sa.Column("task_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
        sa.UniqueConstraint("tag", name=op.f("uq_session_tag")),
    )
    op.create_table(
        "control_request",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("taken", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_control_request_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_control_request")),
    )
    op.create_index("ix_control_request_pending", "control_request", ["session_id", "taken"], unique=False)
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("experiment", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_event_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_index("ix_event_session", "event", ["session_id", "id"], unique=False)
    op.create_table(
        "experiment",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("delta", sa.Float(precision=53), nullable=True),
        sa.Column("confidence", sa.Float(precision=53), nullable=True),
        sa.Column("sigma", sa.Float(precision=53), nullable=True),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("overhead_ms", sa.Float(precision=53), nullable=True),
        sa.Column("gpu_s", sa.Float(precision=53), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("commit_sha", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_experiment_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_experiment")),
    )
    op.create_index("ix_experiment_status", "experiment", ["session_id", "status", "number"], unique=False)
    op.create_index("ix_experiment_value", "experiment", ["session_id", "segment", "value", "number"], unique=False)
    op.create_table(
        "learner_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=True),
        sa.Column("algo", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("trajectories", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_learner_run_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_learner_run")),
    )
    op.create_index(op.f("ix_learner_run_session_id"), "learner_run", ["session_id"], unique=False)
    op.create_table(
        "note",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_in", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_note_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_note")),
    )
    op.create_index("ix_note_unseen", "note", ["session_id", "seen_in"], unique=False)
    op.create_table(
        "segment",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_segment_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_segment")),
    )
    op.create_table(
        "totals",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Integer(), nullable=False),
        sa.Column("experiments", sa.Integer(), nullable=False),
        sa.Column("keeps", sa.Integer(), nullable=False),
        sa.Column("discards", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("checks_failed", sa.Integer(), nullable=False),
        sa.Column("aborted", sa.Integer(), nullable=False),
        sa.Column("usd", sa.Float(precision=53), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("gpu_s", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_totals_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_totals")),
    )
    op.create_table(
        "asi",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("arch_change", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("next_action_hint", sa.Text(), nullable=False),
        sa.Column("extra", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id", "number"],
            ["experiment.session_id", "experiment.number"],
            name=op.f("fk_asi_session_id_number_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_asi")),
    )
    op.create_table(
        "policy_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=True),
        sa.Column("learner_run_id", sa.Integer(), nullable=True),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("adapter_path", sa.Text(), nullable=False),
        sa.Column("adapter_hash", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=True),
        sa.Column("tokenizer_hash", sa.Text(), nullable=True),
        sa.Column("template_hash", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("promoted_at", sa.BigInteger(), nullable=True),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["learner_run_id"],
            ["learner_run.id"],
            name=op.f("fk_policy_version_learner_run_id_learner_run"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"],
            ["policy_version.id"],
            name=op.f("fk_policy_version_parent_id_policy_version"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_policy_version_session_id_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_version")),
        sa.UniqueConstraint("version", name=op.f("uq_policy_version_version")),
    )
    op.create_index(op.f("ix_policy_version_session_id"), "policy_version", ["session_id"], unique=False)
    op.create_table(
        "proposal",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("code_hash", sa.Text(), nullable=False),
        sa.Column("expected_delta", sa.Float(precision=53), nullable=True),
        sa.Column("usd", sa.Float(precision=53), nullable=True),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(precision=53), nullable=False),
        sa.Column("state_id", sa.Text(), nullable=False),
        sa.Column("round_id", sa.Text(), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("reward_parts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reward_formula", sa.Text(), nullable=True),
        sa.Column("censored", sa.Boolean(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=True),
        sa.Column("tokenizer_hash", sa.Text(), nullable=True),
        sa.Column("template_hash", sa.Text(), nullable=True),
        sa.Column("generation_adapter", sa.Text(), nullable=True),
        sa.Column("sampling", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("changes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("asi", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id", "number"],
            ["experiment.session_id", "experiment.number"],
            name=op.f("fk_proposal_session_id_number_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "number", "attempt", name=op.f("pk_proposal")),
    )
    op.create_index("ix_proposal_code_hash", "proposal", ["session_id", "code_hash", "number"], unique=False)
    op.create_index(op.f("ix_proposal_round_id"), "proposal", ["round_id"], unique=False)
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("run_index", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("duration_s", sa.Float(precision=53), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("stages", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("curve", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id", "number"],
            ["experiment.session_id", "experiment.number"],
            name=op.f("fk_run_session_id_number_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("session_id", "number", "run_index", name=op.f("uq_run_session_id_number_run_index")),
    )
    op.create_table(
        "proposal_body",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("diff", sa.LargeBinary(), nullable=False),
        sa.Column("files", sa.LargeBinary(), nullable=False),
        sa.Column("messages", sa.LargeBinary(), nullable=True),
        sa.Column("completion", sa.LargeBinary(), nullable=True),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id", "number", "attempt"],
            ["proposal.session_id", "proposal.number", "proposal.attempt"],
            name=op.f("fk_proposal_body_session_id_number_attempt_proposal"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "number", "attempt", name=op.f("pk_proposal_body")),
    )

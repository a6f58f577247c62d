"""The audit log, which only grows; events, and their deliveries to webhooks."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

refusal = "the audit log is append-only"


def upgrade() -> None:
    """Make the tables of management."""
    create_audit()
    create_events()


def create_audit() -> None:
    """The log, with triggers that refuse what would change its past."""
    op.create_table(
        "audit_records",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("record_time", sa.Float, nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("actor_id", sa.String(128), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("ix_audit_records_tenant", "audit_records", ["tenant_id", "sequence"])
    op.execute("INSERT INTO counters (name, value) VALUES ('audit', 0)")
    if op.get_bind().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_records_no_{change.lower()} BEFORE {change} "
                f"ON audit_records BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            )
    else:
        op.execute(
            "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{refusal}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_records_no_change BEFORE UPDATE OR DELETE OR TRUNCATE "
            "ON audit_records FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        )


def create_events() -> None:
    """What happened, and who is told."""
    op.create_table(
        "events",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("occasion", sa.String(255), nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("occasion", name="uq_events_occasion"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("event_id", sa.String(64), sa.ForeignKey("events.id"), primary_key=True),
        sa.Column("webhook_id", sa.String(64), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_time", sa.Float, nullable=False),
        sa.Column("last_status", sa.Integer, nullable=True),
        sa.Column("last_error", sa.String(255), nullable=True),
    )
    op.create_index(
        "ix_webhook_deliveries_due", "webhook_deliveries", ["state", "next_attempt_time"]
    )

"""An `Idempotency-Key` is charged once; its answer may be given by any gateway."""

import sqlalchemy as sa
from alembic import op

from headrace.storage.migrations.versions.m0006_late_rating import kept, refusal
from headrace.storage.migrations.versions.m0009_units_and_claims import charge_names

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add what both need."""
    op.add_column("settlements", sa.Column("is_borne", sa.Boolean, nullable=True))
    guard_settlements()
    op.create_table(
        "charged_keys",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), primary_key=True),
        sa.Column("begin_time", sa.Float, nullable=False),
        sa.Column("settle_time", sa.Float, nullable=False),
    )
    op.create_index("ix_charged_keys_digest", "charged_keys", ["digest"])
    op.create_index("ix_charged_keys_settle_time", "charged_keys", ["settle_time"])
    op.create_table(
        "replay_answers",
        sa.Column("request_id", sa.String(128), primary_key=True),
        sa.Column("answer", sa.LargeBinary, nullable=False),
        sa.Column("expire_time", sa.Float, nullable=False),
    )
    op.create_index("ix_replay_answers_expire_time", "replay_answers", ["expire_time"])


def guard_settlements() -> None:
    """Nothing but a first price changes a settlement; the new column is among what stays."""
    bind = op.get_bind()
    columns = [column["name"] for column in sa.inspect(bind).get_columns("settlements")]
    same_names = [name for name in kept(columns) if name not in charge_names]
    rated = "OLD.price_book_id IS NULL AND NEW.price_book_id IS NOT NULL"
    if bind.dialect.name == "sqlite":
        same = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in same_names)
        op.execute("DROP TRIGGER settlements_no_update")
        op.execute(
            "CREATE TRIGGER settlements_no_update BEFORE UPDATE ON settlements WHEN NOT "
            f"({rated} AND {same}) BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )
        return
    same = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in same_names)
    op.execute(
        "CREATE OR REPLACE FUNCTION refuse_settlement_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {rated} AND {same} THEN RETURN NEW; END IF; "
        f"RAISE EXCEPTION '{refusal}'; END $$"
    )

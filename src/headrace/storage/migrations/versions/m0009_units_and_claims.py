"""Requests, images, sound and characters are charged; `Idempotency-Key`s are claimed."""

import sqlalchemy as sa
from alembic import op

from headrace.storage.migrations.versions.m0006_late_rating import kept, refusal

revision = "0009"
down_revision = "0008"

count_names = ("unit_requests", "images", "audio_ms", "characters")
charge_names = (
    "per_request_nanousd",
    "per_image_nanousd",
    "per_second_nanousd",
    "per_character_nanousd",
)
daily_names = ("images", "audio_ms", "characters")


def upgrade() -> None:
    """Add both."""
    add_units()
    op.create_table(
        "replay_claims",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(128), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("gateway_id", sa.String(64), nullable=False),
        sa.Column("claim_time", sa.Float, nullable=False),
        sa.Column("expire_time", sa.Float, nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
    )
    op.create_index("ix_replay_claims_expire_time", "replay_claims", ["expire_time"])


def add_units() -> None:
    """Add the columns; the trigger on settlements lets late rating fill the charges."""
    for name in (*count_names, *charge_names):
        op.add_column("settlements", sa.Column(name, sa.BigInteger, nullable=True))
    for name in daily_names:
        column = sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        op.add_column("usage_daily", column)
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

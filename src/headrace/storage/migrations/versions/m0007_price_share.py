"""A settlement says at which share of its price book's prices it was rated."""

import sqlalchemy as sa
from alembic import op

from headrace.storage.migrations.versions.m0006_late_rating import kept, refusal

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column, which the trigger on settlements then keeps as it keeps the others."""
    op.add_column("settlements", sa.Column("price_percent", sa.Integer, nullable=True))
    bind = op.get_bind()
    columns = kept([column["name"] for column in sa.inspect(bind).get_columns("settlements")])
    rated = "OLD.price_book_id IS NULL AND NEW.price_book_id IS NOT NULL"
    if bind.dialect.name == "sqlite":
        same = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in columns)
        op.execute("DROP TRIGGER settlements_no_update")
        op.execute(
            "CREATE TRIGGER settlements_no_update BEFORE UPDATE ON settlements WHEN NOT "
            f"({rated} AND {same}) BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )
        return
    same = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in columns)
    op.execute(
        "CREATE OR REPLACE FUNCTION refuse_settlement_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {rated} AND {same} THEN RETURN NEW; END IF; "
        f"RAISE EXCEPTION '{refusal}'; END $$"
    )

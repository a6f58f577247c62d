"""Invoices, credit notes and their numbers; credits found without reading every settlement."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the tables of billing."""
    op.create_table(
        "invoices",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("first_day", sa.String(10), nullable=False),
        sa.Column("last_day", sa.String(10), nullable=False),
        sa.Column("number", sa.String(64), nullable=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("number", name="uq_invoices_number"),
    )
    op.create_index("ix_invoices_tenant", "invoices", ["tenant_id", "first_day"])
    op.create_table(
        "credit_notes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("invoice_id", sa.String(64), sa.ForeignKey("invoices.id"), nullable=False),
        sa.Column("number", sa.String(64), nullable=False),
        sa.Column("net_nanousd", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("number", name="uq_credit_notes_number"),
    )
    op.create_index("ix_credit_notes_invoice", "credit_notes", ["invoice_id"])
    op.create_table(
        "number_series",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    others = sa.text("kind <> 'settlement'")
    op.create_index(
        "ix_entries_not_settlements",
        "entries",
        ["post_time"],
        sqlite_where=others,
        postgresql_where=others,
    )

"""The resources, the ledger's book and its usage tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table of the first release."""
    create_resources()
    create_book()
    create_usage()


def create_resources() -> None:
    """Desired and observed state, and the counter that readers poll."""
    op.create_table(
        "resources",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("parent_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("kind", "parent_id", "name", name="uq_resources_kind_parent_name"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO counters (name, value) VALUES ('revision', 0)")


def create_book() -> None:
    """Accounts, entries and postings."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("tenant_id", sa.String(64), nullable=True),
        sa.Column("debits_nanousd", sa.BigInteger, nullable=False),
        sa.Column("credits_nanousd", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("post_time", sa.Float, nullable=False),
    )
    op.create_table(
        "postings",
        sa.Column("entry_id", sa.String(128), sa.ForeignKey("entries.id"), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True),
        sa.Column("account_id", sa.String(128), sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("debit_nanousd", sa.BigInteger, nullable=False),
        sa.Column("credit_nanousd", sa.BigInteger, nullable=False),
    )


def create_usage() -> None:
    """Settlements, their daily sums, and what came out of which journal."""
    op.create_table(
        "settlements",
        sa.Column("request_id", sa.String(128), sa.ForeignKey("entries.id"), primary_key=True),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("price_book_id", sa.String(64), nullable=True),
        sa.Column("input_nanousd", sa.BigInteger, nullable=True),
        sa.Column("cached_input_nanousd", sa.BigInteger, nullable=True),
        sa.Column("output_nanousd", sa.BigInteger, nullable=True),
        sa.Column("waived_nanousd", sa.BigInteger, nullable=True),
        sa.Column("amount_nanousd", sa.BigInteger, nullable=True),
        sa.Column("settle_time", sa.Float, nullable=False),
    )
    op.create_index("ix_settlements_settle_time", "settlements", ["settle_time"])
    op.create_table(
        "usage_daily",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("tenant_id", sa.String(64), primary_key=True),
        sa.Column("project_id", sa.String(64), primary_key=True),
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("finished", sa.BigInteger, nullable=False),
        sa.Column("aborted", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("unrated", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("amount_nanousd", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "journal_cursors",
        sa.Column("journal_id", sa.String(64), primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )

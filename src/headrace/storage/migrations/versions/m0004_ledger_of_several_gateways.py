"""More token classes, an append-only book, what gateways lease, and what engines counted."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0002"

book = ("entries", "postings", "settlements")
refusal = "the ledger is append-only"


def upgrade() -> None:
    """Add the columns and tables; from here on the book only grows."""
    add_token_classes()
    create_limits()
    create_samples()
    protect_book()


def add_token_classes() -> None:
    """In settlements NULL is what nobody counted; sums begin at 0."""
    for name in ("reasoning", "draft", "embedding", "image"):
        op.add_column("settlements", sa.Column(f"{name}_tokens", sa.BigInteger, nullable=True))
        op.add_column("settlements", sa.Column(f"{name}_nanousd", sa.BigInteger, nullable=True))
        op.add_column(
            "usage_daily",
            sa.Column(f"{name}_tokens", sa.BigInteger, nullable=False, server_default="0"),
        )
    op.add_column("settlements", sa.Column("replica_id", sa.String(64), nullable=True))


def create_limits() -> None:
    """What each gateway may still use of each limit, and what was used in which window."""
    op.create_table(
        "limit_gateways",
        sa.Column("gateway_id", sa.String(64), primary_key=True),
        sa.Column("operation", sa.BigInteger, nullable=False),
        sa.Column("report", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("seen_time", sa.Float, nullable=False),
    )
    op.create_table(
        "limit_leases",
        sa.Column("limit_key", sa.String(512), primary_key=True),
        sa.Column("gateway_id", sa.String(64), primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_limit_leases_gateway", "limit_leases", ["gateway_id"])
    op.create_table(
        "limit_uses",
        sa.Column("limit_key", sa.String(512), primary_key=True),
        sa.Column("window_number", sa.BigInteger, primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
    )


def create_samples() -> None:
    """What the engines' own counters said, to compare with what was billed."""
    op.create_table(
        "engine_samples",
        sa.Column("replica_id", sa.String(64), primary_key=True),
        sa.Column("sample_time", sa.Float, primary_key=True),
        sa.Column("generation", sa.String(64), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("running_requests", sa.BigInteger, nullable=True),
    )


def protect_book() -> None:
    """Triggers that refuse what would change the past."""
    if op.get_bind().dialect.name == "sqlite":
        for table in book:
            for change in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{refusal}'; END $$"
    )
    for table in book:
        op.execute(
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()"
        )

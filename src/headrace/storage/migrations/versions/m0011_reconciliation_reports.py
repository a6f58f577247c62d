"""A report each hour of what engines counted and what was billed."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "reconciliation_reports",
        sa.Column("begin_time", sa.Float, primary_key=True),
        sa.Column("end_time", sa.Float, nullable=False),
        sa.Column("make_time", sa.Float, nullable=False),
        sa.Column("difference_tokens", sa.BigInteger, nullable=False),
        sa.Column("unexplained_tokens", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )

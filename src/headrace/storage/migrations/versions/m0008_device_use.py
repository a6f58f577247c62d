"""How long each replica held devices, by day: what costs are computed from."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "device_use",
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("replica_id", sa.String(64), nullable=False),
        sa.Column("device_type", sa.String(64), nullable=False),
        sa.Column("deployment_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("held_s", sa.Float, nullable=False),
        sa.Column("busy_s", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("day", "replica_id", "device_type"),
    )

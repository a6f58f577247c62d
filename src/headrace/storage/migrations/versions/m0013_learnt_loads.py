"""What replicas of each deployment were found to bear, over restarts of the control plane."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "learnt_loads",
        sa.Column("deployment_id", sa.String(64), primary_key=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("tokens_per_s", sa.Float, nullable=False),
        sa.Column("too_much_tokens_per_s", sa.Float, nullable=True),
        sa.Column("cut_time", sa.Float, nullable=True),
    )

"""Samples of engines are read and forgotten by their time."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the index."""
    op.create_index("ix_engine_samples_sample_time", "engine_samples", ["sample_time"])

"""Which step of the migrations a database has taken, read without loading the migration tool."""

from sqlalchemy import Connection, column, inspect, select, table

from headrace.base.errors import ConfigurationError

head_revision = "0002"  # the last step in `migrations/versions`; a test keeps it true
released_revisions = ("0001", "0002")

version_table = table("alembic_version", column("version_num"))


def is_current(connection: Connection, location: str) -> bool:
    """Whether the database has this program's tables; ConfigurationError if it has newer ones."""
    if not inspect(connection).has_table(version_table.name):
        return False
    revision = connection.execute(select(version_table.c.version_num)).scalar_one_or_none()
    if revision is not None and revision not in released_revisions:
        raise ConfigurationError(
            f"the database {location} was written by a newer headrace (schema {revision}; this "
            f"one knows {head_revision}); upgrade headrace, or use another data directory"
        )
    return revision == head_revision

"""Which step of the migrations a database has taken, and how it takes the next ones."""

from sqlalchemy import Connection, column, inspect, select, table

from headrace.base.errors import ConfigurationError
from headrace.storage.sessions import Sessions

head_revision = "0013"  # the last step in `migrations/versions`; a test keeps it true
released_revisions = (
    "0001",
    "0002",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
)

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


def migrate(sessions: Sessions) -> None:
    """Run the missing migrations, unless another process did it while we waited to write."""
    # Loading Alembic takes longer than everything else at a start, and almost none needs it.
    from headrace.storage.migrate import upgrade_to_head  # noqa: PLC0415

    with sessions.write() as connection:
        if not is_current(connection, sessions.location):
            upgrade_to_head(connection)

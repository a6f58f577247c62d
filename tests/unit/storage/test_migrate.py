"""The migrations lead to exactly the tables that the code reads and writes."""

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import headrace.storage.migrations
from headrace.storage import Database
from headrace.storage.schema_version import head_revision, released_revisions
from headrace.storage.tables import metadata


def test_the_migrated_tables_are_those_of_the_code(database: Database) -> None:
    with database.store._sessions.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_known_revisions_are_those_that_ship() -> None:
    config = Config()
    location = Path(headrace.storage.migrations.__file__).parent
    config.set_main_option("script_location", str(location))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_current_head() == head_revision
    assert {script.revision for script in scripts.walk_revisions()} == set(released_revisions)

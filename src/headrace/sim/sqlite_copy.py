"""New SQLite stores without the migrations, which take longer than most tests of a store.

The first one of a process is made by `open_sqlite`; the others are copies of its file.
"""

import functools
import tempfile
from pathlib import Path

from headrace.base.clock import Clock
from headrace.storage import Database, open_sqlite


def open_sqlite_copy(path: Path, clock: Clock | None = None) -> Database:
    """The same as `open_sqlite`; a file that is missing is a copy of a new one."""
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(new_file())
    return open_sqlite(path, clock)


@functools.cache
def new_file() -> bytes:
    """What is on the disk once a new store is closed."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "headrace.db"
        open_sqlite(path).close()
        assert [each.name for each in path.parent.iterdir()] == [path.name], "all is in one file"
        return path.read_bytes()

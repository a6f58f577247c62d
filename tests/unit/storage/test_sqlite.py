"""Opening a database file: private, migrated, and clear about what is wrong with it."""

import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, SetupError, Unavailable
from headrace.spec.models import Model, WeightedTarget
from headrace.spec.tenancy import Tenant
from headrace.storage import Database, open_sqlite


def tenant(name: str) -> Tenant:
    return Tenant(id=f"ten_{name}", name=name, create_time=1.0)


def test_every_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "headrace.db")
    database.store.create(tenant("a"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("headrace.db", "headrace.db-wal", "headrace.db-shm"), 0o600)
    database.close()


def test_what_was_stored_is_there_after_reopening(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "headrace.db")
    created = database.store.create(tenant("a"))
    database.close()
    database = open_sqlite(tmp_path / "headrace.db")
    assert database.store.get(Tenant, created.id) == created
    database.close()


def test_commits_are_synced_and_foreign_keys_hold(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "headrace.db")
    with database.store._sessions.read() as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert pragmas == ["wal", 2, 1]


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    open_sqlite(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(ConfigurationError, match=r"newer headrace.*9999.*upgrade"):
        open_sqlite(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    path.write_bytes(b"this is a text file, not a database" * 200)
    with pytest.raises(SetupError, match=r"damaged.*restore a backup"):
        open_sqlite(path)


def test_damage_behind_a_good_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    database = open_sqlite(path)
    for number in range(200):
        database.store.create(tenant(f"tenant-{number}"))
    database.close()
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size_bytes - 4096))
    with pytest.raises(SetupError, match="damaged"):
        open_sqlite(path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*check that its directory"):
        open_sqlite(tmp_path / "nowhere" / "headrace.db")


def test_a_lock_that_lasts_is_reported_as_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    database = open_sqlite(path, busy_timeout_s=0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked") as raised:
            database.store.create(tenant("a"))
        assert raised.value.retry_after_s
        assert database.store.list(Tenant) == []  # reading goes on
        other.execute("ROLLBACK")
    database.store.create(tenant("a"))
    database.close()


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "headrace.db")
    created = database.store.create(tenant("a"))
    with database.store._sessions.read() as connection:
        used = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {used}")
    large = Model(
        id="mod_1",
        name="large",
        create_time=1.0,
        targets=tuple(WeightedTarget(f"ver_{number}") for number in range(5_000)),
    )
    with pytest.raises(Unavailable, match="full; free some space"):
        database.store.create(large)
    assert database.store.get(Tenant, created.id) == created
    database.close()


def test_threads_share_one_database(database: Database) -> None:
    def create(worker: int) -> None:
        for number in range(25):
            database.store.create(tenant(f"{worker}-{number}"))

    threads = [threading.Thread(target=create, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(database.store.list(Tenant)) == 200
    assert database.store.revision() == 200


def test_opening_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    open_sqlite(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        database = open_sqlite(path, busy_timeout_s=0.0)
        assert database.store.list(Tenant) == []
        database.close()

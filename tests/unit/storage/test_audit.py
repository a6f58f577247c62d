"""The audit log: records chain, changes and records share their fate, tampering is found."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from headrace.base.errors import HeadraceError
from headrace.spec.audit import ChainedRecord
from headrace.spec.tenancy import Tenant
from headrace.storage import Database, open_sqlite
from headrace.storage.audit import AuditLog


def write(log: AuditLog, action: str = "create_key", tenant_id: str = "ten_a") -> ChainedRecord:
    return log.append(
        record_time=7.0,
        actor_kind="user",
        actor_id="usr_1",
        actor_name="ada",
        action=action,
        tenant_id=tenant_id,
        target="/keys",
        detail={"name": "web"},
    )


def test_records_are_numbered_read_in_order_and_verified(database: Database) -> None:
    written = [write(database.audit, action) for action in ("a", "b", "c")]
    assert [item.record.sequence for item in written] == [1, 2, 3]
    assert database.audit.read(limit=2) == written[:2]
    assert database.audit.read(after=2, limit=9) == written[2:]
    assert database.audit.read(limit=2, newest_first=True) == [written[2], written[1]]
    assert database.audit.verify() == []
    assert database.audit.verify({2: written[1].hash}) == []


def test_a_tenant_sees_its_own_records(database: Database) -> None:
    write(database.audit)
    other = write(database.audit, tenant_id="ten_b")
    assert database.audit.read(limit=9, tenant_id="ten_b") == [other]


def test_a_change_that_fails_leaves_no_record_and_no_number(database: Database) -> None:
    def change_and_fail() -> None:
        with database.transaction():
            database.store.create(Tenant(id="ten_1", name="acme", create_time=1.0))
            write(database.audit)
            raise ValueError("after the change")

    with pytest.raises(ValueError, match="after the change"):
        change_and_fail()
    assert database.store.list(Tenant) == []
    assert database.audit.read(limit=9) == []
    assert write(database.audit).record.sequence == 1
    assert database.audit.verify() == []


def test_what_fails_inside_a_transaction_is_undone_alone(database: Database) -> None:
    acme = Tenant(id="ten_1", name="acme", create_time=1.0)
    with database.transaction():
        database.store.create(acme)
        with pytest.raises(HeadraceError, match="exists already"):
            database.store.create(Tenant(id="ten_2", name="acme", create_time=1.0))
        write(database.audit)
    assert [tenant.id for tenant in database.store.list(Tenant)] == ["ten_1"]
    assert database.audit.verify() == []


@pytest.mark.parametrize(
    "change", ["DELETE FROM audit_records", "UPDATE audit_records SET hash='1'"]
)
def test_the_database_refuses_to_change_the_past(database: Database, change: str) -> None:
    write(database.audit)
    with (
        pytest.raises(DBAPIError, match="append-only"),
        database.audit._sessions.engine.begin() as connection,
    ):
        connection.exec_driver_sql(change)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (
            "UPDATE audit_records SET body = CAST(replace(body, 'ada', 'eve') AS BLOB) "
            "WHERE sequence = 2",
            "2 does",
        ),
        ("DELETE FROM audit_records WHERE sequence = 2", "2 is missing"),
        ("DELETE FROM audit_records WHERE sequence = 3", "3 records were written"),
        ("UPDATE audit_records SET actor_id = 'usr_2' WHERE sequence = 1", "other values"),
        ("UPDATE audit_records SET body = CAST('x' AS BLOB) WHERE sequence = 3", "can't be read"),
        ("UPDATE audit_records SET body = 'text' WHERE sequence = 1", "can't be read"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: str, finding: str) -> None:
    path = tmp_path / "damaged.db"
    database = open_sqlite(path)
    for _ in range(3):
        write(database.audit)
    with closing(sqlite3.connect(path)) as connection:
        for change in ("update", "delete"):
            connection.execute(f"DROP TRIGGER audit_records_no_{change}")
        connection.execute(damage)
        connection.commit()
    assert any(finding in line for line in database.audit.verify()), database.audit.verify()
    database.close()


def test_a_rewritten_log_differs_from_a_hash_noted_elsewhere(database: Database) -> None:
    write(database.audit)
    assert database.audit.verify({1: "f" * 64, 5: "0" * 64}) == [
        "record 1 has not the hash that was noted for it",
        "record 5, noted elsewhere, is missing",
    ]


def test_writers_at_the_same_time_make_one_chain(database: Database) -> None:
    def write_some() -> None:
        for _ in range(5):
            write(database.audit)

    threads = [threading.Thread(target=write_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(database.audit.read(limit=99)) == 20
    assert database.audit.verify() == []

"""One database, several processes: nothing is lost, doubled or half done, also after kill -9."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import Conflict
from headrace.spec.tenancy import Tenant
from headrace.storage import open_sqlite

creates_and_increments = """
import sys
import msgspec
from headrace.base.errors import Conflict
from headrace.spec.tenancy import Tenant
from headrace.storage import open_sqlite

path, name = sys.argv[1:]
store = open_sqlite(path).store
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    store.create(Tenant(id=f"ten_{name}_{number}", name=f"{name}-{number}", create_time=1.0))
    while True:
        counter = store.get(Tenant, "ten_counter")
        floor = counter.credit_floor_nanousd + 1
        try:
            store.update(msgspec.structs.replace(counter, credit_floor_nanousd=floor))
            break
        except Conflict:
            continue
"""

posts_for_ever = """
import sys
from headrace.spec.settlements import *
from headrace.storage import open_sqlite

ledger = open_sqlite(sys.argv[1]).ledger
batch_number = 0
while True:
    ledger.post([
        Settlement(
            request_id=f"r{batch_number}-{number}", tenant_id="ten_a", project_id="p", key_id="k",
            model="m", usage=TokenUsage(5, 0, 5), outcome=Outcome.FINISHED,
            source=UsageSource.ENGINE, price_book_id="b", charge=Charge(output_nanousd=3),
            settle_time=1.8e9,
        )
        for number in range(50)
    ], journal_id="jrn", sequence=batch_number + 1)
    batch_number += 1
    print(batch_number, flush=True)
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_write_at_once_and_both_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    database = open_sqlite(path)
    store = database.store
    store.create(Tenant(id="ten_counter", name="c", create_time=1.0, credit_floor_nanousd=0))
    revision = store.revision()
    writers = [start(creates_and_increments, str(path), name) for name in ("a", "b")]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n")
        assert writer.returncode == 0
    assert len(store.list(Tenant)) == 81
    assert store.get(Tenant, "ten_counter").credit_floor_nanousd == 80
    assert store.revision() == revision + 160
    database.close()


def test_many_processes_may_make_the_database_at_once(tmp_path: Path) -> None:
    script = "import sys; from headrace.storage import open_sqlite; open_sqlite(sys.argv[1])"
    openers = [start(script, str(tmp_path / "headrace.db")) for _ in range(4)]
    for opener in openers:
        opener.communicate()
    assert [opener.returncode for opener in openers] == [0] * 4
    database = open_sqlite(tmp_path / "headrace.db")
    assert database.store.revision() == 0
    database.close()


def test_a_killed_process_leaves_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    writer = start(posts_for_ever, str(path))
    assert writer.stdout is not None
    with writer:
        committed = [int(writer.stdout.readline()) for _ in range(5)][-1]
        writer.kill()
    database = open_sqlite(path)
    cursor = database.ledger.snapshot().sequences["jrn"]
    assert cursor >= committed
    assert database.ledger.settlement_count() == cursor * 50
    assert database.ledger.check() == []
    database.close()


def test_a_reader_is_not_fooled_by_an_old_version(tmp_path: Path) -> None:
    first, second = (open_sqlite(tmp_path / "headrace.db") for _ in range(2))
    created = first.store.create(Tenant(id="ten_1", name="a", create_time=1.0))
    second.store.update(msgspec.structs.replace(created, active=False))
    with pytest.raises(Conflict):
        first.store.update(created)
    assert not first.store.get(Tenant, "ten_1").active
    first.close()
    second.close()

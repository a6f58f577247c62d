"""A store that reads from memory: as the plain one, a moment late for others' changes."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import Conflict, NotFound
from headrace.sim.clock import ManualClock
from headrace.spec.tenancy import Project, Tenant
from headrace.storage import Database, open_sqlite
from headrace.storage.cached_store import CachedStore
from headrace.storage.store import Store

max_age_s = 0.5
acme = Tenant(id="ten_1", name="acme", create_time=1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_sqlite(tmp_path / "headrace.db")) as opened:
        yield opened


@pytest.fixture
def seen(database: Database, clock: ManualClock) -> CachedStore:
    return database.cached_store(clock, max_age_s)


def test_the_change_of_another_is_seen_a_moment_later(
    database: Database, seen: CachedStore, clock: ManualClock
) -> None:
    assert seen.list(Tenant) == []
    before = seen.revision()
    made = database.store.create(acme)
    assert (seen.list(Tenant), seen.revision()) == ([], before)
    clock.advance(max_age_s)
    assert seen.list(Tenant) == [made]
    assert seen.revision() > before
    assert seen.get(Tenant, made.id) == seen.find(Tenant, "acme") == made


def test_its_own_changes_are_seen_at_once(seen: CachedStore) -> None:
    made = seen.create(acme)
    assert seen.list(Tenant) == [made]
    changed = seen.update(msgspec.structs.replace(made, name="other"))
    assert seen.find(Tenant, "other") == changed
    assert seen.find(Tenant, "acme") is None
    seen.delete(changed)
    with pytest.raises(NotFound):
        seen.get(Tenant, made.id)


def test_what_is_no_longer_true_is_not_written(database: Database, seen: CachedStore) -> None:
    known = seen.create(acme)
    assert seen.get(Tenant, known.id) == known
    newer = database.store.update(msgspec.structs.replace(known, name="other"))
    with pytest.raises(Conflict):
        seen.update(msgspec.structs.replace(seen.get(Tenant, known.id), name="third"))
    assert seen.get(Tenant, known.id) == newer  # a conflict is a reason to look again


def test_children_are_listed_by_their_parent(seen: CachedStore) -> None:
    seen.create(acme)
    mine = seen.create(Project(id="prj_1", name="a", parent_id="ten_1", create_time=1.0))
    seen.create(Project(id="prj_2", name="a", parent_id="ten_2", create_time=1.0))
    assert seen.list(Project, "ten_1") == [mine]
    assert seen.find(Project, "a", "ten_1") == mine
    assert len(seen.list(Project)) == 2


def test_a_transaction_sees_itself_and_leaves_nothing_behind_if_it_fails(
    database: Database, seen: CachedStore
) -> None:
    def fail() -> None:
        with database.transaction():
            seen.create(acme)
            assert len(seen.list(Tenant)) == 1
            raise Conflict("changed our mind")

    with pytest.raises(Conflict):
        fail()
    assert seen.list(Tenant) == []


def told(read: Callable[..., object], reads: list[str]) -> Callable[..., object]:
    """The same read, which writes down its name first."""

    def reading(*arguments: object) -> object:
        reads.append(read.__name__)
        return read(*arguments)

    return reading


def test_a_loop_that_looks_again_reads_nothing_twice(
    seen: CachedStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    for name in ("_select", "revision"):
        monkeypatch.setattr(Store, name, told(getattr(Store, name), reads))
    for _ in range(10):
        seen.list(Tenant)
        seen.find(Tenant, "acme")
        seen.list(Project, "ten_1")
    assert sorted(reads) == ["_select", "_select", "revision"]
    clock.advance(max_age_s)
    seen.list(Tenant)
    assert sorted(reads) == ["_select", "_select", "revision", "revision"]

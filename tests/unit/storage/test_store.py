"""Resources: one name, one version at a time, one growing revision."""

import msgspec
import pytest

from headrace.base.errors import Conflict, InvalidRequest, NotFound
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.prices import Price, PriceBook
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant
from headrace.storage import Database

tenant = Tenant(id="ten_1", name="acme", create_time=1.0, credit_floor_nanousd=0)
other = Tenant(id="ten_2", name="other", create_time=1.0)


def test_a_resource_comes_back_as_it_was_at_version_one(database: Database) -> None:
    created = database.store.create(tenant)
    assert created == msgspec.structs.replace(tenant, version=1)
    assert database.store.get(Tenant, "ten_1") == created
    assert database.store.find(Tenant, "acme") == created


def test_every_shape_of_body_survives(database: Database) -> None:
    price = Price(
        input_nanousd_per_million=1,
        cached_input_nanousd_per_million=0,
        output_nanousd_per_million=2**40,
    )
    key = ApiKey(
        id="key_1", name="k", parent_id="prj_1", create_time=2.5, secret_hmac=bytes(range(32))
    )
    book = PriceBook(
        id="prb_1", name="b", create_time=1.0, effective_time=2.0, prices={"модель": price}
    )
    replica = Replica(id="rep_1", name="r", create_time=1.0, state=ReplicaState.ACTIVE)
    store = database.store
    assert store.get(ApiKey, store.create(key).id).secret_hmac == key.secret_hmac
    assert store.get(PriceBook, store.create(book).id).prices == book.prices
    assert store.get(Replica, store.create(replica).id).state is ReplicaState.ACTIVE


def test_a_name_is_taken_once_under_each_parent(database: Database) -> None:
    store = database.store
    store.create(Project(id="prj_1", name="p", parent_id="ten_1", create_time=1.0))
    store.create(Project(id="prj_2", name="p", parent_id="ten_2", create_time=1.0))
    store.create(Deployment(id="dep_1", name="p", create_time=1.0, model_version_id="v"))
    with pytest.raises(Conflict, match="'p' exists already"):
        store.create(Project(id="prj_3", name="p", parent_id="ten_1", create_time=1.0))
    found = store.find(Project, "p", "ten_2")
    assert found is not None
    assert found.id == "prj_2"
    assert store.find(Project, "p") is None


def test_listing_is_by_kind_and_parent_in_the_order_of_ids(database: Database) -> None:
    store = database.store
    for number in (3, 1, 2):
        store.create(
            Project(id=f"prj_{number}", name=f"{number}", parent_id="ten_1", create_time=1.0)
        )
    store.create(Project(id="prj_4", name="4", parent_id="ten_2", create_time=1.0))
    assert [project.name for project in store.list(Project)] == ["1", "2", "3", "4"]
    assert [project.name for project in store.list(Project, "ten_1")] == ["1", "2", "3"]
    assert store.list(Tenant) == []


def test_a_page_is_the_part_of_a_list_after_an_id(database: Database) -> None:
    store = database.store
    store.create(tenant)
    for number in range(5):
        parent = "ten_1" if number % 2 == 0 else "ten_2"
        store.create(
            Project(id=f"prj_{number}", name=f"{number}", parent_id=parent, create_time=1.0)
        )
    whole = store.list(Project)
    assert store.page(Project, after="", limit=9) == whole
    assert store.page(Project, after="", limit=2) == whole[:2]
    assert store.page(Project, after="prj_1", limit=2) == whole[2:4]
    assert store.page(Project, "ten_1", after="prj_0", limit=1) == [whole[2]]
    assert store.page(Project, after="prj_4", limit=2) == []


def test_an_update_raises_the_version_and_keeps_the_rest(database: Database) -> None:
    created = database.store.create(tenant)
    changed = database.store.update(msgspec.structs.replace(created, active=False))
    assert (changed.version, changed.active) == (2, False)
    assert database.store.get(Tenant, "ten_1") == changed


def test_a_stale_update_or_delete_changes_nothing(database: Database) -> None:
    created = database.store.create(tenant)
    changed = database.store.update(msgspec.structs.replace(created, active=False))
    for action in (database.store.update, database.store.delete):
        with pytest.raises(Conflict, match="changed meanwhile") as raised:
            action(created)
        assert raised.value.fields["version"] == 2
    assert database.store.get(Tenant, "ten_1") == changed


def test_renaming_to_a_taken_name_is_a_conflict(database: Database) -> None:
    created = database.store.create(tenant)
    database.store.create(other)
    with pytest.raises(Conflict, match="'other' exists"):
        database.store.update(msgspec.structs.replace(created, name="other"))
    assert database.store.get(Tenant, "ten_1").name == "acme"


def test_what_is_not_there_cannot_be_read_changed_or_deleted(database: Database) -> None:
    store = database.store
    for attempt in (
        lambda: store.get(Tenant, "ten_1"),
        lambda: store.update(tenant),
        lambda: store.delete(tenant),
    ):
        with pytest.raises(NotFound, match="no tenant ten_1"):
            attempt()


def test_an_id_of_another_kind_is_not_found(database: Database) -> None:
    database.store.create(tenant)
    with pytest.raises(NotFound):
        database.store.get(Project, "ten_1")


@pytest.mark.parametrize("name", ["", "n" * 256])
def test_names_are_bounded(database: Database, name: str) -> None:
    with pytest.raises(InvalidRequest, match="a name has 1 to 255 characters"):
        database.store.create(msgspec.structs.replace(tenant, name=name))


def test_a_deleted_name_can_be_used_again(database: Database) -> None:
    database.store.delete(database.store.create(tenant))
    assert database.store.list(Tenant) == []
    database.store.create(msgspec.structs.replace(tenant, id="ten_9"))


def test_the_revision_grows_with_committed_changes_alone(database: Database) -> None:
    store = database.store
    revisions = [store.revision()]
    created = store.create(tenant)
    revisions.append(store.revision())
    changed = store.update(created)
    revisions.append(store.revision())
    with pytest.raises(Conflict):
        store.update(created)
    with pytest.raises(Conflict):
        store.create(msgspec.structs.replace(tenant, id="ten_5"))
    assert store.revision() == revisions[-1]
    store.delete(changed)
    revisions.append(store.revision())
    assert revisions == sorted(set(revisions))


def test_a_revoked_key_reads_back_revoked(database: Database) -> None:
    key = database.store.create(
        ApiKey(id="key_1", name="k", parent_id="p", create_time=1.0, secret_hmac=b"x")
    )
    database.store.update(msgspec.structs.replace(key, state=KeyState.REVOKED))
    assert database.store.get(ApiKey, "key_1").state is KeyState.REVOKED

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.cli.supervisor.demo import DemoModel, DemoSeed, price
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.api_key_format import parse_key, secret_matches
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model, ModelVersion
from headrace.spec.prices import Price, PriceBook, price_at
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant
from headrace.storage import Database
from headrace.weights.sources import ResolvedModel

pepper = bytes(range(32))


def demo(sha256: str = "a" * 64, replicas: int | None = None) -> DemoModel:
    return DemoModel("pypi://a==1/a.gguf", ResolvedModel(Path("/a"), sha256, "a-model"), replicas)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_sqlite_copy(tmp_path / "headrace.db")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def seed(database: Database, clock: ManualClock) -> DemoSeed:
    return DemoSeed(database.store, pepper, clock)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a-model.Q4_1", "a-model.Q4_1"), ("my model (1)", "my-model-1-"), ("..", "model")],
)
def test_a_file_with_a_strange_name_has_one_that_fits_in_an_address(
    name: str, expected: str
) -> None:
    assert DemoModel("x", ResolvedModel(Path("/a"), "", name)).name == expected


def test_a_first_start_has_all_that_a_request_needs(
    database: Database, seed: DemoSeed, clock: ManualClock
) -> None:
    seed.serve(demo(replicas=2))
    seed.issue_key()
    store = database.store

    (model,) = store.list(Model)
    (version,) = store.list(ModelVersion, model.id)
    (deployment,) = store.list(Deployment, model.id)
    assert [target.model_version_id for target in model.targets] == [version.id]
    assert (version.source, version.sha256) == ("pypi://a==1/a.gguf", "a" * 64)
    assert (deployment.model_version_id, deployment.replicas) == (version.id, 2)
    quoted = price_at(store.list(PriceBook), "a-model", clock.wall_s())
    assert quoted is not None
    assert quoted.price == price
    (tenant,) = store.list(Tenant)
    (project,) = store.list(Project, tenant.id)
    assert (tenant.name, project.name) == ("demo", "default")
    assert len(store.list(ApiKey, project.id)) == 1


def test_another_start_changes_nothing_but_the_key(database: Database, seed: DemoSeed) -> None:
    seed.serve(demo(replicas=2))
    revision = database.store.revision()
    seed.serve(demo())

    assert database.store.revision() == revision


def test_the_number_of_replicas_follows_the_option(database: Database, seed: DemoSeed) -> None:
    seed.serve(demo(replicas=2))
    seed.serve(demo(replicas=3))

    (deployment,) = database.store.list(Deployment)
    assert (deployment.replicas, deployment.generation) == (3, 1)


def test_another_file_is_another_version_and_a_rollout(database: Database, seed: DemoSeed) -> None:
    seed.serve(demo())
    seed.serve(demo(sha256="b" * 64))

    first, second = sorted(database.store.list(ModelVersion), key=lambda each: each.name)
    assert (first.name, second.name) == ("v1", "v2")
    (model,) = database.store.list(Model)
    (deployment,) = database.store.list(Deployment)
    assert [target.model_version_id for target in model.targets] == [second.id]
    assert (deployment.model_version_id, deployment.generation) == (second.id, 2)


def test_a_former_file_is_its_former_version(database: Database, seed: DemoSeed) -> None:
    seed.serve(demo())
    seed.serve(demo(sha256="b" * 64))
    seed.serve(demo())

    assert len(database.store.list(ModelVersion)) == 2
    (deployment,) = database.store.list(Deployment)
    assert database.store.get(ModelVersion, deployment.model_version_id).name == "v1"


def test_a_model_that_was_switched_off_is_served_again(database: Database, seed: DemoSeed) -> None:
    model = seed.serve(demo())
    database.store.update(msgspec.structs.replace(model, active=False))

    assert seed.serve(demo()).active


def test_a_price_that_an_operator_set_is_kept(
    database: Database, seed: DemoSeed, clock: ManualClock
) -> None:
    own = Price(
        input_nanousd_per_million=1,
        cached_input_nanousd_per_million=1,
        output_nanousd_per_million=1,
    )
    database.store.create(
        PriceBook(
            id="prb_1", name="own", create_time=0.0, effective_time=0.0, prices={"a-model": own}
        )
    )
    seed.serve(demo())

    quoted = price_at(database.store.list(PriceBook), "a-model", clock.wall_s())
    assert quoted is not None
    assert quoted.price == own


def test_each_start_has_one_valid_key(database: Database, seed: DemoSeed) -> None:
    former, current = seed.issue_key(), seed.issue_key()
    (key,) = database.store.list(ApiKey)

    def is_valid(text: str) -> bool:
        parsed = parse_key(text)
        return (
            parsed is not None
            and parsed.key_id == key.id
            and secret_matches(pepper, parsed.secret, key.secret_hmac)
        )

    assert is_valid(current)
    assert not is_valid(former)


def test_a_revoked_demo_key_is_valid_again_with_its_new_secret(
    database: Database, seed: DemoSeed
) -> None:
    seed.issue_key()
    (key,) = database.store.list(ApiKey)
    database.store.update(msgspec.structs.replace(key, state=KeyState.REVOKED, expire_time=1.0))
    seed.issue_key()

    (key,) = database.store.list(ApiKey)
    assert (key.state, key.expire_time) == (KeyState.ACTIVE, None)

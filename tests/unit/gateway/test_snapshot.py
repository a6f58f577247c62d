"""The snapshot joins the store's resources, and leaves out what does not fit together."""

import msgspec
import pytest

from headrace.control.probe import credential_of
from headrace.gateway.snapshot import endpoints_of, join_principals, served_model
from headrace.spec.deployments import Deployment, Replica, ReplicaState, Upstream
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.spec.prices import Price, PriceBook
from headrace.spec.tenancy import ApiKey, Project, Tenant

pepper = bytes(range(32))

tenant = Tenant(id="ten_1", name="acme", create_time=0.0)
project = Project(id="prj_1", name="chat", parent_id="ten_1", create_time=0.0)
key = ApiKey(id="key_1", name="k", parent_id="prj_1", create_time=0.0, secret_hmac=b"x")
model = Model(
    id="mod_1",
    name="demo",
    create_time=0.0,
    targets=(WeightedTarget("ver_1", 9), WeightedTarget("ver_2", 1)),
)
deployment = Deployment(
    id="dep_1", name="main", parent_id="mod_1", create_time=0.0, model_version_id="ver_1"
)
replica = Replica(
    id="rep_1",
    name="r1",
    parent_id="dep_1",
    create_time=0.0,
    state=ReplicaState.ACTIVE,
    address="http://127.0.0.1:9/",
    engine_key="secret",
    served_model_name="inner",
)


def version(version_id: str, context_length: int | None) -> ModelVersion:
    return ModelVersion(
        id=version_id,
        name=version_id,
        parent_id="mod_1",
        create_time=0.0,
        source="x",
        context_length=context_length,
    )


def test_a_key_without_its_project_or_tenant_is_no_key() -> None:
    assert join_principals([key], {"prj_1": project}, {"ten_1": tenant}).keys() == {"key_1"}
    assert join_principals([key], {}, {"ten_1": tenant}) == {}
    assert join_principals([key], {"prj_1": project}, {}) == {}


def test_a_model_has_its_versions_by_weight_and_only_its_own_prices() -> None:
    price = Price(
        input_nanousd_per_million=1,
        cached_input_nanousd_per_million=1,
        output_nanousd_per_million=1,
    )
    books = [
        PriceBook(
            id=f"prb_{name}", name=name, create_time=0.0, effective_time=0.0, prices={name: price}
        )
        for name in ("demo", "other")
    ]
    served = served_model(model, [version("ver_1", 100), version("ver_2", 200)], books)
    assert served.pools == (("ver_1", 9), ("ver_2", 1))
    assert served.context_length == 200
    assert [book.id for book in served.price_books] == ["prb_demo"]


def test_one_version_with_an_undeclared_context_leaves_it_to_the_engines() -> None:
    versions = [version("ver_1", 100), version("ver_2", None)]
    assert served_model(model, versions, []).context_length is None


def test_only_active_replicas_accept_requests() -> None:
    deployments = {"dep_1": deployment}
    for state in ReplicaState:
        changed = msgspec.structs.replace(replica, state=state)
        (spec,) = endpoints_of([changed], deployments, pepper)
        assert spec.accepts_requests is (state is ReplicaState.ACTIVE)
    assert spec.address == "http://127.0.0.1:9"
    assert (spec.pool, spec.engine_key, spec.served_model_name) == ("ver_1", "secret", "inner")


def test_a_key_that_is_not_stored_is_that_which_the_control_plane_has() -> None:
    launched = msgspec.structs.replace(replica, engine_key="", engine_key_salt="ab" * 16)
    (spec,) = endpoints_of([launched], {"dep_1": deployment}, pepper)
    assert spec.engine_key == credential_of(launched, pepper)
    again = msgspec.structs.replace(launched, engine_key_salt="cd" * 16)
    other = msgspec.structs.replace(launched, id="rep_2")
    specs = endpoints_of([launched, again, other], {"dep_1": deployment}, pepper)
    elsewhere = endpoints_of([launched], {"dep_1": deployment}, bytes(32))
    assert len({each.engine_key for each in (*specs, *elsewhere)}) == 4


def test_replicas_without_address_or_deployment_are_no_endpoints() -> None:
    nowhere = msgspec.structs.replace(replica, address="")
    assert endpoints_of([nowhere], {"dep_1": deployment}, pepper) == []
    assert endpoints_of([replica], {}, pepper) == []


@pytest.mark.parametrize(
    ("engine", "bills_abandoned", "runs_to_its_end"),
    [
        ("vllm", None, False),
        ("triton", None, True),
        ("managed", None, False),
        ("managed", True, True),
        ("triton", False, False),
    ],
)
def test_an_operator_knows_better_than_an_adapter_what_ends_a_request(
    engine: str, bills_abandoned: bool | None, runs_to_its_end: bool
) -> None:
    upstream = Upstream(address="https://api.example.com/v1", bills_abandoned=bills_abandoned)
    away = msgspec.structs.replace(replica, engine=engine, upstream=upstream)
    (spec,) = endpoints_of([away], {"dep_1": deployment}, pepper)
    assert spec.runs_to_its_end is runs_to_its_end

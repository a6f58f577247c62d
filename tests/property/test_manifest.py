"""What is exported changes nothing when it is applied, and makes the same platform elsewhere."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import Conflict, InvalidRequest
from headrace.control.manifest import Change, ChangeAction, Document, export
from headrace.control.manifest_apply import all_resources, apply_manifest
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.autoscaling import Autoscaling
from headrace.spec.deployments import Deployment
from headrace.spec.hedging import Hedging
from headrace.spec.limits import Limits
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.spec.prices import Price, PriceBook
from headrace.spec.priority import Priority
from headrace.spec.resource import Resource
from headrace.spec.rollout import CanaryStep, RolloutPolicy, RolloutStrategy
from headrace.spec.tenancy import Project, Tenant
from headrace.storage import Database

names = ("a", "b", "c")
limits = st.none() | st.builds(Limits, requests_per_minute=st.none() | st.integers(0, 9))
rollouts = st.builds(
    RolloutPolicy,
    strategy=st.sampled_from(RolloutStrategy),
    surge=st.integers(1, 3),
    steps=st.lists(st.builds(CanaryStep, st.integers(1, 99)), max_size=2).map(tuple),
)
hedgings = st.none() | st.builds(
    Hedging,
    after_s=st.sampled_from([0.0, 1.5]),
    first_output_quantile=st.none() | st.sampled_from([0.5, 0.95]),
)
scalings = st.none() | st.builds(Autoscaling, min=st.integers(0, 2), max=st.integers(2, 5))
price = Price(
    input_nanousd_per_million=5,
    cached_input_nanousd_per_million=1,
    output_nanousd_per_million=9,
)


class Sites:
    """Two databases for all examples: making one takes longer than anything else here."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self._databases = [open_sqlite_copy(directory / f"{n}.db", self.clock) for n in range(2)]

    def empty(self, number: int = 0) -> Database:
        """One of them, with nothing in it."""
        database = self._databases[number]
        with database.transaction():
            for resource in all_resources(database.store):
                database.store.delete(resource)
        return database

    def close(self) -> None:
        for database in self._databases:
            database.close()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    opened = Sites(tmp_path_factory.mktemp("manifests"))
    yield opened
    opened.close()


def fill(database: Database, state: list[Resource]) -> None:
    with database.transaction():
        for resource in state:
            database.store.create(resource)


@st.composite
def states(draw: st.DrawFn) -> list[Resource]:
    """Random desired states."""
    resources: list[Resource] = []

    def new_id(prefix: str) -> str:
        return f"{prefix}_{len(resources):026d}"

    for name in draw(st.sets(st.sampled_from(names))):
        tenant = Tenant(id=new_id("ten"), name=name, create_time=0, limits=draw(limits))
        resources.append(tenant)
        for project in draw(st.sets(st.sampled_from(names), max_size=2)):
            resources.append(
                Project(id=new_id("prj"), name=project, parent_id=tenant.id, create_time=0)
            )
    for name in draw(st.sets(st.sampled_from(names))):
        at = len(resources)
        model = Model(id=new_id("mod"), name=name, create_time=0, active=draw(st.booleans()))
        resources.append(model)
        versions = []
        for version in draw(st.sets(st.sampled_from(("v1", "v2")), min_size=1)):
            made = ModelVersion(
                id=new_id("ver"), name=version, parent_id=model.id, create_time=0, source="x"
            )
            resources.append(made)
            versions.append(made)
        weights = draw(st.lists(st.integers(0, 9), min_size=len(versions), max_size=2))
        targets = tuple(
            WeightedTarget(version.id, weight)
            for version, weight in zip(versions, weights, strict=False)
        )
        resources[at] = msgspec.structs.replace(model, targets=targets)
        for deployment in draw(st.sets(st.sampled_from(names), max_size=2)):
            scaling = draw(scalings)
            resources.append(
                Deployment(
                    id=new_id("dep"),
                    name=deployment,
                    parent_id=model.id,
                    create_time=0,
                    model_version_id=draw(st.sampled_from(versions)).id,
                    replicas=2 if scaling else draw(st.integers(0, 4)),
                    engine_arguments=draw(st.sampled_from([(), ("--x",)])),
                    generation=draw(st.integers(1, 3)),
                    rollout=draw(rollouts),
                    hedging=draw(hedgings),
                    autoscaling=scaling,
                )
            )
    for owner in draw(st.sets(st.sampled_from(["", *tenant_ids(resources)]))):
        resources.append(
            PriceBook(
                id=new_id("prb"),
                name="2026",
                parent_id=owner,
                create_time=0,
                effective_time=1.5,
                prices={"a": price},
            )
        )
    return resources


def tenant_ids(resources: Iterable[Resource]) -> list[str]:
    return [resource.id for resource in resources if isinstance(resource, Tenant)]


@settings(max_examples=25, deadline=None)
@given(state=states())
def test_an_exported_state_changes_nothing_here_and_makes_the_same_elsewhere(
    sites: Sites, state: list[Resource]
) -> None:
    database, other, clock = sites.empty(0), sites.empty(1), sites.clock
    fill(database, state)
    revision = database.store.revision()
    documents = export(all_resources(database.store))
    text = msgspec.json.encode(documents)
    again = msgspec.json.decode(text, type=list[Document])
    assert apply_manifest(database, again, clock, prune=True, dry_run=False) == []
    assert database.store.revision() == revision
    apply_manifest(other, again, clock, prune=True, dry_run=False)
    assert by_key(export(all_resources(other.store))) == by_key(documents)
    assert apply_manifest(other, again, clock, prune=True, dry_run=False) == []


@settings(max_examples=25, deadline=None)
@given(before=states(), after=states())
def test_any_state_becomes_any_other_by_applying_it(
    sites: Sites, before: list[Resource], after: list[Resource]
) -> None:
    wanted, database, clock = sites.empty(0), sites.empty(1), sites.clock
    fill(wanted, after)
    documents = [
        document
        for document in export(all_resources(wanted.store))
        if document.kind != "price_book"  # never changes
    ]
    fill(database, before)
    told = apply_manifest(database, documents, clock, prune=False, dry_run=True)
    assert apply_manifest(database, documents, clock, prune=False, dry_run=False) == told
    for rolled in database.store.list(Deployment):  # a version is in use until its rollout ends
        database.store.update(msgspec.structs.replace(rolled, progress=None))
    apply_manifest(database, documents, clock, prune=True, dry_run=False)
    assert apply_manifest(database, documents, clock, prune=True, dry_run=True) == []


def by_key(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    return {document.key: document for document in documents}


model = Document(kind="model", name="m", spec={"targets": {"v1": 1}})
version = Document(kind="model_version", name="v1", parent="m", spec={"source": "one"})
deployment = Document(kind="deployment", name="d", parent="m", spec={"version": "v1"})


def test_a_changed_template_is_a_new_generation_and_a_changed_version_is_refused(
    sites: Sites,
) -> None:
    database = sites.empty()

    def apply(*documents: Document) -> list[Change]:
        return apply_manifest(database, documents, sites.clock, prune=False, dry_run=False)

    assert len(apply(deployment, version, model)) == 3, "the order of documents does not matter"
    changed = msgspec.structs.replace(deployment, spec={"version": "v1", "threads": 2})
    (change,) = apply(model, version, changed)
    assert (change.action, change.fields) == (ChangeAction.UPDATE, {"threads": (None, 2)})
    (stored,) = database.store.list(Deployment)
    assert (stored.generation, stored.progress is not None) == (2, True)
    other = msgspec.structs.replace(version, spec={"source": "two"})
    with pytest.raises(Conflict, match="never changes"):
        apply(model, other, changed)


wrong_rollout = msgspec.structs.replace(
    deployment, spec={"version": "v1", "rollout": {"strategy": "up"}}
)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([model], "no version 'v1'"),
        ([msgspec.structs.replace(model, spec={"colour": 1})], "no field 'colour'"),
        ([model, version, msgspec.structs.replace(deployment, parent="x")], "no model 'x'"),
        ([msgspec.structs.replace(model, kind="modle")], "the kinds are"),
        ([model, model], "same resource"),
        ([model, version, wrong_rollout], "strategy"),
    ],
)
def test_a_mistake_writes_nothing_and_is_named(
    sites: Sites, wrong: list[Document], words: str
) -> None:
    database = sites.empty()
    with pytest.raises(InvalidRequest, match=words):
        apply_manifest(database, wrong, sites.clock, prune=False, dry_run=False)
    assert all_resources(database.store) == []


def test_a_tenants_priority_is_a_word_and_older_files_numbers_still_work(sites: Sites) -> None:
    tenant = Tenant(id="ten_a", name="a", create_time=0.0, priority_highest=Priority.BATCH)
    (document,) = export([tenant])
    assert document.spec["priority_highest"] == "batch"
    store = sites.empty().store
    older = msgspec.structs.replace(document, spec={**document.spec, "priority_highest": 2})
    for wanted in (document, older):
        apply_manifest(sites.empty(), [wanted], sites.clock, prune=False, dry_run=False)
        (kept,) = store.list(Tenant)
        assert kept.priority_highest is Priority.BATCH
    wrong = msgspec.structs.replace(document, spec={"priority_highest": "soon"})
    with pytest.raises(InvalidRequest, match="interactive, standard, batch"):
        apply_manifest(sites.empty(), [wrong], sites.clock, prune=False, dry_run=False)

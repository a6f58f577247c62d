"""Everything a gateway serves from, as one immutable value that is replaced as a whole."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol, TypeVar

from headrace.adapters.facts import Ability, Abort
from headrace.adapters.registry import find_adapter
from headrace.base.secret_references import read_secret
from headrace.router.endpoint import EndpointSpec
from headrace.router.picker import WeightedPool
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.disaggregation import ReplicaRole
from headrace.spec.endpoints import endpoint_of
from headrace.spec.engine_key import engine_key_of
from headrace.spec.models import Model, ModelVersion
from headrace.spec.prices import PriceBook
from headrace.spec.public_prompts import PublicPrompt
from headrace.spec.resource import Resource
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant

vision = "vision"  # as `ModelVersion.capabilities` has it

R = TypeVar("R", bound=Resource)
Network = IPv4Network | IPv6Network


class ResourceReader(Protocol):
    """The part of `storage.Store` that a gateway needs."""

    def list(self, kind: type[R]) -> list[R]:
        """Every resource of a kind."""
        ...

    def revision(self) -> int:
        """A number that grows with every change."""
        ...


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request comes from."""

    key: ApiKey
    project: Project
    tenant: Tenant
    networks: tuple[Network, ...] | None = None  # where it may call from; None: anywhere

    def is_active(self, wall_s: float) -> bool:
        """Whether the key, its project and its tenant are in force at a time."""
        key = self.key
        expired = key.expire_time is not None and wall_s >= key.expire_time
        in_force = key.state is KeyState.ACTIVE and not expired
        return in_force and self.project.active and self.tenant.active

    def may_use(self, model_name: str) -> bool:
        """Whether the key's allow-list has the model."""
        return self.key.models is None or model_name in self.key.models

    def may_ask(self, served: "ServedModel") -> bool:
        """The same of a model that was found; an adapter of it may be listed alone."""
        return self.may_use(served.model.name) or self.may_use(served.name)

    def may_call(self, path: str) -> bool:
        """Whether the key's allow-list has the endpoint of this path."""
        return self.key.endpoints is None or endpoint_of(path) in self.key.endpoints

    def may_come_from(self, host: str | None) -> bool:
        """Whether the key may be used from this address; never from one that is not known."""
        if self.networks is None:
            return True
        try:
            address = ip_address(host or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A logical model and where its requests go."""

    model: Model
    pools: tuple[WeightedPool, ...]  # model version ids with their shares
    context_length: int | None  # the longest that the operator declared; None: the engine's own
    price_books: tuple[PriceBook, ...]  # those that name the model
    context_is_checked: bool = True  # by every engine that it is deployed on
    wakes: bool = False  # a deployment is scaled by its traffic, and starts when some comes
    loras: frozenset[str] = frozenset()  # adapters that one of its deployments has
    public_prompts: tuple[PublicPrompt, ...] = ()  # that tenants share in its engines' caches
    adapter: str = ""  # of those, the one that the caller asks for; empty: the model alone

    @property
    def name(self) -> str:
        """What callers call it: `model`, or `model:adapter`."""
        return f"{self.model.name}:{self.adapter}" if self.adapter else self.model.name

    def with_adapter(self, adapter: str) -> "ServedModel":
        """The same model through one of its adapters."""
        return replace(self, adapter=adapter)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The store at one revision."""

    revision: int = 0
    principals: Mapping[str, Principal] = field(default_factory=dict)  # by key id
    models: Mapping[str, ServedModel] = field(default_factory=dict)  # by name
    endpoints: tuple[EndpointSpec, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of models
    others_keys: Mapping[str, str] = field(default_factory=dict)  # as read, by their references

    def find(self, name: str) -> ServedModel | None:
        """The model of a name or an alias, or an adapter of it as `name:adapter`; None if there is
        none. A name goes before an alias, and a whole name before one with an adapter."""
        found = self._model(name)
        if found is not None:
            return found
        base, _, adapter = name.rpartition(":")
        served = self._model(base)
        if served is None or adapter not in served.loras:
            return None
        return served.with_adapter(adapter)

    def _model(self, name: str) -> ServedModel | None:
        return self.models.get(name) or self.models.get(self.aliases.get(name, ""))


def read_snapshot(store: ResourceReader, pepper: bytes) -> Snapshot:
    """Read the store; children before their parents, so that no parent is missed.

    The revision is read first: a change meanwhile is seen by the next poll."""
    revision = store.revision()
    keys = store.list(ApiKey)
    projects = {project.id: project for project in store.list(Project)}
    tenants = {tenant.id: tenant for tenant in store.list(Tenant)}
    replicas = store.list(Replica)
    deployments = {deployment.id: deployment for deployment in store.list(Deployment)}
    versions = store.list(ModelVersion)
    models = store.list(Model)
    books = store.list(PriceBook)
    endpoints = tuple(endpoints_of(replicas, deployments, pepper, versions))
    return Snapshot(
        revision=revision,
        principals=join_principals(keys, projects, tenants),
        models={
            model.name: served_model(model, versions, books, deployments.values())
            for model in models
            if model.active
        },
        endpoints=endpoints,
        aliases={alias: model.name for model in models if model.active for alias in model.aliases},
        others_keys=others_keys(replicas, endpoints),
    )


def others_keys(replicas: Sequence[Replica], endpoints: Sequence[EndpointSpec]) -> dict[str, str]:
    """The keys of engines that others run, by the references that they were read from."""
    references = {
        replica.id: replica.upstream.key
        for replica in replicas
        if replica.upstream is not None and replica.upstream.key
    }
    return {
        references[endpoint.id]: endpoint.engine_key
        for endpoint in endpoints
        if endpoint.id in references
    }


def join_principals(
    keys: Sequence[ApiKey], projects: Mapping[str, Project], tenants: Mapping[str, Tenant]
) -> dict[str, Principal]:
    """Each key with its project and tenant; a key whose project is gone is no key."""
    principals: dict[str, Principal] = {}
    for key in keys:
        project = projects.get(key.parent_id)
        tenant = None if project is None else tenants.get(project.parent_id)
        if project is not None and tenant is not None:
            principals[key.id] = Principal(key, project, tenant, networks_of(key))
    return principals


def networks_of(key: ApiKey) -> tuple[Network, ...] | None:
    """The key's networks, read once a snapshot; one that can't be read lets nobody in."""
    if key.allowed_networks is None:
        return None
    networks = []
    for text in key.allowed_networks:
        with suppress(ValueError):
            networks.append(ip_network(text))
    return tuple(networks)


def served_model(
    model: Model,
    versions: Sequence[ModelVersion],
    books: Sequence[PriceBook],
    deployments: Collection[Deployment] = (),
) -> ServedModel:
    """A model with its pools, its declared context and the price books that name it."""
    weights = {target.model_version_id: target.weight for target in model.targets}
    lengths = [version.context_length for version in versions if version.id in weights]
    declared = [length for length in lengths if length is not None]
    serving = [each for each in deployments if each.model_version_id in weights]
    return ServedModel(
        model=model,
        pools=tuple(weights.items()),
        context_length=max(declared) if declared and len(declared) == len(lengths) else None,
        price_books=tuple(book for book in books if names_model(book, model.name)),
        context_is_checked=all(find_adapter(each.engine).facts.checks_context for each in serving),
        loras=frozenset(lora.name for each in serving for lora in each.loras),
        public_prompts=tuple(
            dict.fromkeys(prompt for each in serving for prompt in each.public_prompts)
        ),
        wakes=any(each.autoscaling is not None and each.autoscaling.max > 0 for each in serving),
    )


def names_model(book: PriceBook, model_name: str) -> bool:
    """Whether a price book has a price of a model, or of an adapter of it."""
    return any(name == model_name or name.startswith(f"{model_name}:") for name in book.prices)


def endpoints_of(
    replicas: Sequence[Replica],
    deployments: Mapping[str, Deployment],
    pepper: bytes,
    versions: Iterable[ModelVersion] = (),
) -> list[EndpointSpec]:
    """The replicas that have an address, as the router knows them."""
    versions = list(versions)
    blind = {version.id for version in versions if is_blind(version)}
    formats = {version.id: version.chat_format for version in versions}
    return [
        EndpointSpec(
            id=replica.id,
            pool=deployments[replica.parent_id].model_version_id,
            address=replica.address.rstrip("/"),
            accepts_requests=replica.state is ReplicaState.ACTIVE,
            engine=replica.engine,
            engine_key=credential_of(replica, pepper),
            served_model_name=replica.served_model_name,
            deployment_id=replica.parent_id,
            generation=replica.generation,
            region=replica.region,
            zone=replica.zone,
            cohort=str(replica.generation),
            cohort_weight=cohort_weight(deployments[replica.parent_id], replica),
            hedging=deployments[replica.parent_id].hedging,
            role=replica.role.value,
            is_half=replica.role is not ReplicaRole.WHOLE
            and find_adapter(replica.engine).facts.roles_are_fixed,
            peer_port=replica.peer_port,
            split_tokens=split_tokens(deployments[replica.parent_id], replica),
            loras=loras_of(deployments[replica.parent_id], replica),
            runs_to_its_end=runs_to_its_end(replica),
            takes_images=deployments[replica.parent_id].model_version_id not in blind
            and Ability.VISION in find_adapter(replica.engine).facts.abilities,
            chat_format=formats.get(deployments[replica.parent_id].model_version_id),
        )
        for replica in replicas
        if replica.address and replica.parent_id in deployments
    ]


def runs_to_its_end(replica: Replica) -> bool:
    """Whether a request costs its whole answer although its caller left: as the operator says of
    an engine that others run, else as its adapter does."""
    upstream = replica.upstream
    if upstream is not None and upstream.bills_abandoned is not None:
        return upstream.bills_abandoned
    return find_adapter(replica.engine).facts.abort is Abort.NONE


def credential_of(replica: Replica, pepper: bytes) -> str:
    """The engine's credential; of one that others run it is kept where its reference says."""
    if replica.upstream is None:
        return engine_key_of(pepper, replica)
    return key_at(replica.upstream.key) if replica.upstream.key else ""


def key_at(reference: str) -> str:
    """A key that is kept elsewhere, as it is now; empty if it is not there."""
    return read_secret(reference) or ""


def is_blind(version: ModelVersion) -> bool:
    """Whether it is declared what a version can do, and seeing is not among it."""
    return bool(version.capabilities) and vision not in version.capabilities


def loras_of(deployment: Deployment, replica: Replica) -> tuple[str, ...]:
    """The adapters that a replica was started with, which are those of its generation."""
    template = deployment.template_of(replica.generation)
    return () if template is None else tuple(lora.name for lora in template.loras)


def split_tokens(deployment: Deployment, replica: Replica) -> int:
    """From how many tokens on a prompt may be computed elsewhere for this replica; 0: never."""
    policy = deployment.disaggregation
    if policy is None or replica.role is not ReplicaRole.DECODE:
        return 0
    return policy.threshold_tokens


def cohort_weight(deployment: Deployment, replica: Replica) -> int:
    """A replica's generation's share of the requests while a rollout splits them; else 0."""
    progress = deployment.progress
    if progress is None or progress.weight is None:
        return 0
    is_new = replica.generation == deployment.generation
    return progress.weight if is_new else 100 - progress.weight

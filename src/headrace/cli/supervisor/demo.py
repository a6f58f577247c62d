"""What `--demo` puts into the store: a tenant, a project, a model with its price, and a key.

Everything is found by its name and made only if it is missing, so that each start ends in the same
state, whatever the last one left. The key's secret is new each time, which ends the former one.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from headrace.base.clock import Clock
from headrace.base.ids import new_id
from headrace.spec.api_key_format import format_key, hash_secret, secret_bytes
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.spec.prices import Price, PriceBook, price_at
from headrace.spec.resource import Resource
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant
from headrace.storage.store import Store
from headrace.weights.sources import ResolvedModel

R = TypeVar("R", bound=Resource)

tenant_name = "demo"
project_name = "default"
key_name = "demo"
price = Price(
    input_nanousd_per_million=50_000_000,
    cached_input_nanousd_per_million=12_500_000,
    output_nanousd_per_million=100_000_000,
)


@dataclass(frozen=True, slots=True)
class DemoModel:
    """What the demo serves: a file that is on this machine, and where it came from."""

    source: str  # the reference, so that a later start can fetch it again
    file: ResolvedModel
    replicas: int | None = None  # None: as the store has it, or 1

    @property
    def name(self) -> str:
        """The file's own name as customers can write it, also in an address."""
        return re.sub(r"[^A-Za-z0-9._:-]+", "-", self.file.name).lstrip("._:-") or "model"


def demo_price_name(model_name: str) -> str:
    """What the price book of a demo's model is called."""
    return f"demo {model_name}"


class DemoSeed:
    """Fills a store that no other process writes to now."""

    def __init__(self, store: Store, pepper: bytes, clock: Clock) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock

    def serve(self, demo: DemoModel) -> Model:
        """Make the model, its version, its deployment and its price as `demo` says."""
        name = demo.name
        model = self._named(Model, name) or self._create(Model, name)
        version = self._version(model, demo)
        target = (WeightedTarget(version.id),)
        if model.targets != target or not model.active:
            model = self._store.update(msgspec.structs.replace(model, targets=target, active=True))
        self._deploy(model, version, demo.replicas)
        self._retire_others(model)
        self._price(name)
        return model

    def issue_key(self) -> str:
        """A new secret for the demo tenant's key; what was issued before is no key any more."""
        tenant = self._named(Tenant, tenant_name) or self._create(Tenant, tenant_name)
        project = self._named(Project, project_name, tenant) or self._create(
            Project, project_name, tenant
        )
        secret = secrets.token_bytes(secret_bytes)
        digest = hash_secret(self._pepper, secret.hex())
        key = self._named(ApiKey, key_name, project)
        if key is None:
            key = self._create(ApiKey, key_name, project, secret_hmac=digest)
        else:
            self._store.update(
                msgspec.structs.replace(
                    key, secret_hmac=digest, state=KeyState.ACTIVE, expire_time=None
                )
            )
        return format_key(key.id, secret)

    def _version(self, model: Model, demo: DemoModel) -> ModelVersion:
        """The version of this very file, whatever it was called when it came."""
        versions = self._store.list(ModelVersion, model.id)
        for version in versions:
            if version.sha256 == demo.file.sha256 and version.source == demo.source:
                return version
        taken = {version.name for version in versions}
        name = next(f"v{n}" for n in range(1, len(taken) + 2) if f"v{n}" not in taken)
        return self._create(ModelVersion, name, model, source=demo.source, sha256=demo.file.sha256)

    def _deploy(self, model: Model, version: ModelVersion, replicas: int | None) -> None:
        deployment = self._named(Deployment, model.name, model)
        if deployment is None:
            self._create(
                Deployment,
                model.name,
                model,
                model_version_id=version.id,
                replicas=1 if replicas is None else replicas,
            )
            return
        wanted = msgspec.structs.replace(
            deployment, replicas=deployment.replicas if replicas is None else replicas
        )
        template = msgspec.structs.replace(wanted.template, model_version_id=version.id)
        wanted = wanted.with_template(template)
        if wanted != deployment:
            self._store.update(wanted)

    def _retire_others(self, model: Model) -> None:
        """Delete what earlier demos deployed: a demo serves the one model that it was asked for.

        Their models and prices stay, so that their bills can be explained."""
        for other in self._store.list(Deployment):
            if other.parent_id != model.id and self._is_a_demo(other):
                self._store.delete(other)

    def _is_a_demo(self, deployment: Deployment) -> bool:
        """Whether a demo made it, which names the price after its model."""
        models = [item for item in self._store.list(Model) if item.id == deployment.parent_id]
        return any(
            deployment.name == item.name
            and self._named(PriceBook, demo_price_name(item.name)) is not None
            for item in models
        )

    def _price(self, model_name: str) -> None:
        now_s = self._clock.wall_s()
        if price_at(self._store.list(PriceBook), model_name, now_s) is None:
            name = demo_price_name(model_name)
            self._create(PriceBook, name, effective_time=now_s, prices={model_name: price})

    def _named(self, kind: type[R], name: str, parent: Resource | None = None) -> R | None:
        return self._store.find(kind, name, "" if parent is None else parent.id)

    def _create(self, kind: type[R], name: str, parent: Resource | None = None, **fields: Any) -> R:
        return self._store.create(
            kind(
                id=new_id(kind.id_prefix, self._clock),
                name=name,
                parent_id="" if parent is None else parent.id,
                create_time=self._clock.wall_s(),
                **fields,
            )
        )

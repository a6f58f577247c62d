"""Deployments (desired) and replicas (observed)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from headrace.spec.autoscaling import Autoscaling, ScaleState
from headrace.spec.disaggregation import Disaggregation, ReplicaRole
from headrace.spec.hedging import Hedging
from headrace.spec.public_prompts import PublicPrompt
from headrace.spec.resource import Resource
from headrace.spec.resources import PlacementPolicy, ReplicaResources
from headrace.spec.rollout import RolloutPolicy, RolloutProgress, RolloutVerdict

lora_name_pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class LoraSource(msgspec.Struct, frozen=True):
    """A LoRA adapter that replicas load beside their model; callers ask for `model:name`."""

    name: Annotated[str, msgspec.Meta(pattern=lora_name_pattern)]
    source: str  # a path where the replica runs, or a reference that its engine can fetch


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that others run: where it answers, and where its key is kept.

    The model's name there is the model version's source, `api:NAME`; else it is the model's."""

    address: str  # base URL as the engine's own clients take it
    key: str = ""  # a reference (`base.secret_references`); empty: it asks for none
    # Whether it bills a whole answer although the caller left; None: as its kind of engine does.
    bills_abandoned: bool | None = None


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """All that one generation's replicas have in common."""

    generation: int
    model_version_id: str
    engine: str
    threads: int | None
    engine_arguments: tuple[str, ...]
    environment: Mapping[str, str] = {}
    resources: ReplicaResources = ReplicaResources()
    loras: tuple[LoraSource, ...] = ()
    upstream: Upstream | None = None  # None: a launcher starts it
    moves_kv: bool = False  # its engine hands prompts' KV to others, and takes theirs
    public_prompts: tuple[PublicPrompt, ...] = ()  # that all tenants share in its cache

    def looks_like(self, other: "Template") -> bool:
        """Whether replicas of both would be the same."""
        return msgspec.structs.replace(self, generation=other.generation) == other


class Deployment(Resource, frozen=True, kw_only=True, tag="deployment"):
    """Desired state: a model version on an engine, so many times; `parent_id` is the model.

    A change of what a replica looks like is a new generation; the one before is kept as `former`,
    so that its replicas can be started again while the new one comes, and to go back to it."""

    kind = "deployment"
    id_prefix = "dep"

    model_version_id: str
    engine: str = "headrace"  # an adapter's name
    replicas: int = 1  # set by the autoscaler where there is one
    threads: int | None = None  # CPU threads of each replica; None: an equal share of the cores
    engine_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}  # variables of the engine; no secrets, they are shown
    loras: tuple[LoraSource, ...] = ()
    upstream: Upstream | None = None  # None: replicas are started by headrace
    resources: ReplicaResources = ReplicaResources()
    placement: PlacementPolicy = PlacementPolicy()
    generation: int = 1  # grows with every change of what a replica must look like
    generation_max: int = 1  # the highest that was given out; a rollback lowers `generation` only
    former: Template | None = None
    rollout: RolloutPolicy = RolloutPolicy()
    progress: RolloutProgress | None = None  # written by the control plane
    verdict: RolloutVerdict | None = None  # likewise
    autoscaling: Autoscaling | None = None
    scale: ScaleState | None = None  # likewise
    hedging: Hedging | None = None  # None: no request goes to two replicas at once
    disaggregation: Disaggregation | None = None  # None: who computes a prompt answers it
    moves_kv: bool = False  # as the template has it: follows from the field before
    public_prompts: tuple[PublicPrompt, ...] = ()  # that all tenants share in replicas' caches

    @property
    def template(self) -> Template:
        """What replicas of the present generation look like."""
        return Template(
            generation=self.generation,
            model_version_id=self.model_version_id,
            engine=self.engine,
            threads=self.threads,
            engine_arguments=self.engine_arguments,
            environment=self.environment,
            resources=self.resources,
            loras=self.loras,
            upstream=self.upstream,
            moves_kv=self.moves_kv,
            public_prompts=self.public_prompts,
        )

    def template_of(self, generation: int) -> Template | None:
        """What replicas of a generation look like; None if that is no longer known."""
        if generation == self.generation:
            return self.template
        if self.former is not None and generation == self.former.generation:
            return self.former
        return None

    def with_template(self, template: Template) -> "Deployment":
        """The deployment after a change to this template, as a new generation if it differs.

        A change while another is under way replaces that one: what served before both stays the
        former. A change back to that is a rollback."""
        if template.looks_like(self.template):
            return self
        if self.progress is None or self.former is None:
            former = self.template
        elif template.looks_like(self.former):
            return self.rolled_back()
        else:
            former = self.former
        generation = max(self.generation, self.generation_max) + 1
        template = msgspec.structs.replace(template, generation=generation)
        return self._moved(template, former, RolloutProgress(former_generation=former.generation))

    def rolled_back(self) -> "Deployment":
        """The deployment with its former template, whose replicas count as present again.

        What is left of the present generation gets no more requests while others can answer."""
        assert self.former is not None, "there is nothing to go back to"
        progress = RolloutProgress(former_generation=self.generation, weight=100, is_rollback=True)
        return self._moved(self.former, self.template, progress)

    def _moved(
        self, template: Template, former: Template, progress: RolloutProgress
    ) -> "Deployment":
        return msgspec.structs.replace(
            self,
            generation=template.generation,
            generation_max=max(self.generation, self.generation_max, template.generation),
            model_version_id=template.model_version_id,
            engine=template.engine,
            threads=template.threads,
            engine_arguments=template.engine_arguments,
            environment=template.environment,
            resources=template.resources,
            loras=template.loras,
            upstream=template.upstream,
            moves_kv=template.moves_kv,
            public_prompts=template.public_prompts,
            former=former,
            progress=progress,
        )


class ReplicaState(StrEnum):
    """A replica's life: CREATING -> LOADING -> ACTIVE -> DRAINING -> (gone); FAILED may recur."""

    CREATING = "creating"  # to be launched
    LOADING = "loading"  # the process lives and is not ready
    ACTIVE = "active"  # a real token came back; the router may use it
    DRAINING = "draining"  # no new requests; stops when its work is done
    FAILED = "failed"  # the process ended or never became ready; retried after `retry_time`


class Leaving(StrEnum):
    """Whether a replica is to give up its place."""

    NOT = ""
    WHEN_REPLACED = "when_replaced"  # its node is drained: once another serves in its stead
    AT_ONCE = "at_once"  # one of a higher priority needs the place


class Replica(Resource, frozen=True, kw_only=True, tag="replica"):
    """One engine instance as the control plane sees it; `parent_id` is the deployment."""

    kind = "replica"
    id_prefix = "rep"

    state: ReplicaState = ReplicaState.CREATING
    generation: int = 1  # of the deployment that it was made for
    role: ReplicaRole = ReplicaRole.WHOLE  # where its deployment splits requests
    address: str = ""  # base URL, for the gateway alone
    engine_key_salt: str = ""  # of the present launch; its key follows (`spec.engine_key`)
    engine_key: str = ""  # of a launch whose key was still stored; never leaves store and gateway
    engine: str = "headrace"
    peer_port: int = 0  # where other replicas reach it; 0: as its engine chooses
    upstream: Upstream | None = None  # others run it; None: a launcher does
    node_id: str = ""  # where it has its place; empty: none yet, or a platform that places itself
    device_ids: tuple[str, ...] = ()  # of the node, that are its own or its share
    device_memory_bytes: int = 0  # of each of them
    leaving: Leaving = Leaving.NOT
    region: str = ""  # where it runs; gateways there prefer it
    zone: str = ""
    model_name: str = ""  # the logical model
    served_model_name: str = ""  # what the engine calls it
    launch_id: str = ""  # the launcher's handle; empty when nothing runs
    attempts: int = 0  # launches since it last served for a while
    state_time: float = 0.0  # when it came into this state
    launch_time: float | None = None  # of the present process
    first_token_time: float | None = None  # of the present process; None: it never served
    retry_time: float | None = None
    drain_deadline: float | None = None
    detail: str = ""  # why it is in this state, for people
    progress: float | None = None

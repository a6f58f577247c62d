"""Deployments (desired) and replicas (observed)."""

from enum import StrEnum

from headrace.spec.resource import Resource


class Deployment(Resource, frozen=True, kw_only=True, tag="deployment"):
    """Desired state: a model version on an engine, so many times; `parent_id` is the model."""

    kind = "deployment"
    id_prefix = "dep"

    model_version_id: str
    engine: str = "headrace"  # an adapter's name
    replicas: int = 1
    threads: int | None = None  # CPU threads of each replica; None: an equal share of the cores
    engine_arguments: tuple[str, ...] = ()
    generation: int = 1  # grows with every change of what a replica must look like


class ReplicaState(StrEnum):
    """A replica's life: CREATING -> LOADING -> ACTIVE -> DRAINING -> (gone); FAILED may recur."""

    CREATING = "creating"  # to be launched
    LOADING = "loading"  # the process lives and is not ready
    ACTIVE = "active"  # a real token came back; the router may use it
    DRAINING = "draining"  # no new requests; stops when its work is done
    FAILED = "failed"  # the process ended or never became ready; retried after `retry_time`


class Replica(Resource, frozen=True, kw_only=True, tag="replica"):
    """One engine instance as the control plane sees it; `parent_id` is the deployment."""

    kind = "replica"
    id_prefix = "rep"

    state: ReplicaState = ReplicaState.CREATING
    generation: int = 1  # of the deployment that it was made for
    address: str = ""  # base URL, for the gateway alone
    engine_key: str = ""  # the engine's own credential; never leaves store and gateway
    engine: str = "headrace"
    model_name: str = ""  # the logical model
    served_model_name: str = ""  # what the engine calls it
    launch_id: str = ""  # the launcher's handle; empty when nothing runs
    attempts: int = 0  # launches since it last served for a while
    state_time: float = 0.0  # when it came into this state
    retry_time: float | None = None
    drain_deadline: float | None = None
    detail: str = ""  # why it is in this state, for people
    progress: float | None = None

"""How deployments and replicas are shown: what is wanted, what there is, and why they differ."""

import datetime

from pydantic import BaseModel

from headrace.control.admin.context import AdminContext
from headrace.control.admin.rollouts import state_of
from headrace.control.admin.struct_values import Policy, shown
from headrace.control.admin.values import moment, optional_moment
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model, ModelVersion


class ReplicaView(BaseModel):
    """One running engine, without its credential."""

    id: str
    name: str
    deployment_id: str
    deployment: str
    model: str
    engine: str
    state: ReplicaState
    role: str  # prefill or decode; empty: it does all of a request
    generation: int
    address: str
    node_id: str  # empty: it has no place yet, or the launcher's cluster chose one
    node: str  # that one's name
    devices: list[str]
    region: str
    zone: str
    attempts: int
    detail: str
    progress: float | None
    retry_time: datetime.datetime | None
    create_time: datetime.datetime


class DeploymentView(BaseModel):
    """What is wanted, what there is, and why they differ."""

    id: str
    name: str
    model_id: str
    model: str
    model_version_id: str
    version: str
    engine: str
    replicas: int
    ready_replicas: int
    ready: bool
    reasons: list[str]  # why it is not ready, a line each; empty when it is
    threads: int | None
    engine_arguments: list[str]
    environment: dict[str, str]
    loras: dict[str, str]  # sources by name
    public_prompts: list[Policy]
    upstream: Policy | None  # of an engine that others run
    generation: int
    rollout: Policy | None
    rollout_state: str
    rolled_back: str | None  # what was taken back last, and why; null: the last rollout was not
    autoscaling: Policy | None
    scale_reason: str | None  # of the last change by the autoscaler
    hedging: Policy | None
    disaggregation: Policy | None
    resources: Policy | None
    placement: Policy | None
    create_time: datetime.datetime


class DeploymentViews:
    """Views of deployments with what is observed of each, read once an answer."""

    def __init__(self, context: AdminContext) -> None:
        store = context.database.store
        self._models = {item.id: item.name for item in store.list(Model)}
        self._versions = {item.id: item.name for item in store.list(ModelVersion)}
        self._replicas: dict[str, list[Replica]] = {}
        for replica in store.list(Replica):
            self._replicas.setdefault(replica.parent_id, []).append(replica)

    def of(self, deployment: Deployment) -> DeploymentView:
        """A deployment as it is shown."""
        replicas = self._replicas.get(deployment.id, [])
        ready_count = sum(_is_ready(replica, deployment) for replica in replicas)
        ready = ready_count >= deployment.replicas
        return DeploymentView(
            id=deployment.id,
            name=deployment.name,
            model_id=deployment.parent_id,
            model=self._models.get(deployment.parent_id, ""),
            model_version_id=deployment.model_version_id,
            version=self._versions.get(deployment.model_version_id, ""),
            engine=deployment.engine,
            replicas=deployment.replicas,
            ready_replicas=ready_count,
            ready=ready,
            reasons=[] if ready else _reasons(deployment, replicas),
            threads=deployment.threads,
            engine_arguments=list(deployment.engine_arguments),
            environment=dict(deployment.environment),
            loras={lora.name: lora.source for lora in deployment.loras},
            public_prompts=[shown(prompt) or {} for prompt in deployment.public_prompts],
            upstream=shown(deployment.upstream),
            generation=deployment.generation,
            rollout=shown(deployment.rollout),
            rollout_state=state_of(deployment),
            rolled_back=rolled_back(deployment),
            autoscaling=shown(deployment.autoscaling),
            scale_reason=None if deployment.scale is None else deployment.scale.reason,
            hedging=shown(deployment.hedging),
            disaggregation=shown(deployment.disaggregation),
            resources=shown(deployment.resources),
            placement=shown(deployment.placement),
            create_time=moment(deployment.create_time),
        )


def rolled_back(deployment: Deployment) -> str | None:
    """What became of the newest change, where it was taken back."""
    verdict, progress = deployment.verdict, deployment.progress
    if verdict is None or verdict.succeeded or (progress is not None and not progress.is_rollback):
        return None  # or a newer one is on its way
    return f"generation {verdict.generation}: {verdict.reason}"


def _is_ready(replica: Replica, deployment: Deployment) -> bool:
    return replica.state is ReplicaState.ACTIVE and replica.generation == deployment.generation


def _reasons(deployment: Deployment, replicas: list[Replica]) -> list[str]:
    """Why fewer replicas are ready than wanted, a line each."""
    lines = []
    for replica in replicas:
        if _is_ready(replica, deployment) or replica.state is ReplicaState.DRAINING:
            continue  # what drains makes room for the others
        if replica.state is ReplicaState.ACTIVE:
            lines.append(f"{replica.name} still serves generation {replica.generation}")
            continue
        detail = f": {replica.detail}" if replica.detail else ""
        lines.append(f"{replica.name} is {replica.state.value}{detail}")
    missing = deployment.replicas - sum(
        replica.generation == deployment.generation and replica.state is not ReplicaState.DRAINING
        for replica in replicas
    )
    if missing > 0:
        lines.append(f"{missing} not created yet; the control plane creates them in its next round")
    return lines


def replica_view(replica: Replica, deployment_name: str, node_name: str) -> ReplicaView:
    """A replica as it is shown."""
    return ReplicaView(
        id=replica.id,
        name=replica.name,
        deployment_id=replica.parent_id,
        deployment=deployment_name,
        model=replica.model_name,
        engine=replica.engine,
        state=replica.state,
        role=replica.role.value,
        generation=replica.generation,
        address=replica.address,
        node_id=replica.node_id,
        node=node_name,
        devices=list(replica.device_ids),
        region=replica.region,
        zone=replica.zone,
        attempts=replica.attempts,
        detail=replica.detail,
        progress=replica.progress,
        retry_time=optional_moment(replica.retry_time),
        create_time=moment(replica.create_time),
    )

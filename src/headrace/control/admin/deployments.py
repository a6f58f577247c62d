"""Routes for deployments, which are desired, and replicas, which are observed."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.adapters.registry import find_adapter
from headrace.base.errors import Conflict, InvalidRequest, Unavailable
from headrace.base.ids import new_id
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.deployment_views import (
    DeploymentView,
    DeploymentViews,
    ReplicaView,
    replica_view,
)
from headrace.control.admin.disaggregation_values import (
    changed_disaggregation,
    with_disaggregation,
)
from headrace.control.admin.lora_values import LoraBodies, loras_of, with_loras
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, Reference, reject_id_as_name, resolve
from headrace.control.admin.struct_values import Policy, merged, read
from headrace.control.admin.values import RequestBody
from headrace.control.engine_environment import check_environment, variables_max
from headrace.control.model_targets import follow_version
from headrace.control.public_prompts import check_public_prompts
from headrace.control.upstreams import check_upstream
from headrace.spec.autoscaling import Autoscaling
from headrace.spec.deployments import Deployment, Replica, Template, Upstream
from headrace.spec.hedging import Hedging
from headrace.spec.models import Model, ModelVersion
from headrace.spec.nodes import Node
from headrace.spec.public_prompts import PublicPrompt, prompts_max
from headrace.spec.resources import PlacementPolicy, ReplicaResources
from headrace.spec.rollout import RolloutPolicy

router = APIRouter()

replicas_max = 1000
engine_arguments_max = 100
update_attempts_max = 4  # a deployment that keeps changing under us is someone else's to settle

log_bytes_default = 64 << 10
log_bytes_max = 1 << 20

ReplicaCount = Annotated[int, Field(ge=0, le=replicas_max)]
Argument = Annotated[str, Field(min_length=1, max_length=1000)]
PublicPrompts = Annotated[tuple[Policy, ...], Field(max_length=prompts_max)]
LogSize = Annotated[int, Query(ge=1, le=log_bytes_max, description="bytes at most")]
Arguments = Annotated[tuple[Argument, ...], Field(max_length=engine_arguments_max)]
Variables = Annotated[dict[str, str], Field(max_length=variables_max)]


class DeploymentCreate(RequestBody):
    """A model version on an engine, so many times."""

    model: Reference
    version: Reference | None = None  # None: the version with the most traffic
    name: Name | None = None  # None: the model's name, numbered where it is taken
    engine: Name = "headrace"
    replicas: ReplicaCount = 1
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    engine_arguments: Arguments = ()
    environment: Variables | None = None  # of the engine; no secrets, they are shown
    loras: LoraBodies = ()
    public_prompts: PublicPrompts = ()  # beginnings of prompts whose KV tenants share
    upstream: Policy | None = None  # address and key of an engine that others run
    rollout: Policy | None = None
    autoscaling: Policy | None = None
    hedging: Policy | None = None
    disaggregation: Policy | None = None  # replicas that compute prompts for others
    resources: Policy | None = None
    placement: Policy | None = None


class DeploymentChange(RequestBody):
    """What is to change; what is not named stays.

    A change of what replicas look like is a new generation, which is rolled out."""

    replicas: ReplicaCount | None = None
    version: Reference | None = None
    engine: Name | None = None
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    engine_arguments: Arguments | None = None
    environment: Variables | None = None  # replaces all
    loras: LoraBodies | None = None  # replaces all
    public_prompts: PublicPrompts | None = None  # likewise
    upstream: Policy | None = None  # fields that are not named stay; null: headrace starts it
    rollout: Policy | None = None
    autoscaling: Policy | None = None  # null: a fixed number from now on
    hedging: Policy | None = None  # null: no request goes to two replicas from now on
    disaggregation: Policy | None = None  # null: who computes a prompt answers it from now on
    resources: Policy | None = None  # fields that are not named stay; a field of null: its default
    placement: Policy | None = None  # likewise


class LogView(BaseModel):
    """The end of an engine's output."""

    replica: str
    text: str


@router.post("/deployments", status_code=201)
def create_deployment(body: DeploymentCreate, context: Context) -> DeploymentView:
    """Ask for replicas of a model version; the control plane starts them."""
    adapter = find_adapter(body.engine)  # refuses a name that no adapter has
    store = context.database.store
    model = resolve(store, Model, body.model)
    version = _version_of(context, model, body.version)
    taken = {item.name for item in store.list(Deployment, model.id)}
    autoscaling = autoscaling_of(body.autoscaling)
    if body.name is not None:
        reject_id_as_name(body.name)
    deployment = Deployment(
        id=new_id(Deployment.id_prefix, context.clock),
        name=body.name or _free_name(model.name.rpartition("/")[2], taken),
        parent_id=model.id,
        create_time=context.clock.wall_s(),
        model_version_id=version.id,
        engine=body.engine,
        replicas=first_replicas(body.replicas, autoscaling),
        threads=body.threads,
        engine_arguments=body.engine_arguments,
        environment=body.environment or {},
        loras=loras_of(body.engine, body.loras),
        public_prompts=public_prompts_of(body.public_prompts),
        upstream=None if body.upstream is None else read(body.upstream, Upstream, "upstream"),
        rollout=RolloutPolicy()
        if body.rollout is None
        else read(body.rollout, RolloutPolicy, "rollout"),
        autoscaling=autoscaling,
        hedging=hedging_of(body.hedging),
        resources=merged(ReplicaResources(), body.resources, "resources"),
        placement=merged(PlacementPolicy(), body.placement, "placement"),
    )
    deployment = with_disaggregation(deployment, body.disaggregation)
    check_upstream(deployment, adapter, version)
    check_environment(deployment.environment)
    check_public_prompts(deployment.template)
    store.create(deployment)
    return DeploymentViews(context).of(deployment)


@router.get("/deployments")
def list_deployments(
    context: Context,
    model: str | None = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[DeploymentView]:
    """List deployments, of one model or of all."""
    store = context.database.store
    parent_id = None if model is None else resolve(store, Model, model).id
    return page_of(store.list(Deployment, parent_id), after, limit, DeploymentViews(context).of)


@router.get("/deployments/{deployment:path}")
def show_deployment(deployment: str, context: Context) -> DeploymentView:
    """Show one deployment; `model/name` where a name alone is ambiguous."""
    found = resolve(context.database.store, Deployment, deployment, Model)
    return DeploymentViews(context).of(found)


@router.patch("/deployments/{deployment:path}")
def change_deployment(deployment: str, body: DeploymentChange, context: Context) -> DeploymentView:
    """Change a deployment; new looks of its replicas are rolled out by its policy."""
    store = context.database.store
    for attempt in range(update_attempts_max):
        found = resolve(store, Deployment, deployment, Model)
        wanted = changed_deployment(context, found, body)
        try:
            with context.database.transaction():
                follow_version(store, found, wanted)
                changed = found if wanted == found else store.update(wanted)
        except Conflict:
            if attempt == update_attempts_max - 1:
                raise
        else:
            return DeploymentViews(context).of(changed)
    raise AssertionError("the last attempt returns or raises")


def changed_deployment(
    context: AdminContext, deployment: Deployment, body: DeploymentChange
) -> Deployment:
    """The deployment as the body wants it."""
    store = context.database.store
    check_replicas(deployment, body)
    changes: dict[str, object] = {}
    if body.rollout is not None:
        changes["rollout"] = read(body.rollout, RolloutPolicy, "rollout")
    if "hedging" in body.model_fields_set:
        changes["hedging"] = hedging_of(body.hedging)
    if body.placement is not None:
        changes["placement"] = merged(deployment.placement, body.placement, "placement")
    autoscaling = deployment.autoscaling
    if "autoscaling" in body.model_fields_set:
        changes["autoscaling"] = autoscaling = autoscaling_of(body.autoscaling)
    if body.replicas is not None or "autoscaling" in changes:
        replicas = deployment.replicas if body.replicas is None else body.replicas
        changes["replicas"] = first_replicas(replicas, autoscaling)
    template = deployment.template
    if body.version is not None:
        model = store.get(Model, deployment.parent_id)
        version = _version_of(context, model, body.version)
        template = msgspec.structs.replace(template, model_version_id=version.id)
    if body.engine is not None:
        find_adapter(body.engine)
        template = msgspec.structs.replace(template, engine=body.engine)
    template = with_engine_settings(template, body)
    template = with_loras(template, body.loras)
    template = with_public_prompts(template, body.public_prompts)
    if "upstream" in body.model_fields_set:
        template = msgspec.structs.replace(template, upstream=changed_upstream(template, body))
    if body.resources is not None:
        resources = merged(template.resources, body.resources, "resources")
        template = msgspec.structs.replace(template, resources=resources)
    is_given = "disaggregation" in body.model_fields_set
    template = changed_disaggregation(
        deployment, template, changes, body.disaggregation, is_given=is_given
    )
    changed = msgspec.structs.replace(deployment.with_template(template), **changes)
    version = store.get(ModelVersion, changed.model_version_id)
    check_upstream(changed, find_adapter(changed.engine), version)
    check_environment(changed.environment)
    check_public_prompts(changed.template)
    return changed


def check_replicas(deployment: Deployment, body: DeploymentChange) -> None:
    """The number has one owner: the autoscaler where there is one, else whoever sets it here."""
    if "replicas" not in body.model_fields_set:
        return
    if body.replicas is None:
        raise InvalidRequest("replicas: give a number", param="replicas")
    policy = deployment.autoscaling
    if policy is not None and "autoscaling" not in body.model_fields_set:
        raise Conflict(
            f"the deployment {deployment.name!r} is scaled by its traffic, {policy.min} to "
            f"{policy.max}: change the bounds with `headrace deployments update --min --max`, or "
            "give it a fixed number with --fixed --replicas"
        )


def with_engine_settings(template: Template, body: DeploymentChange) -> Template:
    """The template with what the body says of how the engine is started."""
    if "threads" in body.model_fields_set:
        template = msgspec.structs.replace(template, threads=body.threads)
    if body.engine_arguments is not None:
        template = msgspec.structs.replace(template, engine_arguments=body.engine_arguments)
    if body.environment is not None:
        template = msgspec.structs.replace(template, environment=body.environment)
    return template


def public_prompts_of(bodies: tuple[Policy, ...]) -> tuple[PublicPrompt, ...]:
    """The prompts as they came; InvalidRequest says what is wrong with one."""
    return tuple(read(body, PublicPrompt, "public_prompts") for body in bodies)


def with_public_prompts(template: Template, bodies: tuple[Policy, ...] | None) -> Template:
    """A template with other public prompts, or with its own where none are named."""
    if bodies is None:
        return template
    return msgspec.structs.replace(template, public_prompts=public_prompts_of(bodies))


def changed_upstream(template: Template, body: DeploymentChange) -> Upstream | None:
    """Where an engine of others is from now on; None if headrace starts it."""
    if body.upstream is None:
        return None
    if template.upstream is None:
        return read(body.upstream, Upstream, "upstream")
    return merged(template.upstream, body.upstream, "upstream")


def autoscaling_of(value: Policy | None) -> Autoscaling | None:
    """Bounds and targets as they came, checked against each other."""
    if value is None:
        return None
    policy = read(value, Autoscaling, "autoscaling")
    if policy.min > policy.max:
        raise InvalidRequest(
            f"autoscaling: min {policy.min} is over max {policy.max}", param="autoscaling"
        )
    return policy


def hedging_of(value: Policy | None) -> Hedging | None:
    """When to ask a second replica, as it came."""
    return None if value is None else read(value, Hedging, "hedging")


def first_replicas(replicas: int, autoscaling: Autoscaling | None) -> int:
    """How many to begin with: inside the bounds, where there are any."""
    if autoscaling is None:
        return replicas
    return min(autoscaling.max, max(autoscaling.min, replicas))


@router.delete("/deployments/{deployment:path}", status_code=204)
def delete_deployment(deployment: str, context: Context) -> None:
    """Forget a deployment; the control plane drains and stops its replicas."""
    store = context.database.store
    store.delete(resolve(store, Deployment, deployment, Model))


@router.get("/replicas")
def list_replicas(
    context: Context,
    deployment: str | None = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[ReplicaView]:
    """List replicas, of one deployment or of all."""
    store = context.database.store
    parent_id = None if deployment is None else resolve(store, Deployment, deployment, Model).id
    names = {item.id: item.name for item in (*store.list(Deployment), *store.list(Node))}
    return page_of(
        store.list(Replica, parent_id),
        after,
        limit,
        lambda replica: replica_view(
            replica, names.get(replica.parent_id, ""), names.get(replica.node_id, "")
        ),
    )


@router.get("/replicas/{replica}/log")
def read_log(replica: str, context: Context, size: LogSize = log_bytes_default) -> LogView:
    """The newest output of a replica's engine, wherever it runs; for operators."""
    found = resolve(context.database.store, Replica, replica, Deployment)
    if found.upstream is not None:
        raise Conflict("this engine is run by others; its output is with them")
    if context.launcher is None:
        raise Unavailable("this control plane launches nothing; ask the one that leads")
    text = context.launcher.log(found.id, size).decode(errors="replace")
    return LogView(replica=found.name, text=text)


def _version_of(context: AdminContext, model: Model, reference: str | None) -> ModelVersion:
    store = context.database.store
    if reference is not None:
        version = store.find(ModelVersion, reference, model.id) or resolve(
            store, ModelVersion, reference
        )
        if version.parent_id != model.id:
            raise InvalidRequest(
                f"{reference!r} is not a version of {model.name!r}", param="version"
            )
        return version
    if not model.targets:
        raise InvalidRequest(
            f"the model {model.name!r} has no active version; name one", param="version"
        )
    heaviest = max(model.targets, key=lambda target: target.weight)
    return store.get(ModelVersion, heaviest.model_version_id)


def _free_name(base: str, taken: set[str]) -> str:
    """`base`, or `base-2`, ... whichever is first free."""
    candidates = (base if number == 1 else f"{base}-{number}" for number in range(1, 10_000))
    return next(name for name in candidates if name not in taken)

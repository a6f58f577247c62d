"""Routes for nodes: machines that run replicas, and the tokens that their agents report with."""

import datetime
import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict, InvalidRequest, Unavailable
from headrace.base.ids import new_id
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, reject_id_as_name, resolve
from headrace.control.admin.values import RequestBody, moment, optional_moment
from headrace.control.nodes.labels import check_labels
from headrace.control.nodes.node_loop import NodeLoop
from headrace.control.nodes.placing import local_node_name
from headrace.spec.api_key_format import secret_bytes
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model
from headrace.spec.nodes import Node, NodeLaunch, NodeState
from headrace.spec.token_format import node_tokens

router = APIRouter()

nodes_max = 4096
update_attempts_max = 4

Place = Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9._-]*$")]
Labels = Annotated[dict[str, str], Field(max_length=64)]


class NodeCreate(RequestBody):
    """A machine that is to join."""

    name: Name
    region: Place = ""
    zone: Place = ""
    labels: Labels = Field(default_factory=dict)


class NodeChange(RequestBody):
    """What is to change; what is not named stays."""

    cordoned: bool | None = None
    draining: bool | None = None
    quarantined: Annotated[bool | None, Field(description="only false: open it again")] = None
    region: Place | None = None
    zone: Place | None = None
    labels: Labels | None = None


class DeviceView(BaseModel):
    """An accelerator, or a socket with its memory."""

    id: str
    type: str
    memory_bytes: int
    numa: int
    island: str
    shared: bool
    replicas: list[str]


class NodeView(BaseModel):
    """A machine, what it has, and what runs there."""

    id: str
    name: str
    state: NodeState
    closed_reason: str  # why nothing new comes; empty: it may
    silent_s: float | None  # since its last report; null: it needs none, or none is known
    cordoned: bool
    draining: bool
    quarantine_until: datetime.datetime | None
    region: str
    zone: str
    labels: dict[str, str]
    address: str
    cpu_count: float
    memory_bytes: int
    cache_bytes: int | None  # its weight cache; null: it has not told
    cache_bytes_max: int | None  # the budget of that; null: none
    devices: list[DeviceView]
    replicas: list[str]
    generation: int
    create_time: datetime.datetime


class NodePage(Page[NodeView]):
    """A part of the nodes, and whether so many are silent that nothing is moved."""

    frozen_reason: str | None = None


class NodeCreated(NodeView):
    """A new node, its token shown this once."""

    token: str


class TermView(BaseModel):
    """A part of a node's score."""

    name: str
    value: float


class VerdictView(BaseModel):
    """One node, for one more replica."""

    node: str
    reason: str
    devices: list[str]
    score: float
    terms: list[TermView]


class PlaceView(BaseModel):
    """Where a replica is, or why it is nowhere."""

    replica: str
    node: str
    devices: list[str]
    state: ReplicaState
    detail: str


class PlacementView(BaseModel):
    """Where a deployment's replicas are, and where one more would go."""

    deployment: str
    priority: int
    replicas: list[PlaceView]
    nodes: list[VerdictView]
    frozen_reason: str | None


@router.post("/nodes", status_code=201)
def create_node(body: NodeCreate, context: Context) -> NodeCreated:
    """Write down a machine that is to join; its token can't be had again."""
    reject_id_as_name(body.name)
    if body.name == local_node_name:
        raise InvalidRequest(f"{local_node_name!r} is the control plane's own machine")
    check_labels(body.labels)
    store = context.database.store
    if len(store.list(Node)) >= nodes_max:
        raise Conflict(f"there are {nodes_max} nodes already; remove those that are gone")
    secret = secrets.token_bytes(secret_bytes)
    node = store.create(
        Node(
            id=new_id(Node.id_prefix, context.clock),
            name=body.name,
            create_time=context.clock.wall_s(),
            secret_hmac=node_tokens.digest(context.pepper, secret.hex()),
            region=body.region,
            zone=body.zone,
            labels=body.labels,
        )
    )
    return NodeCreated(**dict(_view(context, node)), token=node_tokens.format(node.id, secret))


@router.get("/nodes")
def list_nodes(context: Context, after: After = "", limit: Limit = page_items_default) -> NodePage:
    """List the nodes."""
    replicas = context.database.store.list(Replica)
    page = page_of(
        context.database.store.list(Node),
        after,
        limit,
        lambda node: _view(context, node, replicas),
    )
    frozen = context.nodes.frozen_reason if context.nodes is not None else ""
    return NodePage(items=page.items, next=page.next, frozen_reason=frozen or None)


@router.get("/nodes/{node}")
def show_node(node: str, context: Context) -> NodeView:
    """Show one node."""
    return _view(context, resolve(context.database.store, Node, node))


@router.patch("/nodes/{node}")
def change_node(node: str, body: NodeChange, context: Context) -> NodeView:
    """Change a node: close it for what is new, have what runs move elsewhere, or open it again."""
    if body.labels is not None:
        check_labels(body.labels)
    if body.quarantined:
        raise InvalidRequest("a node is put into quarantine by what fails there; cordon it")
    changes: dict[str, object] = {}
    if body.cordoned is not None:
        changes["is_cordoned"] = body.cordoned
    if body.draining is not None:
        changes["is_draining"] = body.draining
    if body.quarantined is False:
        changes |= {"quarantine_until": None, "quarantine_reason": ""}
    for field in ("region", "zone", "labels"):
        value = getattr(body, field)
        if value is not None:
            changes[field] = value
    return _view(context, _changed(context, node, changes))


@router.post("/nodes/{node}/token")
def renew_token(node: str, context: Context) -> NodeCreated:
    """Make another token for a node; the one before is worth nothing from now on."""
    found = resolve(context.database.store, Node, node)
    if found.is_local:
        raise InvalidRequest("the control plane's own machine needs no token", param="node")
    secret = secrets.token_bytes(secret_bytes)
    hashed = node_tokens.digest(context.pepper, secret.hex())
    renewed = _changed(context, found.id, {"secret_hmac": hashed})
    return NodeCreated(**dict(_view(context, renewed)), token=node_tokens.format(found.id, secret))


@router.delete("/nodes/{node}", status_code=204)
def remove_node(
    node: str,
    context: Context,
    force: Annotated[bool, Query(description="although replicas have their place there")] = False,
) -> None:
    """Forget a node. With replicas on it that is a conflict, unless it is lost or forced."""
    store = context.database.store
    found = resolve(store, Node, node)
    if found.is_local:
        raise InvalidRequest("the control plane's own machine stays; cordon it", param="node")
    names = [replica.name for replica in store.list(Replica) if replica.node_id == found.id]
    if names and not force and found.state is not NodeState.LOST:
        raise Conflict(
            f"{len(names)} replicas have their place on {found.name} ({', '.join(names[:5])}); "
            "drain it first, or force it"
        )
    with context.database.transaction():
        for order in store.list(NodeLaunch, found.id):
            store.delete(order)
        store.delete(found)
    if context.nodes is not None:
        context.nodes.forget(found.id)


@router.get("/explain/placement/{deployment:path}")
def explain_placement(deployment: str, context: Context) -> PlacementView:
    """Show where a deployment's replicas are, and for every node why one more could go there."""
    if context.nodes is None:
        raise Unavailable("replicas are placed by the cluster that they run on; ask it")
    store = context.database.store
    found = resolve(store, Deployment, deployment, Model)
    names = {node.id: node.name for node in store.list(Node)}
    verdicts = context.nodes.explain(found)
    return PlacementView(
        deployment=found.name,
        priority=found.placement.priority,
        replicas=[
            PlaceView(
                replica=replica.name,
                node=names.get(replica.node_id, ""),
                devices=list(replica.device_ids),
                state=replica.state,
                detail=replica.detail,
            )
            for replica in store.list(Replica, found.id)
        ],
        nodes=[
            VerdictView(
                node=names.get(verdict.node_id, verdict.node_id),
                reason=verdict.reason,
                devices=list(verdict.device_ids),
                score=verdict.score,
                terms=[TermView(name=name, value=value) for name, value in verdict.terms.items()],
            )
            for verdict in verdicts
        ],
        frozen_reason=context.nodes.frozen_reason or None,
    )


def _changed(context: AdminContext, reference: str, changes: dict[str, object]) -> Node:
    """The node with these fields; another writer's change of others is kept."""
    store = context.database.store
    for attempt in range(update_attempts_max):
        found = resolve(store, Node, reference)
        wanted = msgspec.structs.replace(found, **changes)
        if wanted == found:
            return found
        try:
            return store.update(wanted)
        except Conflict:
            if attempt == update_attempts_max - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _view(context: AdminContext, node: Node, replicas: list[Replica] | None = None) -> NodeView:
    if replicas is None:
        replicas = context.database.store.list(Replica)
    here = [replica for replica in replicas if replica.node_id == node.id]
    nodes: NodeLoop | None = context.nodes
    cache = None if nodes is None else nodes.book.cache(node.id)
    return NodeView(
        id=node.id,
        name=node.name,
        state=node.state,
        closed_reason=node.closed_reason(context.clock.wall_s()),
        silent_s=None if nodes is None or node.is_local else nodes.silence_s(node.id),
        cordoned=node.is_cordoned,
        draining=node.is_draining,
        quarantine_until=optional_moment(node.quarantine_until),
        region=node.region,
        zone=node.zone,
        labels=node.all_labels,
        address=node.inventory.address,
        cpu_count=node.inventory.cpu_count,
        memory_bytes=node.inventory.memory_bytes,
        cache_bytes=None if cache is None else cache.size_bytes,
        cache_bytes_max=None if cache is None else cache.size_bytes_max,
        devices=[
            DeviceView(
                id=device.id,
                type=device.device_type,
                memory_bytes=device.memory_bytes,
                numa=device.numa,
                island=device.island,
                shared=device.is_shared,
                replicas=[replica.name for replica in here if device.id in replica.device_ids],
            )
            for device in node.inventory.devices
        ],
        replicas=[replica.name for replica in here],
        generation=node.generation,
        create_time=moment(node.create_time),
    )

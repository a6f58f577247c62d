"""Which node each replica of the platform gets, who gives way, and why others wait: pure.

    CREATING or FAILED, no place ──fits──> placed (node, devices, region, zone)
       ^                       └──does not──> waits, with the reason
       └── its node is lost, drained, cordoned, in quarantine or removed

    live, its node is drained ──> leaving when replaced        (its successor gets a place first)
    live, a higher priority needs its place ──> leaving at once

What runs keeps its place. What leaves already holds its devices until it is gone, and counts as
gone when others are placed: so nobody is ended twice, and a place that is not free yet is waited
for, not given away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.control.placement.cluster import Assignment, Device, Option, Request
from headrace.control.placement.cluster import Node as ClusterNode
from headrace.control.placement.explain import NodeVerdict, explain
from headrace.control.placement.schedule import Schedule, schedule
from headrace.spec.deployments import Deployment, Leaving, Replica, ReplicaState, Template
from headrace.spec.nodes import Node
from headrace.spec.resources import ReplicaResources

nominal_memory_bytes = 16 << 20  # of a replica on a processor that names no memory
local_node_name = "local"
cpu_type = "CPU"
reasons_max = 8  # nodes named in one line
startable = (ReplicaState.CREATING, ReplicaState.FAILED)
serving = (ReplicaState.LOADING, ReplicaState.ACTIVE)


@dataclass(frozen=True, slots=True)
class PlacingView:
    """All that placing depends on."""

    now_s: float
    nodes: Sequence[Node]
    deployments: Sequence[Deployment]
    replicas: Sequence[Replica]
    silent: frozenset[str] = frozenset()  # nodes by id
    warm_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by model version id


def plan(view: PlacingView) -> list[Replica]:
    """The replicas that change, each as it is to be written."""
    nodes = {node.id: node for node in view.nodes}
    changed = {replica.id: adopted(replica, view.nodes) for replica in view.replicas}
    changed = {name: stay_or_leave(replica, nodes) for name, replica in changed.items()}
    replicas = [released(replica, nodes, view.now_s) for replica in changed.values()]
    requests = requests_of(view, replicas)
    staying = [r for r in replicas if r.node_id and r.leaving is not Leaving.AT_ONCE]
    outcome = schedule(
        cluster_nodes(view), assignments_of(view, staying), [each for each, _ in requests.values()]
    )
    ended = {assignment.replica for assignment in outcome.preempted}
    held = holders([given_up(r) if r.id in ended else r for r in replicas])
    places = {assignment.replica: assignment for assignment in outcome.assignments}
    waiting = reasons(view, replicas, outcome, [each for each, _ in requests.values()])
    result = []
    for replica in replicas:
        told = replica
        if replica.id in ended:
            told = given_up(replica)
        elif replica.id in places:
            told = placed(replica, places[replica.id], nodes, held)
        elif replica.id in waiting:
            told = msgspec.structs.replace(replica, detail=waiting[replica.id])
        result.append(told)
    before = {replica.id: replica for replica in view.replicas}
    return [replica for replica in result if replica != before[replica.id]]


def adopted(replica: Replica, nodes: Sequence[Node]) -> Replica:
    """A replica that ran before there were nodes runs here."""
    if replica.node_id or replica.state in startable:
        return replica
    local = next((node for node in nodes if node.is_local), None)
    return replica if local is None else at(replica, local, ())


def at(replica: Replica, node: Node, device_ids: tuple[str, ...], memory: int = 0) -> Replica:
    """The replica with its place."""
    return msgspec.structs.replace(
        replica,
        node_id=node.id,
        device_ids=device_ids,
        device_memory_bytes=memory,
        region=node.region,
        zone=node.zone,
    )


def stay_or_leave(replica: Replica, nodes: Mapping[str, Node]) -> Replica:
    """A live replica of a node that is drained is to be replaced; no more once that ends."""
    node = nodes.get(replica.node_id)
    if node is None or replica.state not in serving or replica.leaving is Leaving.AT_ONCE:
        return replica
    leaving = Leaving.WHEN_REPLACED if node.is_draining else Leaving.NOT
    return msgspec.structs.replace(replica, leaving=leaving)


def given_up(replica: Replica) -> Replica:
    """A replica that one of a higher priority takes the place of."""
    if replica.state in startable:
        return without_place(replica)
    return msgspec.structs.replace(replica, leaving=Leaving.AT_ONCE)


def released(replica: Replica, nodes: Mapping[str, Node], now_s: float) -> Replica:
    """A replica that has no process gives its place back where it could not start."""
    if not replica.node_id or replica.state not in startable:
        return replica
    node = nodes.get(replica.node_id)
    if node is not None and not node.closed_reason(now_s):
        return replica
    return without_place(replica)


def without_place(replica: Replica) -> Replica:
    """The replica before it had a place."""
    return msgspec.structs.replace(
        replica,
        node_id="",
        device_ids=(),
        device_memory_bytes=0,
        region="",
        zone="",
        leaving=Leaving.NOT,
    )


def cluster_nodes(view: PlacingView) -> list[ClusterNode]:
    """Nodes as placement knows them."""
    found = []
    for node in view.nodes:
        closed = node.closed_reason(view.now_s)
        if not closed and node.id in view.silent:
            closed = "it does not report"
        devices = tuple(
            Device(
                device.id,
                device.device_type,
                device.memory_bytes,
                numa=device.numa,
                island=device.island,
                is_shared=device.is_shared,
            )
            for device in node.inventory.devices
        )
        found.append(
            ClusterNode(
                node.id,
                devices,
                node.all_labels,
                closed_reason=closed,
                cpu_count=node.inventory.cpu_count or None,
            )
        )
    return found


def request_name(deployment_id: str, generation: int) -> str:
    """Placement's word for the replicas of one generation."""
    return f"{deployment_id}@{generation}"


def requests_of(
    view: PlacingView, replicas: Sequence[Replica]
) -> dict[str, tuple[Request, Template]]:
    """What wants a place, by deployment and generation."""
    accelerators = frozenset(
        device.device_type
        for node in view.nodes
        for device in node.inventory.devices
        if device.device_type != cpu_type
    )
    found: dict[str, tuple[Request, Template]] = {}
    for deployment in view.deployments:
        for template in filter(None, (deployment.template, deployment.former)):
            name = request_name(deployment.id, template.generation)
            wanting = tuple(
                replica.id
                for replica in replicas
                if replica.parent_id == deployment.id
                and replica.generation == template.generation
                and replica.state in startable
                and not replica.node_id
            )
            if wanting:
                request = request_of(view, deployment, template, wanting, accelerators)
                found[name] = (request, template)
    return found


def request_of(
    view: PlacingView,
    deployment: Deployment,
    template: Template,
    replicas: tuple[str, ...],
    accelerators: frozenset[str],
) -> Request:
    """One generation's replicas that want a place."""
    return Request(
        request_name(deployment.id, template.generation),
        replicas,
        options_of(template.resources, accelerators),
        deployment.placement.priority,
        deployment.placement.is_gang,
        apart_names(view.deployments, deployment),
        template.resources.node_labels,
        warm_nodes=view.warm_nodes.get(template.model_version_id, frozenset()),
        cpu_count=template.resources.cpu_count,
    )


def options_of(resources: ReplicaResources, accelerators: frozenset[str]) -> tuple[Option, ...]:
    """The ways to run a replica; none for one over several nodes, which needs a cluster's own."""
    if resources.nodes > 1:
        return ()
    if resources.devices == 0:
        memory = resources.memory_bytes or nominal_memory_bytes
        return (Option(1, memory, frozenset({cpu_type})),)
    types = frozenset(resources.device_types) or accelerators or frozenset({"accelerator"})
    return (Option(resources.devices, resources.device_memory_bytes or 1, types),)


def apart_names(deployments: Sequence[Deployment], deployment: Deployment) -> frozenset[str]:
    """Whom a deployment's replicas are to be apart from, in placement's words."""
    policy = deployment.placement
    apart = set(policy.apart_from) | ({deployment.name} if policy.is_spread else set())
    return frozenset(
        request_name(other.id, template.generation)
        for other in deployments
        if other.name in apart
        for template in filter(None, (other.template, other.former))
    )


def assignments_of(view: PlacingView, replicas: Sequence[Replica]) -> list[Assignment]:
    """Where replicas run, and what they hold there."""
    deployments = {deployment.id: deployment for deployment in view.deployments}
    found = []
    for replica in replicas:
        deployment = deployments.get(replica.parent_id)
        policy = None if deployment is None else deployment.placement
        found.append(
            Assignment(
                replica.id,
                request_name(replica.parent_id, replica.generation),
                replica.node_id,
                replica.device_ids,
                replica.device_memory_bytes,
                0 if policy is None else policy.priority,
                policy is not None and policy.is_gang,
                frozenset() if deployment is None else apart_names(view.deployments, deployment),
            )
        )
    return found


def holders(replicas: Sequence[Replica]) -> dict[tuple[str, str], str]:
    """Devices of those that leave at once and are not gone, with the name of one each."""
    return {
        (replica.node_id, device_id): replica.name
        for replica in replicas
        if replica.leaving is Leaving.AT_ONCE
        for device_id in replica.device_ids
    }


def placed(
    replica: Replica,
    place: Assignment,
    nodes: Mapping[str, Node],
    held: Mapping[tuple[str, str], str],
) -> Replica:
    """The replica with its place, or waiting for who leaves it."""
    for device_id in place.device_ids:
        holder = held.get((place.node_id, device_id))
        if holder is not None:
            return msgspec.structs.replace(replica, detail=f"waits until {holder} has left")
    return msgspec.structs.replace(
        at(replica, nodes[place.node_id], place.device_ids, place.memory_bytes),
        detail=f"has its place on {nodes[place.node_id].name}",
        attempts=replica.attempts,
    )


def reasons(
    view: PlacingView,
    replicas: Sequence[Replica],
    outcome: Schedule,
    requests: Sequence[Request],
) -> dict[str, str]:
    """Why each replica that waits does."""
    named = {request.name: request for request in requests}
    gone = {assignment.replica for assignment in outcome.preempted}
    present = [r for r in replicas if r.node_id and r.id not in gone]
    running = [*assignments_of(view, present), *outcome.assignments]
    found: dict[str, str] = {}
    for queued in outcome.queued:
        verdicts = explain(cluster_nodes(view), running, named[queued.request_name])
        words = waiting_words(view, verdicts, named[queued.request_name])
        found.update(dict.fromkeys(queued.replicas, words))
    return found


def waiting_words(view: PlacingView, verdicts: Sequence[NodeVerdict], request: Request) -> str:
    """Every node's reason in one line."""
    if not request.options:
        return "a replica over several nodes needs the Kubernetes launcher"
    if request.is_gang and any(not verdict.reason for verdict in verdicts):
        return "queued: there is room for some of its replicas, and it wants all or none"
    names = {node.id: node.name for node in view.nodes}
    told = [
        f"{names.get(v.node_id, v.node_id)}: {named(view, v.reason) or 'others go first'}"
        for v in verdicts
    ]
    shown = "; ".join(told[:reasons_max])
    more = f"; and {len(told) - reasons_max} more" if len(told) > reasons_max else ""
    return f"queued: {shown}{more}" if told else "queued: there is no node; add one"


def named(view: PlacingView, text: str) -> str:
    """The text with deployments by their names."""
    for deployment in view.deployments:
        for template in filter(None, (deployment.template, deployment.former)):
            text = text.replace(request_name(deployment.id, template.generation), deployment.name)
    return text


def explain_deployment(view: PlacingView, deployment: Deployment) -> list[NodeVerdict]:
    """Every node's verdict for one more replica of a deployment."""
    accelerators = frozenset(
        device.device_type
        for node in view.nodes
        for device in node.inventory.devices
        if device.device_type != cpu_type
    )
    request = request_of(view, deployment, deployment.template, ("one-more",), accelerators)
    present = [replica for replica in view.replicas if replica.node_id]
    verdicts = explain(cluster_nodes(view), assignments_of(view, present), request)
    return [
        NodeVerdict(v.node_id, named(view, v.reason), v.device_ids, v.score, v.terms)
        for v in verdicts
    ]

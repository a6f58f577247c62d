"""Places for many replicas at once, by a beam search over partial placements.

Requests go by priority, then the hard ones first. For each replica every kept placement is extended
by every node and option; the best `width` go on: most replicas by priority, then fewest devices,
then score. It is repeated for several notions of "hard" until all are placed with as few devices as
could be. Alike nodes are tried once, which is what makes large fleets cheap.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.control.placement.cluster import Assignment, Node, Option, Request, Tenant
from headrace.control.placement.filters import company_reason, standing_reason, taken
from headrace.control.placement.fit import Fit, best_fit, free_after

width_max = 48  # partial placements that are kept
extensions_max = 40_000  # tried in one pass, about; large fleets get a narrower beam

FreeBytes = tuple[tuple[int, ...], ...]  # by node and device
Company = tuple[frozenset[Tenant], ...]  # by node: the requests that have replicas there


@dataclass(frozen=True, slots=True)
class State:
    """A partial placement."""

    free: FreeBytes
    company: Company
    placed: tuple[Assignment, ...] = ()
    counts: tuple[int, ...] = ()  # replicas placed of each request so far, in order
    devices: int = 0
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes in one order, and what is free on them."""

    nodes: tuple[Node, ...]
    free: FreeBytes
    company: Company


def cluster_of(nodes: Sequence[Node], running: Sequence[Assignment]) -> Cluster:
    """The cluster with what runs there; assignments to unknown nodes or devices hold nothing."""
    ordered = tuple(
        Node(
            node.id,
            tuple(sorted(node.devices, key=lambda device: device.id)),
            node.labels,
            node.taints,
            node.closed_reason,
            node.cpu_count,
        )
        for node in sorted(nodes, key=lambda node: node.id)
    )
    free: list[tuple[int, ...]] = []
    company: list[frozenset[Tenant]] = []
    for node in ordered:
        here = [assignment for assignment in running if assignment.node_id == node.id]
        left = []
        for device in node.devices:
            bytes_held = [a.memory_bytes for a in here if device.id in a.device_ids]
            if device.is_shared:
                left.append(device.memory_bytes - sum(bytes_held))
            else:
                left.append(taken if bytes_held else device.memory_bytes)
        free.append(tuple(left))
        company.append(frozenset(Tenant(each.request_name, each.apart_from) for each in here))
    return Cluster(ordered, tuple(free), tuple(company))


def place(cluster: Cluster, requests: Sequence[Request]) -> list[Assignment]:
    """As many replicas as fit, by priority, on as few devices as the search finds."""
    best: State | None = None
    floor = sum(fewest_devices(request) * len(request.replicas) for request in requests)
    wanted = sum(len(request.replicas) for request in requests)
    for hardness in (by_devices, by_memory, by_choice, by_spread):
        order = sorted(requests, key=lambda r: (-r.priority, hardness(cluster, r), r.name))
        found = Pass(cluster, order).run()
        if best is None or merit(found, requests) < merit(best, requests):
            best = found
        if len(best.placed) == wanted and best.devices <= floor:
            break
    return sorted(best.placed) if best is not None else []


def merit(state: State, requests: Sequence[Request]) -> tuple[object, ...]:
    """What orders whole placements, the best first: replicas by priority, devices, score."""
    bands = sorted({request.priority for request in requests}, reverse=True)
    placed = tuple(-sum(a.priority == band for a in state.placed) for band in bands)
    return (*placed, state.devices, -round(state.score, 6), sorted(state.placed))


def fewest_devices(request: Request) -> int:
    """Devices that a replica takes in its smallest option."""
    return min((option.device_count for option in request.options), default=0)


def by_devices(cluster: Cluster, request: Request) -> tuple[float, ...]:
    """Many devices first, then much memory."""
    return (-fewest_devices(request), *by_memory(cluster, request))


def by_memory(cluster: Cluster, request: Request) -> tuple[float, ...]:
    """Much memory on one device first."""
    return (-min((option.memory_bytes for option in request.options), default=0),)


def by_choice(cluster: Cluster, request: Request) -> tuple[float, ...]:
    """Who has fewest devices to choose from first."""
    usable = [
        sum(free >= min(option.memory_bytes for option in request.options) for free in bytes_free)
        for node, bytes_free in zip(cluster.nodes, cluster.free, strict=True)
        if request.options and standing_reason(node, request) is None
    ]
    return (sum(usable), *by_devices(cluster, request))


def by_spread(cluster: Cluster, request: Request) -> tuple[float, ...]:
    """Who needs nearly every node for one of its replicas each first."""
    is_spread = request.name in request.apart_from
    slack = len(cluster.nodes) - len(request.replicas) if is_spread else len(cluster.nodes)
    return (slack, *by_devices(cluster, request))


class Pass:
    """One pass over requests in a given order."""

    def __init__(self, cluster: Cluster, requests: Sequence[Request]) -> None:
        self._cluster = cluster
        self._requests = requests
        replicas = max(1, sum(len(request.replicas) for request in requests))
        kinds = max(1, min(len(cluster.nodes), 16))
        self._width = max(1, min(width_max, extensions_max // (replicas * kinds)))
        self._fits: dict[tuple[int, tuple[int, ...], Option, bool], Fit | None] = {}
        self._options = {r.name: ordered(r.options) for r in requests}
        self._likeness = [likeness(node) for node in cluster.nodes]

    def run(self) -> State:
        """The best placement that is found."""
        states = [State(self._cluster.free, self._cluster.company)]
        for request in self._requests:
            states = self._with_request(states, request)
        return states[0]

    def _with_request(self, states: list[State], request: Request) -> list[State]:
        allowed = [
            position
            for position, node in enumerate(self._cluster.nodes)
            if standing_reason(node, request) is None
        ]
        current, short = states, list[State]()
        for replica in sorted(request.replicas):
            following: list[State] = []
            for state in current:
                extended = self._extensions(state, request, replica, allowed)
                following += extended
                if not extended and not request.is_gang:
                    short.append(state)
            current = self._best(following)
        kept = current + short + (states if request.is_gang else [])
        told = [counted(state, request.name) for state in kept]
        return self._best(told)

    def _extensions(
        self, state: State, request: Request, replica: str, allowed: list[int]
    ) -> list[State]:
        found: list[State] = []
        seen: set[object] = set()
        for position in allowed:
            if company_reason(state.company[position], request) is not None:
                continue
            is_warm = self._cluster.nodes[position].id in request.warm_nodes
            alike = (
                self._likeness[position],
                state.free[position],
                state.company[position],
                is_warm,
            )
            if alike in seen:
                continue
            seen.add(alike)
            for option in self._options[request.name]:
                fit = self._fit(position, state.free[position], option, is_warm)
                if fit is not None:
                    found.append(self._extended(state, request, replica, position, fit))
        return found

    def _fit(
        self, position: int, free: tuple[int, ...], option: Option, is_warm: bool
    ) -> Fit | None:
        key = (position, free, option, is_warm)
        if key not in self._fits:
            node = self._cluster.nodes[position]
            self._fits[key] = best_fit(node, free, option, is_warm=is_warm)
        return self._fits[key]

    def _extended(
        self, state: State, request: Request, replica: str, position: int, fit: Fit
    ) -> State:
        node = self._cluster.nodes[position]
        assignment = Assignment(
            replica=replica,
            request_name=request.name,
            node_id=node.id,
            device_ids=tuple(node.devices[p].id for p in fit.positions),
            memory_bytes=fit.option.memory_bytes,
            priority=request.priority,
            is_gang=request.is_gang,
            apart_from=request.apart_from,
        )
        company = state.company[position] | {Tenant(request.name, request.apart_from)}
        left = free_after(node, state.free[position], fit)
        return State(
            free=(*state.free[:position], left, *state.free[position + 1 :]),
            company=(*state.company[:position], company, *state.company[position + 1 :]),
            placed=(*state.placed, assignment),
            counts=state.counts,
            devices=state.devices + len(fit.positions),
            score=state.score + fit.score,
        )

    def _best(self, states: list[State]) -> list[State]:
        """The best few, each way to fill the cluster once."""

        def rank(state: State) -> tuple[object, ...]:
            counts = tuple(-count for count in state.counts)
            return (*counts, -len(state.placed), state.devices, -round(state.score, 6))

        kept: dict[object, State] = {}
        for state in sorted(states, key=rank):
            kept.setdefault((state.free, state.company), state)
            if len(kept) >= self._width:
                break
        return list(kept.values())


def counted(state: State, request_name: str) -> State:
    """The state after one more request, with how many of its replicas have a place."""
    count = sum(assignment.request_name == request_name for assignment in state.placed)
    return State(
        state.free,
        state.company,
        state.placed,
        (*state.counts, count),
        state.devices,
        state.score,
    )


def likeness(node: Node) -> object:
    """What two nodes must have in common for a replica to be no better on either."""
    return tuple(
        (device.device_type, device.memory_bytes, device.numa, device.island, device.is_shared)
        for device in node.devices
    )


def ordered(options: Sequence[Option]) -> list[Option]:
    """Options in an order of their own, whatever order they came in."""
    return sorted(options, key=lambda o: (o.device_count, o.memory_bytes, sorted(o.device_types)))

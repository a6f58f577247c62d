"""For each node, why a replica cannot go there, or what its place there would score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.control.placement.cluster import Assignment, Node, Request, Tenant
from headrace.control.placement.filters import capacity_reason, company_reason, standing_reason
from headrace.control.placement.fit import best_fit
from headrace.control.placement.search import cluster_of


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node, for one more replica."""

    node_id: str
    reason: str = ""  # why not; empty: it could go there
    device_ids: tuple[str, ...] = ()
    score: float = 0.0
    terms: Mapping[str, float] = field(default_factory=dict)


def explain(
    nodes: Sequence[Node], running: Sequence[Assignment], request: Request
) -> list[NodeVerdict]:
    """Every node's verdict, the best first; those that cannot come last, by name."""
    cluster = cluster_of(nodes, running)
    verdicts = [
        verdict(node, free, company, request)
        for node, free, company in zip(cluster.nodes, cluster.free, cluster.company, strict=True)
    ]
    return sorted(verdicts, key=lambda v: (v.reason != "", -v.score, v.node_id))


def verdict(
    node: Node, free_bytes: tuple[int, ...], company: frozenset[Tenant], request: Request
) -> NodeVerdict:
    """The first filter's reason, or the terms of the best of its options there."""
    reason = standing_reason(node, request) or company_reason(company, request)
    if reason is not None:
        return NodeVerdict(node.id, reason)
    is_warm = node.id in request.warm_nodes
    fits = [
        fit
        for option in request.options
        if (fit := best_fit(node, free_bytes, option, is_warm=is_warm)) is not None
    ]
    if not fits:
        reasons = [capacity_reason(node, free_bytes, option) for option in request.options]
        told = [text for text in dict.fromkeys(reasons) if text]
        return NodeVerdict(node.id, "; or ".join(told) or "no way to run it is known")
    best = min(fits, key=lambda fit: (len(fit.positions), -fit.score))
    names = tuple(node.devices[position].id for position in best.positions)
    return NodeVerdict(node.id, "", names, best.score, best.terms)

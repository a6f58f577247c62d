"""Who is silent, who is lost, and whether so many are that nobody is: a pure function.

    READY ──silent for `lost_after_s`, with few others──> LOST ──reports again──> READY
      └── with many others at once: frozen. It stays READY, and nothing is moved from it

When more than a share of the nodes fall silent together, it is likelier that this control plane is
cut off than that they died, and moving everything would break what still serves. Those that were
given up one by one before do not count; removing a node takes it out of the count as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.spec.nodes import Node, NodeState


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """How long a node may be silent, and how many at once."""

    report_interval_s: float = 1.0
    silent_after_s: float = 10.0  # nothing new comes to it
    lost_after_s: float = 30.0  # what ran there starts elsewhere
    freeze_share: float = 0.3  # of the nodes that were not given up
    freeze_nodes_min: int = 2  # fewer may well fail together
    quarantine_s: float = 600.0


default_times = NodeTimes()


@dataclass(frozen=True, slots=True)
class Standing:
    """What is to be thought of all nodes now."""

    states: Mapping[str, NodeState]  # by node id, where it differs from what is written
    silent: Mapping[str, float]  # seconds, by node id; those given up are not among them
    frozen_reason: str = ""  # why nothing is moved from silent nodes; empty: it is


def judge(
    nodes: Sequence[Node],
    silences_s: Mapping[str, float],
    heard: frozenset[str],
    times: NodeTimes,
) -> Standing:
    """The standing of nodes by how long each has been silent.

    `heard` are those that reported in this life of the control plane; others count as silent
    since its start."""
    states: dict[str, NodeState] = {}
    silent: dict[str, float] = {}
    answering = 0
    for node in nodes:
        silence_s = silences_s.get(node.id, 0.0)
        if node.is_local:
            continue
        if node.id in heard and silence_s <= times.silent_after_s:
            answering += 1
            if node.state is not NodeState.READY:
                states[node.id] = NodeState.READY
        elif node.state is NodeState.READY and silence_s > times.silent_after_s:
            silent[node.id] = silence_s
        elif node.state is NodeState.READY:
            answering += 1
    frozen_reason = ""
    count = len(silent)
    if count >= times.freeze_nodes_min and count > times.freeze_share * (count + answering):
        frozen_reason = (
            f"{count} of {count + answering} nodes fell silent together, so nothing is moved from "
            "them; remove those that are gone for good with `headrace nodes remove`"
        )
    else:
        for node_id, silence_s in silent.items():
            if silence_s > times.lost_after_s:
                states[node_id] = NodeState.LOST
    return Standing(states, silent, frozen_reason)

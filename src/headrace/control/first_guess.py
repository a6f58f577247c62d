"""What a replica may bear before any load proved it: from its devices and its model's size.

Seven tenths of the prompts' tokens that its devices could compute in a second. It only ever raises
what the first evidence shows (`autoscale`): too low a guess changes nothing, and what is too high
is taken back by the first tokens that come late.
"""

from collections.abc import Mapping, Sequence

from headrace.control.planning.speeds import prompt_token_s, speeds
from headrace.spec.deployments import Replica
from headrace.spec.nodes import Node
from headrace.spec.resources import ReplicaResources

guess_share = 0.7  # of it: answers, attention and bursts take the rest


def guessed_tokens_per_s(token_s: float) -> float:
    """Of a replica that computes a token of a prompt in so many seconds."""
    return guess_share / token_s


def first_guess(
    parameters: int | None,
    resources: ReplicaResources,
    replicas: Sequence[Replica],
    nodes: Mapping[str, Node],
) -> float | None:
    """Tokens a second of one replica; None where its model's size or its devices are not known.

    The slowest of the types that it may run on counts. A mixture of experts computes fewer of its
    parameters, so its guess is too low, which is safe."""
    devices = resources.devices_together
    types = device_types_of(replicas, nodes) or frozenset(resources.device_types)
    known = [speeds[name] for name in types if name in speeds]
    if not parameters or not devices or len(known) < len(types) or not known:
        return None
    slowest = min(known, key=lambda speed: speed.flops)
    return guessed_tokens_per_s(prompt_token_s(parameters, slowest, devices))


def device_types_of(replicas: Sequence[Replica], nodes: Mapping[str, Node]) -> frozenset[str]:
    """Of the devices that the replicas have, where nodes tell."""
    return frozenset(
        device.device_type
        for replica in replicas
        if replica.node_id in nodes
        for device in nodes[replica.node_id].inventory.devices
        if device.id in replica.device_ids
    )

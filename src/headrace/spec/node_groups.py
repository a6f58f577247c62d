"""A replica that spans several nodes, and the words in its command that differ between them.

The words are LeaderWorkerSet's. On Kubernetes its controller sets the variables and the kubelet
puts them into the arguments; elsewhere the launcher does both. So one command is right on each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

size_variable = "LWS_GROUP_SIZE"
leader_variable = "LWS_LEADER_ADDRESS"  # a host: where the first node is
rank_variable = "LWS_WORKER_INDEX"  # of each node, from 0
leader_host = f"$({leader_variable})"
node_rank = f"$({rank_variable})"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes of one replica."""

    node_count: int
    port: int  # of the first one, where the engine's processes may find each other


def group_environment(node_count: int, leader: str, rank: int) -> dict[str, str]:
    """What a node of a group has in its environment."""
    return {size_variable: str(node_count), leader_variable: leader, rank_variable: str(rank)}


def expanded(argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    """A command with the words of the variables that a group has."""
    for variable in (size_variable, leader_variable, rank_variable):
        argv = tuple(word.replace(f"$({variable})", environment[variable]) for word in argv)
    return argv

"""What a replica may bear, by its devices and its model's size."""

import pytest

from headrace.control.first_guess import first_guess
from headrace.spec.deployments import Replica
from headrace.spec.nodes import Inventory, Node, NodeDevice
from headrace.spec.resources import ReplicaResources

four = ReplicaResources(devices=4)
parameters_70b = 70_000_000_000


def node(name: str, device_type: str) -> Node:
    devices = tuple(
        NodeDevice(id=f"{name}-{n}", device_type=device_type, memory_bytes=1 << 36)
        for n in range(4)
    )
    return Node(id=name, name=name, create_time=0, inventory=Inventory(devices=devices))


def replica(node_name: str) -> Replica:
    return Replica(
        id="rep_" + node_name,
        name=node_name,
        parent_id="dep_1",
        create_time=0,
        node_id=node_name,
        device_ids=tuple(f"{node_name}-{n}" for n in range(4)),
    )


def test_a_guess_is_seven_tenths_of_what_the_devices_compute_of_prompts() -> None:
    """Llama-3.1-70B on four H100: 2 x 70e9 FLOP a token at half of 4 x 989e12 a second."""
    nodes = {"a": node("a", "H100")}
    found = first_guess(parameters_70b, four, [replica("a")], nodes)
    assert found == pytest.approx(0.7 * 4 * 989e12 * 0.5 / (2 * 70e9))


def test_the_slowest_type_counts_and_devices_in_use_go_before_those_that_are_asked_for() -> None:
    asked = ReplicaResources(devices=4, device_types=("H100", "A100"))
    slow = first_guess(parameters_70b, asked, [], {})
    both = {"a": node("a", "H100"), "b": node("b", "A100")}
    fast = first_guess(parameters_70b, asked, [replica("a")], both)
    assert slow == first_guess(parameters_70b, four, [replica("a"), replica("b")], both)
    assert slow is not None
    assert fast is not None
    assert slow < fast


@pytest.mark.parametrize(
    ("parameters", "resources", "device_type"),
    [
        (None, four, "H100"),
        (parameters_70b, ReplicaResources(), "H100"),
        (parameters_70b, four, "a device of tomorrow"),
    ],
)
def test_nothing_is_guessed_where_something_is_not_known(
    parameters: int | None, resources: ReplicaResources, device_type: str
) -> None:
    nodes = {"a": node("a", device_type)}
    assert first_guess(parameters, resources, [replica("a")], nodes) is None
    assert first_guess(parameters, resources, [], {}) is None

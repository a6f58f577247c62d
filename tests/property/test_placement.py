"""Placement on random small clusters: its invariants, and how many devices the best would use."""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from headrace.control.placement.cluster import Assignment, Device, Node, Option, Request
from headrace.control.placement.schedule import Schedule, schedule

T = TypeVar("T")
gib = 1 << 30
kinds = (("L4", 24), ("L40S", 48), ("H100", 80))
clusters = 500
seeds_of_invariants = 60


def random_nodes(rng: random.Random) -> list[Node]:
    nodes = []
    for number in range(rng.randint(1, 4)):
        name, memory = rng.choice(kinds)
        count = rng.choice((1, 2, 4, 8))
        devices = tuple(
            Device(f"d{i}", name, memory * gib, numa=i // 4, island=str(i // rng.choice((2, 4))))
            for i in range(count)
        )
        nodes.append(Node(f"n{number}", devices))
    return nodes


def random_requests(rng: random.Random) -> list[Request]:
    requests = []
    for number in range(rng.randint(1, 4)):
        total = rng.choice((10, 20, 40, 70, 120, 200))
        options = tuple(
            Option(count, -(-total // count) * gib)
            for count in (1, 2, 4, 8)
            if -(-total // count) <= 80
        )
        replicas = tuple(f"r{number}-{i}" for i in range(rng.randint(1, 3)))
        requests.append(
            Request(
                f"r{number}",
                replicas,
                options,
                priority=rng.choice((0, 0, 1)),
                is_gang=rng.random() < 0.3,
                apart_from=frozenset({f"r{number}"} if rng.random() < 0.2 else ()),
            )
        )
    return requests


def fewest_devices(nodes: list[Node], requests: list[Request]) -> int | None:
    """By a solver: the fewest devices that hold every replica; None if they do not fit.

    Devices of a node are alike here, so counting them is enough."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="ortools is missing")
    model = cp_model.CpModel()
    used: list[list[Any]] = [[] for _ in nodes]  # the solver's package has no types
    for wanted in requests:
        here: list[list[Any]] = [[] for _ in nodes]
        for _ in wanted.replicas:
            ways = []
            for position, node in enumerate(nodes):
                for option in wanted.options:
                    large = node.devices[0].memory_bytes >= option.memory_bytes
                    if large and len(node.devices) >= option.device_count:
                        way = model.new_bool_var("")
                        ways.append(way)
                        here[position].append(way)
                        used[position].append(option.device_count * way)
            model.add(sum(ways) == 1)
        if wanted.apart_from:
            for ways in here:
                model.add(sum(ways) <= 1)
    for node, counts in zip(nodes, used, strict=True):
        model.add(sum(counts) <= len(node.devices))
    model.minimize(sum(sum(counts) for counts in used))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    fewest: int = round(solver.objective_value)
    return fewest


def feasible_cluster(rng: random.Random) -> tuple[list[Node], list[Request], int]:
    """A cluster that can hold all that is asked of it, and on how few devices."""
    while True:
        nodes, requests = random_nodes(rng), random_requests(rng)
        fewest = fewest_devices(nodes, requests)
        if fewest is not None:
            return nodes, requests, fewest


def test_all_that_can_have_a_place_gets_one_within_a_device_of_the_fewest() -> None:
    rng = random.Random(20261129)
    misses = []
    for number in range(clusters):
        nodes, requests, fewest = feasible_cluster(rng)
        outcome = schedule(nodes, [], requests)
        used = sum(len(a.device_ids) for a in outcome.assignments)
        if outcome.queued or used > fewest + 1:
            misses.append((number, outcome.queued, used, fewest))
    assert not misses


@pytest.mark.parametrize("seed", range(seeds_of_invariants))
def test_places_are_sound_and_the_same_for_any_order(seed: int) -> None:
    rng = random.Random(seed)
    nodes, requests = random_nodes(rng), random_requests(rng)
    cpu = Node("cpu", (Device("cpu0", "CPU", 60 * gib, is_shared=True),))
    nodes.append(cpu)
    first = schedule(nodes, [], requests[:1])
    running = list(first.assignments)
    outcome = schedule(nodes, running, requests[1:])
    check(nodes, running, requests[1:], outcome)

    def shuffled(values: Iterable[T]) -> list[T]:
        ordered = list(values)
        return rng.sample(ordered, len(ordered))

    mixed = [Node(node.id, tuple(shuffled(node.devices)), node.labels) for node in shuffled(nodes)]
    asked = [
        Request(
            r.name,
            tuple(shuffled(r.replicas)),
            tuple(shuffled(r.options)),
            r.priority,
            r.is_gang,
            r.apart_from,
        )
        for r in shuffled(requests[1:])
    ]
    assert schedule(mixed, shuffled(running), asked) == outcome


def check(
    nodes: list[Node], running: list[Assignment], requests: list[Request], outcome: Schedule
) -> None:
    devices = {(n.id, d.id): d for n in nodes for d in n.devices}
    here = [*(a for a in running if a not in outcome.preempted), *outcome.assignments]
    held = Counter[tuple[str, str]]()
    memory = Counter[tuple[str, str]]()
    for assignment in here:
        assert len(set(assignment.device_ids)) == len(assignment.device_ids)
        for device_id in assignment.device_ids:
            held[assignment.node_id, device_id] += 1
            memory[assignment.node_id, device_id] += assignment.memory_bytes
    for key, count in held.items():
        assert count == 1 or devices[key].is_shared
        assert memory[key] <= devices[key].memory_bytes
    placed = Counter(a.request_name for a in outcome.assignments)
    waiting = {q.request_name: len(q.replicas) for q in outcome.queued}
    for wanted in requests:
        assert placed[wanted.name] + waiting.get(wanted.name, 0) == len(wanted.replicas)
        if wanted.is_gang:
            assert placed[wanted.name] in (0, len(wanted.replicas))
        if wanted.apart_from:
            mine = [a.node_id for a in outcome.assignments if a.request_name == wanted.name]
            assert len(set(mine)) == len(mine)
    assert len({a.replica for a in here}) == len(here)
    assert all(a.priority < max(r.priority for r in requests) for a in outcome.preempted)

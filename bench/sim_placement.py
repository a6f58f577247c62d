"""How well is a cluster used? Ours, best fit and spread, beside the optimum of a solver.

    python bench/sim_placement.py [--clusters 200] [--seeds 3] > table.md

Small random clusters (1 to 4 nodes of 1 to 8 devices) that can hold all that is asked of them, as a
solver finds (OR-Tools). The two others place replica after replica as they come, with the fewest
devices that are enough: on the node with the fewest free devices that do (`binpack`), or with the
most (`spread`).
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ortools.sat.python import cp_model

from headrace.control.placement.cluster import Device, Node, Option, Request
from headrace.control.placement.schedule import schedule

gib = 1 << 30
kinds = (("L4", 24), ("L40S", 48), ("H100", 80))
Placed = tuple[int, int]  # replicas without a place, devices in use


def random_cluster(rng: random.Random) -> tuple[list[Node], list[Request]]:
    nodes = []
    for number in range(rng.randint(1, 4)):
        name, memory = rng.choice(kinds)
        count = rng.choice((1, 2, 4, 8))
        devices = tuple(Device(f"d{i}", name, memory * gib, island="0") for i in range(count))
        nodes.append(Node(f"n{number}", devices))
    requests = []
    for number in range(rng.randint(1, 4)):
        total = rng.choice((10, 20, 40, 70, 120, 200))
        options = tuple(
            Option(n, -(-total // n) * gib) for n in (1, 2, 4, 8) if -(-total // n) <= 80
        )
        replicas = tuple(f"r{number}-{i}" for i in range(rng.randint(1, 3)))
        requests.append(Request(f"r{number}", replicas, options))
    return nodes, requests


def fits(node: Node, option: Option) -> bool:
    return node.devices[0].memory_bytes >= option.memory_bytes


def optimum(nodes: Sequence[Node], requests: Sequence[Request]) -> int | None:
    """The fewest devices that hold every replica; None if they do not fit."""
    model = cp_model.CpModel()
    used: list[list[Any]] = [[] for _ in nodes]  # the solver has no types
    for request in requests:
        for _ in request.replicas:
            ways = []
            for position, node in enumerate(nodes):
                for option in request.options:
                    if fits(node, option):
                        way = model.new_bool_var("")
                        ways.append(way)
                        used[position].append(option.device_count * way)
            model.add(sum(ways) == 1)
    for node, counts in zip(nodes, used, strict=True):
        model.add(sum(counts) <= len(node.devices))
    model.minimize(sum(sum(counts) for counts in used))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return round(solver.objective_value) if solver.solve(model) == cp_model.OPTIMAL else None


def greedy(direction: int) -> Callable[[Sequence[Node], Sequence[Request]], Placed]:
    """One replica after the other: 1 takes the fullest node that does, -1 the emptiest."""

    def place(nodes: Sequence[Node], requests: Sequence[Request]) -> Placed:
        free = {node.id: len(node.devices) for node in nodes}
        missing = used = 0
        for request in requests:
            for _ in request.replicas:
                able = [
                    (option.device_count, direction * free[node.id], node.id)
                    for node in nodes
                    for option in request.options
                    if fits(node, option) and option.device_count <= free[node.id]
                ]
                if not able:
                    missing += 1
                    continue
                count, _, name = min(able)
                free[name] -= count
                used += count
        return missing, used

    return place


def ours(nodes: Sequence[Node], requests: Sequence[Request]) -> Placed:
    outcome = schedule(nodes, [], requests)
    missing = sum(len(queued.replicas) for queued in outcome.queued)
    return missing, sum(len(each.device_ids) for each in outcome.assignments)


policies = {"headrace": ours, "binpack": greedy(1), "spread": greedy(-1)}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    whole: dict[str, list[float]] = {name: [] for name in policies}
    extra: dict[str, list[float]] = {name: [] for name in policies}
    for seed in range(1, options.seeds + 1):
        rng = random.Random(seed)
        feasible: list[tuple[list[Node], list[Request], int]] = []
        while len(feasible) < options.clusters:
            cluster = random_cluster(rng)
            if (fewest := optimum(*cluster)) is not None:
                feasible.append((*cluster, fewest))
        for name, place in policies.items():
            found = [(*place(nodes, wanted), fewest) for nodes, wanted, fewest in feasible]
            whole[name].append(sum(not missing for missing, _, _ in found) / len(found))
            complete = [(used, fewest) for missing, used, fewest in found if not missing]
            extra[name].append(sum(u for u, _ in complete) / sum(f for _, f in complete))
    print("| placement | clusters in which all found a place (range) "
          "| devices where all did, over the optimum's (range) |\n|---|---|---|")  # fmt: skip
    for name in policies:
        shares, ratios = whole[name], extra[name]
        print(
            f"| {name} | {statistics.fmean(shares):.1%} ({min(shares):.1%} to {max(shares):.1%}) "
            f"| {statistics.fmean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])

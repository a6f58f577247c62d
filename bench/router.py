"""How long does the router take to choose one of many endpoints? Prints microseconds a choice.

Usage: python bench/router.py [--endpoints 1000] [--choices 2000]
"""

import argparse
import json
import random
import time

from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker


def measure(endpoint_count: int, choice_count: int) -> dict[str, float]:
    endpoints = EndpointSet()
    endpoints.update(
        EndpointSpec(f"rep_{number}", "ver_1", f"http://10.0.0.1:{number}")
        for number in range(endpoint_count)
    )
    picker = Picker(endpoints, random.Random(1))
    rng = random.Random(2)
    held: list[Lease] = []
    durations_us: list[float] = []
    for _ in range(choice_count):
        work = Work(rng.randrange(1, 4000), rng.randrange(1, 500))
        started_s = time.perf_counter()
        lease = picker.lease([("ver_1", 1)], work, started_s)
        durations_us.append((time.perf_counter() - started_s) * 1e6)
        held.append(lease)
        if len(held) > endpoint_count * 2:
            held.pop(rng.randrange(len(held))).release()
    durations_us.sort()
    return {
        "endpoints": endpoint_count,
        "choices": choice_count,
        "p50_us": round(durations_us[choice_count // 2], 1),
        "p99_us": round(durations_us[choice_count * 99 // 100], 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--choices", type=int, default=2000)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.endpoints, arguments.choices)))

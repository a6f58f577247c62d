"""Whether the gateway's memory grows: steady load for long, and the slope of its resident size.

    python bench/gateway_soak.py [--minutes 30] [--rate 100]

Before anything is measured, so many requests pass as fast as they go that whatever is kept of the
last ones is full and was replaced twice (the largest is the log of routing decisions). Then the
rate is held. The slope is of a straight line through the last two thirds, by least squares; those
of the second and the last third tell what still fills up from what grows for ever. The bar is 1 MB
(0.95 MiB) an hour.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp
from gateway import Contender, Load, rss_mib, run_engine, run_gateway, start

from headrace.router.decision_log import decisions_max
from headrace.sim.gateway_site import model_name

sample_interval_s = 5.0
warm_up_requests = 3 * decisions_max
warm_up_clients = 16
warm_up_step_s = 1.0

Sample = tuple[float, float]  # hours, MiB


async def warm_up(loads: list[Load]) -> None:
    """Send the first requests, of each shape as many."""
    count = 0
    while count < warm_up_requests:
        for load in loads:
            count += await load.closed(warm_up_clients, warm_up_step_s)


def slope(samples: list[Sample]) -> float:
    """MiB an hour; 0 if there are too few to tell."""
    if len(samples) < 2:
        return 0.0
    return round(statistics.linear_regression(*zip(*samples, strict=True)).slope, 3)


def threads(pid: int) -> int:
    """How many a process has: each that comes late brings memory of its own."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def soak(gateway: Contender, minutes: float, rate: float) -> dict[str, float]:
    """Load for so long; what was seen."""
    samples: list[Sample] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        loads = [Load(gateway, session, stream) for stream in (False, True)]
        rss_cold_mib = rss_mib(gateway.pid)
        await warm_up(loads)
        threads_first = threads(gateway.pid)
        start_s = time.monotonic()
        while (elapsed_s := time.monotonic() - start_s) < minutes * 60:
            samples.append((elapsed_s / 3600, rss_mib(gateway.pid)))
            await asyncio.gather(*(load.open(rate / 2, sample_interval_s) for load in loads))
    third = len(samples) // 3
    return {
        "rss_cold_mib": rss_cold_mib,
        "rss_first_mib": samples[0][1],
        "rss_last_mib": samples[-1][1],
        "slope_mib_an_hour": slope(samples[third:]),
        "slope_of_second_third": slope(samples[third : 2 * third]),
        "slope_of_last_third": slope(samples[2 * third :]),
        "threads_first": threads_first,
        "threads_last": threads(gateway.pid),
        "failures": sum(load.failures for load in loads),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=100.0)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, engine_url = start(stack, run_engine, 8)
        pid, (url, api_key) = start(stack, run_gateway, engine_url, directory, None)
        gateway = Contender("headrace", url, model_name, pid, api_key)
        print(json.dumps(asyncio.run(soak(gateway, arguments.minutes, arguments.rate)), indent=2))


if __name__ == "__main__":
    main()

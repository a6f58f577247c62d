"""Whether the gateway's memory grows: steady load for long, and the slope of its resident size.

    python bench/gateway_soak.py [--minutes 30] [--rate 100]

The slope is of a straight line through the last two thirds, by least squares; a third is for pools
and caches to fill. The bar is 1 MB an hour.
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

from headrace.sim.gateway_site import model_name

sample_interval_s = 5.0


async def soak(gateway: Contender, minutes: float, rate: float) -> dict[str, float]:
    """Load for so long; what was seen."""
    samples: list[tuple[float, float]] = []  # hours, MiB
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        loads = [Load(gateway, session, stream) for stream in (False, True)]
        start_s = time.monotonic()
        while (elapsed_s := time.monotonic() - start_s) < minutes * 60:
            samples.append((elapsed_s / 3600, rss_mib(gateway.pid)))
            await asyncio.gather(*(load.open(rate / 2, sample_interval_s) for load in loads))
    tail = samples[len(samples) // 3 :]
    slope = statistics.linear_regression(*zip(*tail, strict=True)).slope if len(tail) > 1 else 0.0
    return {
        "rss_first_mib": samples[0][1],
        "rss_last_mib": samples[-1][1],
        "slope_mib_an_hour": round(slope, 3),
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

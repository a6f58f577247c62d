"""Is anything lost, doubled or overrun while gateways and databases die? Exit status 1 if so.

Usage: python bench/chaos_million.py [--works 1000000] [--minutes M] [--gateways 4] [--clients 64]
                                     [--redis] [--tokens N] [--interval 8] [--seed 1]

Real gateway processes, a real PostgreSQL, with `--redis` a real Redis for the limits, and an engine
that remembers what it did. Every `--interval` seconds a gateway, what posts its journal, the
database or Redis is killed and started again, or the database is cut off. Clients retry until they
have an answer; some leave in the middle of a stream, some send a request twice at once.
`--tokens` limits what the clients' key may use in a day. SIGTERM or Ctrl-C ends the sending; then
everything is compared and reported as at the end. Each minute a line on standard error says how far
it is, and the report is the last thing on standard output.
"""

import argparse
import asyncio
import json
import math
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from headrace.sim.chaos import ChaosSite
from headrace.sim.chaos_plan import ChaosPlan, ChaosReport
from headrace.spec.limits import Limits

problems_shown = 20
progress_interval_s = 60.0


async def run(site: ChaosSite) -> ChaosReport:
    """The plan, with a line of progress now and then, until it is done or a signal ends it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, site.stop)
    telling = asyncio.create_task(tell(site.report))
    try:
        return await site.run()
    finally:
        telling.cancel()


async def tell(report: ChaosReport) -> None:
    """Say how far it is until cancelled."""
    begun_s = time.monotonic()
    while True:
        await asyncio.sleep(progress_interval_s)
        print(
            f"{time.monotonic() - begun_s:.0f} s: {report.answers} answers, "
            f"{report.broken} broken connections, killed or cut {dict(report.kills)}",
            file=sys.stderr,
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, help="send no more after so long")
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--interval", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    plan = ChaosPlan(
        seed=arguments.seed,
        gateways=arguments.gateways,
        clients=arguments.clients,
        works=arguments.works,
        duration_s_max=math.inf if arguments.minutes is None else arguments.minutes * 60,
        limits=None if arguments.tokens is None else Limits(tokens_per_period=arguments.tokens),
        uses_redis=arguments.redis,
        event_interval_s=arguments.interval,
        attempts_max=200 if arguments.tokens is None else 6,
    )
    directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    directory.chmod(0o755)
    try:
        with ChaosSite(directory, plan) as site:
            report = asyncio.run(run(site))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    found = msgspec.to_builtins(report, str_keys=True)
    found["problem_count"] = len(report.problems)
    found["problems"] = report.problems[:problems_shown]
    print(json.dumps(found, indent=2))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Is a limit that gateways share used up, never overrun, and refused only when it is used up?

    python bench/shared_limits.py [--tokens 20000] [--gateways 4] [--clients 64] [--redis]

Real gateways at their defaults, a real PostgreSQL (and Redis), one key with a day's tokens, and
nothing that fails. The clients go on until they are refused. A refusal is wrong if at its moment
what was used, and the exact worst case of everything under way, left room for one more. Exit
status 1 if the limit was overrun.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import aiohttp

from headrace.sim.chaos import ChaosSite
from headrace.sim.chaos_plan import Ask, ChaosPlan, max_tokens
from headrace.sim.listening_process import Process
from headrace.spec.limits import Limits

refusals_in_a_row = 5  # of one client, before it has seen enough


class WatchedSite(ChaosSite):
    """Knows at each moment what is used and what may be used."""

    def __init__(self, directory: Path, plan: ChaosPlan, tokens: int) -> None:
        super().__init__(directory, plan)
        self._tokens = tokens
        self._each = 0  # tokens of a request, known once one was answered
        self._used = self._under_way = 0
        self.refused = self.refused_wrongly = 0

    async def _attempt(self, session: aiohttp.ClientSession, rng: random.Random, work: int) -> bool:
        gateway = rng.choice(self._gateways)
        return await self._ask(session, gateway, Ask(work, streams=False, leaves=False)) is not None

    async def _ask(self, session: aiohttp.ClientSession, gateway: Process, ask: Ask) -> str | None:
        self._under_way += 1
        headers = {"authorization": f"Bearer {self._api_key}"}
        url = f"{gateway.url}/v1/chat/completions"
        try:
            async with session.post(url, json=ask.body(), headers=headers) as answer:
                whole = await answer.read()
        finally:
            self._under_way -= 1
        self.report.statuses[answer.status] += 1
        if answer.status == 200:
            self._each = max(self._each, json.loads(whole)["usage"]["total_tokens"])
            self._used += self._each
            self.report.answers += 1
            request_id = answer.headers["x-request-id"]
            self._answered.add(request_id)
            return request_id
        self.refused += 1
        needed = self._used + self._each * (self._under_way + 1)
        self.refused_wrongly += self._each > 0 and needed <= self._tokens
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--redis", action="store_true")
    arguments = parser.parse_args()
    plan = ChaosPlan(
        gateways=arguments.gateways,
        clients=arguments.clients,
        works=arguments.tokens // max_tokens,  # more than there is room for
        attempts_max=refusals_in_a_row,
        limits=Limits(tokens_per_period=arguments.tokens),
        uses_redis=arguments.redis,
        events_max=0,
    )
    directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    directory.chmod(0o755)
    try:
        with WatchedSite(directory, plan, arguments.tokens) as site:
            report = asyncio.run(site.run())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    fitting = report.answers + site.refused_wrongly
    found = {
        "answers": report.answers,
        "statuses": report.statuses,
        "refusals": site.refused,
        "wrong_refusals_percent": round(100 * site.refused_wrongly / fitting, 2),
        "billed_tokens": report.billed_tokens,
        "used_percent": round(100 * report.billed_tokens / arguments.tokens, 2),
        "overshoot_tokens": max(0, report.billed_tokens - arguments.tokens),
        "problems": report.problems,
    }
    print(json.dumps(found, indent=2))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Four gateway processes on one limit while gateways, PostgreSQL and Redis are killed."""

from pathlib import Path

import pytest

from headrace.sim.chaos import ChaosSite
from headrace.sim.chaos_plan import ChaosPlan
from headrace.sim.postgres_server import PostgresServer
from headrace.sim.redis_server import RedisServer
from headrace.spec.limits import Limits

pytestmark = pytest.mark.e2e

tokens = 4_000


@pytest.fixture
def directory(open_directory: Path, request: pytest.FixtureRequest) -> Path:
    for reason in (PostgresServer.missing(), RedisServer.missing()):
        if reason:
            pytest.skip(reason)
    made = open_directory / f"chaos-{request.node.name.partition('[')[2].rstrip(']')}"
    made.mkdir()
    made.chmod(0o755)
    return made


@pytest.mark.parametrize("store", ["postgres", "redis"])
async def test_nothing_is_lost_doubled_or_overrun(directory: Path, store: str) -> None:
    plan = ChaosPlan(
        works=480,
        attempts_max=4,
        limits=Limits(tokens_per_period=tokens, budget_nanousd=10**12),
        is_spent_out=True,
        uses_redis=store == "redis",
        event_interval_s=1.0,
        outage_s=0.5,
        events_max=3,
    )
    with ChaosSite(directory, plan) as site:
        report = await site.run()
    assert report.problems == []
    assert report.kills["gateway"]
    assert report.keys
    assert report.billed_tokens >= tokens * 0.97

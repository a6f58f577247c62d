"""kill -9 of one of three replicas at load: no request fails, and the router leaves it out at once.

From the first failure that the router saw, by its own clock and decisions, the dead one is probed
and not chosen, each time after twice as long. How long after the kill it was left out is logged
(`-o log_cli=true --log-level=INFO`): between the two a busy machine may do anything else.
`tests/unit/router/test_ejection.py` is the same in exact time.
"""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest

from headrace.gateway.platform_routes import decisions_prefix
from headrace.router.breaker import ejection_s_min
from headrace.router.decision_log import Decision
from headrace.router.lease import Lease
from headrace.sim.gateway_site import gateway_site, model_name, pepper
from headrace.spec.deployments import Replica
from headrace.spec.platform_token import platform_token

logger = logging.getLogger(__name__)
clients = 12
answers_before, answers_after = 60, 120


class Decisions(msgspec.Struct):
    """What the gateway tells of one request."""

    decisions: list[Decision]


@dataclass
class Engine:
    """A fake engine's process."""

    process: subprocess.Popen[bytes]
    address: str


@contextmanager
def engine() -> Iterator[Engine]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        command = (sys.executable, "-m", "headrace.sim.counting_engine", str(sock.fileno()))
        process = subprocess.Popen(command, pass_fds=[sock.fileno()])
    try:
        yield Engine(process, address)
    finally:
        process.kill()
        process.wait()


@dataclass
class Load:
    """Requests of some clients, none of which is tried again."""

    session: aiohttp.ClientSession
    statuses: list[int] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    count_max: int = answers_before

    async def client(self, number: int) -> None:
        body = {"model": model_name, "messages": [{"role": "user", "content": f"I am {number}"}]}
        while len(self.statuses) < self.count_max:
            async with self.session.post("/v1/chat/completions", json=body) as answer:
                await answer.read()
                self.statuses.append(answer.status)
                self.request_ids.append(answer.headers["x-request-id"])

    async def run(self, count: int) -> None:
        """So many more answers."""
        self.count_max = len(self.statuses) + count
        await asyncio.gather(*(self.client(number) for number in range(clients)))


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Endpoints that failed, and when by the router's clock."""
    seen: list[tuple[str, float]] = []
    fail = Lease.fail

    def noted(lease: Lease, now_s: float) -> None:
        seen.append((lease.endpoint.spec.id, now_s))
        fail(lease, now_s)

    monkeypatch.setattr(Lease, "fail", noted)
    return seen


async def test_a_killed_replica_is_left_out_from_its_first_broken_connection_on(
    tmp_path: Path, failures: list[tuple[str, float]]
) -> None:
    with engine() as victim, engine() as one, engine() as other:
        addresses = [each.address for each in (victim, one, other)]
        async with gateway_site(tmp_path, [], addresses=addresses) as site:
            headers = {"Authorization": f"Bearer {site.api_key}"}
            async with aiohttp.ClientSession(site.url, headers=headers) as session:
                load = Load(session)
                await load.run(answers_before)
                running = asyncio.create_task(load.run(answers_after))
                killed_s = time.monotonic()
                victim.process.send_signal(signal.SIGKILL)
                await running
                ours = {"Authorization": f"Bearer {platform_token(pepper)}"}
                told = []
                for request_id in load.request_ids:
                    path = decisions_prefix + request_id
                    async with session.get(path, headers=ours) as answer:
                        found = msgspec.json.decode(await answer.read(), type=Decisions)
                        told.append(found.decisions)
            (dead,) = (
                replica.id
                for replica in site.database.store.list(Replica)
                if replica.address == victim.address
            )
    assert set(load.statuses) == {200}
    assert len(told) >= answers_before + answers_after
    assert all(attempts[0].chosen_id == dead for attempts in told if len(attempts) > 1)
    first_failure_s = min(at_s for endpoint_id, at_s in failures if endpoint_id == dead)
    logger.info("ejected %.1f ms after kill -9", (first_failure_s - killed_s) * 1000)
    decisions = [decision for attempts in told for decision in attempts]
    chosen_s = sorted(each.monotonic_s for each in decisions if each.chosen_id == dead)
    assert chosen_s
    assert chosen_s[0] < killed_s, "it was part of the load"
    chosen_later_s = [at_s for at_s in chosen_s if at_s > first_failure_s]
    for count, at_s in enumerate(chosen_later_s, start=1):  # the probes, one an ejection
        assert at_s - first_failure_s >= ejection_s_min * (2**count - 1)
    assert any(each.monotonic_s > first_failure_s for each in decisions), "others went on"

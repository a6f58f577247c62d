"""After a crash: what the engines know of the requests that were cut, so that none is guessed.

An engine outlives its gateway, notices the closed connections and keeps the counts for a while.
Which replica had a request is not in the journal, so all of its model are asked. If several know
it, a broken attempt is among them, and the journal's last checkpoint counts as before.
"""

import asyncio
from collections.abc import Iterable

from headrace.adapters.registry import find_adapter
from headrace.gateway.snapshot import Snapshot
from headrace.gateway.upstream import ask_usage
from headrace.http.client import HttpClient
from headrace.ledger.replay import Running
from headrace.router.endpoint import EndpointSpec
from headrace.spec.settlements import TokenUsage

questions_at_once_max = 64
recovery_timeout_s = 10.0  # of a start; what is not known by then is settled at its checkpoint


async def usage_of_cut_requests(
    running: Iterable[Running], snapshot: Snapshot, client: HttpClient
) -> dict[str, TokenUsage]:
    """What the engines say of these requests, by request id; those they do not know are absent."""
    slots = asyncio.Semaphore(questions_at_once_max)
    found: dict[str, TokenUsage] = {}

    async def ask(request_id: str, specs: tuple[EndpointSpec, ...]) -> None:
        known: list[TokenUsage] = []
        for spec in specs:
            async with slots:
                usage = await ask_usage(client, spec, request_id)
            if usage is not None:
                known.append(usage)
        if len(known) == 1:
            found[request_id] = known[0]

    try:
        async with asyncio.timeout(recovery_timeout_s), asyncio.TaskGroup() as questions:
            for cut in running:
                specs = engines_of(cut.reservation.model, snapshot)
                questions.create_task(ask(cut.reservation.request_id, specs))
    except TimeoutError:
        pass  # the rest is unknown
    return found


def engines_of(model_name: str, snapshot: Snapshot) -> tuple[EndpointSpec, ...]:
    """The replicas of a model that keep records of their requests."""
    served = snapshot.models.get(model_name)
    pools = {name for name, _ in served.pools} if served else set()
    return tuple(
        spec
        for spec in snapshot.endpoints
        if spec.pool in pools and find_adapter(spec.engine).keeps_usage_records
    )

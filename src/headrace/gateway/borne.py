"""What attempts used that gave their caller nothing: the platform's, each a request of its own.

    <request id>.hedge    of two attempts at once, the one that another outran
    <request id>.try<n>   the n-th attempt, which broke before a byte went out; another followed

They are booked on the tenant `platform` at a price of 0, so that the ledger has every token that an
engine counted. The engines are asked for them behind the caller's back.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError
from headrace.gateway.account import Account
from headrace.gateway.attempt import Attempt, UsedAt
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.upstream import ask_usage, ask_usage_patiently
from headrace.http.client import HttpClient
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, Reservation, TokenUsage
from headrace.spec.prices import Price, PriceVersion
from headrace.spec.settlements import platform_tenant_id

settle_timeout_s = 10.0  # at the end of a gateway, for engines to tell what the others used
hedge_suffix = ".hedge"
project_id = "hedging"
free = PriceVersion(
    platform_tenant_id,
    Price(
        input_nanousd_per_million=0,
        cached_input_nanousd_per_million=0,
        output_nanousd_per_million=0,
    ),
)


class BorneAttempts:
    """Settles such attempts once their engines have told what they used."""

    def __init__(self, client: HttpClient, counters: GatewayCounters) -> None:
        self._client = client
        self._counters = counters
        self._settling: set[asyncio.Task[None]] = set()  # the retry budget bounds how many begin

    def settle(self, account: Account, attempt: Attempt, prompt_tokens: int) -> None:
        """Settle an attempt that nobody waits for any more on an account of the platform.

        At once, by an estimate of its prompt, where the engine never tells."""
        account.replica_id = attempt.spec.id
        outcome = Outcome.FAILED if attempt.has_failed else Outcome.ABORTED
        used_at = attempt.used_at
        if used_at is None:
            self._book(account, outcome, TokenUsage(), exact=True)
        elif not find_adapter(used_at.spec.engine).keeps_usage_records:
            self._book(account, outcome, TokenUsage(prompt_tokens), exact=False)
        else:
            self._behind(self._ask_and_book(account, outcome, used_at, attempt))

    def settle_if_used(self, reserve: Callable[[], Account], attempt: Attempt) -> None:
        """The same for one that its engine refused: nearly always it had not worked by then, and
        nothing is written of it."""
        self._behind(self._reserve_and_book(reserve, attempt))

    async def close(self) -> None:
        """Wait for the settlements under way; those that do not come are left to the next start."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=settle_timeout_s)

    def _behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it while nobody waits."""
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _reserve_and_book(self, reserve: Callable[[], Account], attempt: Attempt) -> None:
        assert attempt.used_at is not None, "an engine refused it"
        usage = await usage_before_refusal(self._client, attempt.used_at)
        if usage == TokenUsage():
            return
        with suppress(HeadraceError):  # a full disk: the engine's counters have it still
            account = reserve()
            account.replica_id = attempt.spec.id
            self._book(account, Outcome.FAILED, usage, exact=True)

    async def _ask_and_book(
        self, account: Account, outcome: Outcome, used_at: UsedAt, attempt: Attempt
    ) -> None:
        if attempt.was_refused:
            usage = await usage_before_refusal(self._client, used_at)
            self._book(account, outcome, usage, exact=True)
            return
        told = await ask_usage_patiently(self._client, used_at.spec, used_at.request_id)
        usage = TokenUsage() if told is None else used_at.part_of(told)
        self._book(account, outcome, usage, exact=told is not None)

    def _book(self, account: Account, outcome: Outcome, usage: TokenUsage, *, exact: bool) -> None:
        account.settle(outcome, usage, exact=exact)
        tokens = usage.prompt_tokens + usage.completion_tokens
        if account.reservation.request_id.endswith(hedge_suffix):
            self._counters.hedge_lost_tokens += tokens
        else:
            self._counters.retried_tokens += tokens


async def usage_before_refusal(client: HttpClient, used_at: UsedAt) -> TokenUsage:
    """What an engine used of a request before it answered an error status.

    It has ended there by then, so one question is enough; nothing, if it knows no such request."""
    told = await ask_usage(client, used_at.spec, used_at.request_id)
    return TokenUsage() if told is None else used_at.part_of(told)


def try_suffix(number: int) -> str:
    """What the name of the n-th attempt ends with, when another one followed it."""
    return f".try{number}"


def borne_reservation(meter: Meter, reservation: Reservation, suffix: str) -> Reservation:
    """Reserve for such an attempt of a request: the same worst case, on the platform's account."""
    return meter.reserve(
        request_id=reservation.request_id + suffix,
        tenant_id=platform_tenant_id,
        project_id=project_id,
        key_id="",
        model=reservation.model,
        price=free,
        credit_floor_nanousd=None,
        prompt_tokens_max=reservation.prompt_tokens_max,
        output_tokens_max=reservation.output_tokens_max,
    )

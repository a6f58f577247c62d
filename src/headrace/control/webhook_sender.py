"""Tells webhooks of events: signed, through the egress guard, again and later if that failed.

    attempt      1     2     3      4      5     6    7    8    9    10
    after        0    5 s   20 s   80 s   5 m  21 m  1 h  1 h  1 h  1 h    then it has failed

Any 2xx is success. 410 means that the receiver wants no more. What waits is in the store, so a
restart forgets nothing; a receiver may see an event twice and tells by its id.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, NotFound
from headrace.base.loops import pause_unless
from headrace.http.egress import Fetcher
from headrace.spec.events import Delivery, DeliveryState, Event, Webhook
from headrace.spec.webhook_signature import signed_headers, webhook_secret
from headrace.storage.database import Database

logger = logging.getLogger(__name__)

look_interval_s = 1.0
due_max = 32  # taken at once, and told at the same time
attempts_max = 10
first_wait_s = 5.0
wait_s_max = 3600.0
request_timeout_s = 10.0
answer_bytes_max = 64 << 10
error_characters_max = 200


class WebhookSender:
    """Delivers what is due; belongs to one event loop."""

    def __init__(self, database: Database, fetcher: Fetcher, pepper: bytes, clock: Clock) -> None:
        self._database = database
        self._fetcher = fetcher
        self._pepper = pepper
        self._clock = clock
        self._unsaved: dict[
            tuple[str, str], Delivery
        ] = {}  # by event and webhook; `due_max` at most

    async def run(self, stop: asyncio.Event, leads: Callable[[], bool]) -> None:
        """Deliver until told to stop, while `leads` says that it is this process's part."""
        away = Absence(
            logger, self._clock, "webhooks wait for the store", "webhooks are told again"
        )
        while not stop.is_set():
            try:
                if leads():
                    await self.send_due()
                    away.end()
            except HeadraceError as error:
                away.note(error)
            await pause_unless(stop, look_interval_s)

    async def send_due(self) -> int:
        """Try every delivery whose time has come, up to a bound; how many those were.

        Unavailable if the store cannot keep what came of one. That is kept here until it can, and
        nothing is told meanwhile."""
        for delivery in tuple(self._unsaved.values()):
            await self._keep(delivery)
        due = await asyncio.to_thread(self._database.events.due, self._clock.wall_s(), due_max)
        ends = await asyncio.gather(*map(self._attempt, due), return_exceptions=True)
        for end in ends:  # one that the store's absence broke does not break the others off
            if end is not None:
                raise end
        return len(due)

    async def _attempt(self, delivery: Delivery) -> None:
        try:
            webhook = await asyncio.to_thread(
                self._database.store.get, Webhook, delivery.webhook_id
            )
        except NotFound:
            await self._save(delivery, DeliveryState.FAILED, error="the webhook is gone")
            return
        if not webhook.active:
            await self._save(delivery, DeliveryState.FAILED, error="the webhook is switched off")
            return
        body = event_body(delivery.event)
        secret = webhook_secret(self._pepper, webhook)
        headers = signed_headers(secret, delivery.event.id, self._clock.wall_s(), body)
        try:
            answer = await self._fetcher.fetch(
                "POST",
                webhook.url,
                headers=headers,
                timeout_s=request_timeout_s,
                limit_bytes=answer_bytes_max,
                body=body,
            )
        except HeadraceError as error:
            await self._failed(delivery, None, error.message)
            return
        if 200 <= answer.status < 300:
            await self._save(delivery, DeliveryState.DELIVERED, status=answer.status)
        else:
            await self._failed(delivery, answer.status, f"the receiver answered {answer.status}")

    async def _failed(self, delivery: Delivery, status: int | None, error: str) -> None:
        is_over = delivery.attempts + 1 >= attempts_max or status == 410
        state = DeliveryState.FAILED if is_over else DeliveryState.PENDING
        await self._save(delivery, state, status=status, error=error)

    async def _save(
        self,
        delivery: Delivery,
        state: DeliveryState,
        *,
        status: int | None = None,
        error: str | None = None,
    ) -> None:
        changed = msgspec.structs.replace(
            delivery,
            state=state,
            attempts=delivery.attempts + 1,
            next_attempt_time=self._clock.wall_s() + wait_s(delivery.attempts + 1),
            last_status=status,
            last_error=None if error is None else error[:error_characters_max],
        )
        await self._keep(changed)

    async def _keep(self, delivery: Delivery) -> None:
        key = (delivery.event.id, delivery.webhook_id)
        self._unsaved[key] = delivery
        await asyncio.to_thread(self._database.events.save, delivery)
        del self._unsaved[key]


def wait_s(attempts: int) -> float:
    """How long after so many attempts the next one is made."""
    return min(wait_s_max, first_wait_s * 4.0 ** min(attempts - 1, 10))


def event_body(event: Event) -> bytes:
    """What a receiver gets."""
    return msgspec.json.encode(
        {
            "id": event.id,
            "type": event.type,
            "timestamp": event.create_time,
            "tenant_id": event.tenant_id,
            "data": event.data,
        }
    )

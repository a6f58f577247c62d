"""Events at rest, each once, and their deliveries: what is due, what was tried, what came of it."""

import itertools
from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import Connection, RowMapping, and_, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from headrace.spec.events import Delivery, DeliveryState, Event
from headrace.storage.management_tables import events, webhook_deliveries
from headrace.storage.sessions import Sessions

events_max = 100_000  # kept; beyond it the oldest that wait for no delivery go
trim_interval_events = 500  # of one process; counting 100,000 at each would cost more than keeping
trimmed_events_max = 1_000  # at once: more than come between two looks
named_occasions_max = 1_000  # in one question; databases bound how many


class EventStore:
    """Events and deliveries; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._added_counts = itertools.count()  # `next` is one step for all threads

    def add(self, event: Event, webhook_ids: Collection[str]) -> bool:
        """Keep an event for these webhooks; False if its occasion is known already.

        A process's first and each `trim_interval_events`-th look whether there are too many."""
        with self._sessions.write() as connection:
            row = {
                "id": event.id,
                "type": event.type,
                "tenant_id": event.tenant_id,
                "occasion": event.occasion,
                "create_time": event.create_time,
                "body": msgspec.json.encode(event),
            }
            try:
                with connection.begin_nested():
                    connection.execute(insert(events).values(row))
            except IntegrityError:
                return False
            for webhook_id in sorted(webhook_ids):
                connection.execute(
                    insert(webhook_deliveries).values(
                        event_id=event.id,
                        webhook_id=webhook_id,
                        state=DeliveryState.PENDING,
                        attempts=0,
                        next_attempt_time=event.create_time,
                    )
                )
            if next(self._added_counts) % trim_interval_events == 0:
                _forget_oldest(connection)
        return True

    def known_occasions(self, occasions: Sequence[str]) -> set[str]:
        """Those of `occasions` that there are events of."""
        known: set[str] = set()
        with self._sessions.read() as connection:
            for begin in range(0, len(occasions), named_occasions_max):
                named = occasions[begin : begin + named_occasions_max]
                query = select(events.c.occasion).where(events.c.occasion.in_(named))
                known.update(connection.execute(query).scalars())
        return known

    def due(self, now_s: float, limit: int) -> list[Delivery]:
        """Deliveries whose time has come, oldest first."""
        query = (
            select(webhook_deliveries, events.c.body)
            .join(events, events.c.id == webhook_deliveries.c.event_id)
            .where(
                webhook_deliveries.c.state == DeliveryState.PENDING,
                webhook_deliveries.c.next_attempt_time <= now_s,
            )
            .order_by(webhook_deliveries.c.next_attempt_time, webhook_deliveries.c.event_id)
            .limit(limit)
        )
        with self._sessions.read() as connection:
            return [_delivery(row._mapping) for row in connection.execute(query)]

    def deliveries(self, webhook_id: str, limit: int) -> list[Delivery]:
        """The newest deliveries of a webhook."""
        query = (
            select(webhook_deliveries, events.c.body)
            .join(events, events.c.id == webhook_deliveries.c.event_id)
            .where(webhook_deliveries.c.webhook_id == webhook_id)
            .order_by(events.c.create_time.desc(), events.c.id.desc())
            .limit(limit)
        )
        with self._sessions.read() as connection:
            return [_delivery(row._mapping) for row in connection.execute(query)]

    def pending_count(self, webhook_id: str) -> int:
        """How many deliveries of a webhook wait."""
        query = select(func.count()).where(
            webhook_deliveries.c.webhook_id == webhook_id,
            webhook_deliveries.c.state == DeliveryState.PENDING,
        )
        with self._sessions.read() as connection:
            return int(connection.execute(query).scalar_one())

    def save(self, delivery: Delivery) -> None:
        """Keep what came of an attempt."""
        with self._sessions.write() as connection:
            connection.execute(
                update(webhook_deliveries)
                .where(
                    and_(
                        webhook_deliveries.c.event_id == delivery.event.id,
                        webhook_deliveries.c.webhook_id == delivery.webhook_id,
                    )
                )
                .values(
                    state=delivery.state,
                    attempts=delivery.attempts,
                    next_attempt_time=delivery.next_attempt_time,
                    last_status=delivery.last_status,
                    last_error=delivery.last_error,
                )
            )

    def drop_webhook(self, webhook_id: str) -> None:
        """Forget the deliveries of a webhook that is gone."""
        with self._sessions.write() as connection:
            connection.execute(
                delete(webhook_deliveries).where(webhook_deliveries.c.webhook_id == webhook_id)
            )


def _forget_oldest(connection: Connection) -> None:
    count = connection.execute(select(func.count()).select_from(events)).scalar_one()
    if count <= events_max:
        return
    waiting = select(webhook_deliveries.c.event_id).where(
        webhook_deliveries.c.state == DeliveryState.PENDING
    )
    oldest = (
        select(events.c.id)
        .where(events.c.id.not_in(waiting))
        .order_by(events.c.create_time)
        .limit(min(count - events_max, trimmed_events_max))
    )
    ids = list(connection.execute(oldest).scalars())
    connection.execute(delete(webhook_deliveries).where(webhook_deliveries.c.event_id.in_(ids)))
    connection.execute(delete(events).where(events.c.id.in_(ids)))


def _delivery(values: RowMapping) -> Delivery:
    return Delivery(
        event=msgspec.json.decode(values["body"], type=Event),
        webhook_id=values["webhook_id"],
        state=DeliveryState(values["state"]),
        attempts=values["attempts"],
        next_attempt_time=values["next_attempt_time"],
        last_status=values["last_status"],
        last_error=values["last_error"],
    )

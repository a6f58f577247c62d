"""Webhooks are signed, told again after a failure, and given up in the end."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import PermissionDenied, Unavailable
from headrace.control import webhook_sender
from headrace.control.webhook_sender import WebhookSender, attempts_max, wait_s, wait_s_max
from headrace.http.egress import EgressAnswer, no_hosts_allowed
from headrace.http.egress_client import EgressClient
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.events import Delivery, DeliveryState, Event, EventType, Webhook
from headrace.spec.webhook_signature import signature_is_right, signed_headers, webhook_secret
from headrace.storage import Database

pepper = b"p" * 32
webhook = Webhook(
    id="whk_1",
    name="hook",
    create_time=0.0,
    url="https://hooks.example/x",
    events=(EventType.BUDGET_THRESHOLD,),
)


class Receiver:
    """Answers with the next status; None refuses the connection."""

    def __init__(self) -> None:
        self.statuses: list[int | None] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
        body: bytes | None = None,
    ) -> EgressAnswer:
        self.requests.append((url, dict(headers), body or b""))
        status = self.statuses.pop(0) if self.statuses else 204
        if status is None:
            raise PermissionDenied("the address does not lead to the public Internet")
        return EgressAnswer(status, "", b"")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Database:
    opened = open_sqlite_copy(tmp_path / "headrace.db", clock)
    opened.store.create(webhook)
    event = Event(
        id="evt_1",
        type=EventType.BUDGET_THRESHOLD,
        tenant_id="ten_1",
        occasion="o",
        create_time=clock.wall_s(),
        data={"threshold_percent": 50},
    )
    opened.events.add(event, [webhook.id])
    return opened


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def sender(database: Database, receiver: Receiver, clock: ManualClock) -> WebhookSender:
    return WebhookSender(database, receiver, pepper, clock)


def state(database: Database) -> tuple[str, int]:
    (delivery,) = database.events.deliveries(webhook.id, 9)
    return delivery.state, delivery.attempts


async def test_a_receiver_can_check_that_it_is_ours(
    sender: WebhookSender, receiver: Receiver, database: Database, clock: ManualClock
) -> None:
    assert await sender.send_due() == 1
    ((url, headers, body),) = receiver.requests
    assert url == webhook.url
    secret = webhook_secret(pepper, webhook)
    assert signature_is_right(secret, headers, body, clock.wall_s())
    assert not signature_is_right(secret, headers, body + b" ", clock.wall_s())
    assert not signature_is_right(secret, headers, body, clock.wall_s() + 301)
    assert not signature_is_right(b"x" * 32, headers, body, clock.wall_s())
    told = json.loads(body)
    assert (told["id"], told["type"], told["data"]) == (
        headers["webhook-id"],
        "budget.threshold",
        {"threshold_percent": 50},
    )
    assert state(database) == (DeliveryState.DELIVERED, 1)
    assert await sender.send_due() == 0


def test_the_signature_is_the_standards() -> None:
    # printf 'msg_1.1674087231.{"a":1}' | openssl dgst -sha256 -hmac key -binary | base64
    headers = signed_headers(b"key", "msg_1", 1_674_087_231.9, b'{"a":1}')
    assert headers["webhook-timestamp"] == "1674087231"
    assert headers["webhook-signature"] == "v1,XNzK7a+XYmaTBAlyAslUpkDvvQc4BSPA1wsy/Jp1ODg="


async def test_a_failure_is_tried_again_later_with_the_same_id(
    sender: WebhookSender, receiver: Receiver, database: Database, clock: ManualClock
) -> None:
    receiver.statuses = [500, None, 302, 200]
    for attempt in range(1, 4):
        assert await sender.send_due() == 1
        assert state(database) == (DeliveryState.PENDING, attempt)
        assert await sender.send_due() == 0
        clock.advance(wait_s(attempt))
    assert await sender.send_due() == 1
    assert state(database) == (DeliveryState.DELIVERED, 4)
    assert {headers["webhook-id"] for _, headers, _ in receiver.requests} == {"evt_1"}


async def test_it_is_given_up_after_enough_attempts(
    sender: WebhookSender, receiver: Receiver, database: Database, clock: ManualClock
) -> None:
    receiver.statuses = [503] * 99
    for _ in range(attempts_max + 3):
        await sender.send_due()
        clock.advance(wait_s_max)
    assert state(database) == (DeliveryState.FAILED, attempts_max)
    assert len(receiver.requests) == attempts_max


async def test_a_receiver_that_is_gone_for_good_is_asked_once(
    sender: WebhookSender, receiver: Receiver, database: Database
) -> None:
    receiver.statuses = [410]
    await sender.send_due()
    assert state(database) == (DeliveryState.FAILED, 1)


async def test_a_store_that_goes_away_meanwhile_ends_nothing_and_nobody_is_told_twice(
    sender: WebhookSender,
    receiver: Receiver,
    database: Database,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, saves, save = asyncio.Event(), 0, database.events.save

    def save_later(delivery: Delivery) -> None:
        nonlocal saves
        saves += 1
        if saves < 3:
            raise Unavailable("the store is away")
        save(delivery)
        stop.set()

    monkeypatch.setattr(webhook_sender, "look_interval_s", 0.001)
    monkeypatch.setattr(database.events, "save", save_later)
    await sender.run(stop, lambda: True)
    assert (saves, len(receiver.requests)) == (3, 1)
    assert state(database) == (DeliveryState.DELIVERED, 1)


async def test_a_webhook_that_is_off_or_deleted_is_told_nothing(
    sender: WebhookSender, receiver: Receiver, database: Database
) -> None:
    kept = database.store.get(Webhook, webhook.id)
    database.store.update(msgspec.structs.replace(kept, active=False))
    await sender.send_due()
    assert receiver.requests == []
    assert state(database)[0] == DeliveryState.FAILED


def test_a_rotated_secret_signs_otherwise() -> None:
    rotated = msgspec.structs.replace(webhook, secret_number=2)
    other = msgspec.structs.replace(webhook, id="whk_2")
    secrets = {webhook_secret(pepper, each) for each in (webhook, rotated, other)}
    assert len(secrets) == 3


def test_waits_grow_to_an_hour() -> None:
    assert [wait_s(attempt) for attempt in (1, 2, 3, 4, 5, 6, 9)] == [
        5, 20, 80, 320, 1280, 3600, 3600,
    ]  # fmt: skip


async def test_nothing_inward_is_told_anything_whatever_was_written_down(
    database: Database, clock: ManualClock
) -> None:
    """The address is looked at when it is asked, not only when the webhook is made."""
    told: list[bytes] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = EgressClient(no_hosts_allowed)
    sender = WebhookSender(database, client, pepper, clock)
    for url in (f"https://127.0.0.1:{port}/", f"https://localhost:{port}/", "https://[::1]/"):
        database.store.update(
            msgspec.structs.replace(database.store.get(Webhook, "whk_1"), url=url)
        )
        assert await sender.send_due() == 1
        assert state(database)[0] is DeliveryState.PENDING
        clock.advance(wait_s_max)
    await client.close()
    server.close()
    await server.wait_closed()
    assert told == []

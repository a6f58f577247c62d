"""A whole gateway on loopback in this process: store, journal, ledger, fake engines, real sockets.

Tests and benches drive it as a client would, and read what was settled.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from headrace.base.clock import SystemClock
from headrace.gateway.forwarding import Timeouts
from headrace.gateway.gateway import Gateway, GatewayConfig
from headrace.http.asgi import App
from headrace.http.egress import EgressPolicy
from headrace.http.server import address_of, bind, serve
from headrace.ledger.disk import Disk
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.journal_reader import JournalReader
from headrace.ledger.reservation import Settlement
from headrace.observability.tracing import Tracer
from headrace.router.capacity import Capacity
from headrace.sim.engine import FakeEngine
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.api_key_format import format_key, hash_secret
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.spec.prices import Price, PriceBook
from headrace.spec.settlements import platform_tenant_id
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage import Database
from headrace.storage.lease_exchange import SharedLimits

model_name = "demo"
tenant_name = "acme"
secret_of_key = bytes(32)
pepper = bytes(range(32))
records_max = 100_000
# Two thousand requests' worth, so that no settlement is trimmed before its test reads it; much set
# aside at each start is what a test would wait for.
small_journal = JournalLimits(segment_bytes=4 * 1024 * 1024, emergency_bytes=64 * 1024)
price = Price(
    input_nanousd_per_million=1_000_000_000,
    cached_input_nanousd_per_million=100_000_000,
    output_nanousd_per_million=2_000_000_000,
)


def make_id(prefix: str, number: int) -> str:
    """An id of the right shape that a test can name."""
    return f"{prefix}_{number:026d}"


class FixedCapacity(Capacity):
    """How many requests an endpoint runs at once, which no report changes."""

    def __init__(self, requests_max: int) -> None:
        super().__init__()
        self.requests_max = requests_max

    def is_near(self, in_flight: int) -> bool:
        """Never: there is nothing to learn."""
        return False


@dataclass(slots=True)
class GatewaySite:
    """What runs, and how to look at it."""

    database: Database
    journal: Journal
    gateway: Gateway
    url: str
    api_key: str
    engines: list[FakeEngine]
    access_log: io.BytesIO

    async def settlements(self, count: int) -> list[Settlement]:
        """The settlements in the journal, once there are so many; in their order."""
        while True:
            await asyncio.sleep(0)
            reader = JournalReader(self.journal.directory)
            records = reader.read(self.journal.durable_sequence, records_max)
            found = [record.settlement for record in records]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.005)

    async def bills(self, count: int) -> list[Settlement]:
        """The same without what broken attempts used, which is the platform's."""
        wanted = count
        while True:
            found = await self.settlements(wanted)
            bills = [one for one in found if one.tenant_id != platform_tenant_id]
            if len(bills) >= count:
                return bills
            wanted = len(found) + 1

    def limit_places(self, count: int) -> None:
        """Every replica takes so many requests at once, and more wait in the gateway."""
        for endpoint in self.gateway.endpoints:
            endpoint.capacity = FixedCapacity(count)

    async def booked(self, count: int) -> None:
        """Return once the ledger has so many settlements."""
        while True:
            if self.database.ledger.settlement_count() >= count:
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[str]:
    """Serve an app on a free loopback port; its base URL."""
    sock = bind("127.0.0.1", 0)
    host, port = address_of(sock)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(app, sock, drain_timeout_s=5.0, stop=stop))
    try:
        yield f"http://{host}:{port}"
    finally:
        stop.set()
        await task


@asynccontextmanager
async def gateway_site(
    directory: Path,
    engines: Sequence[FakeEngine],
    *,
    addresses: Sequence[str] = (),
    engine: str = "headrace",
    credit_floor_nanousd: int | None = None,
    credit_nanousd: int = 0,
    timeouts: Timeouts | None = None,
    disk: Disk | None = None,
    journal_limits: JournalLimits | None = None,
    media_hosts: Sequence[str] = (),
    region: str = "",
    regions: Sequence[str] = (),
    tracer: Tracer | None = None,
    limits: SharedLimits | None = None,
    open_store: Callable[[], Database] | None = None,
) -> AsyncIterator[GatewaySite]:
    """Start engines and a gateway over them; `addresses` are further replicas that run already.

    `region` is the gateway's, `regions` are the engines'. `open_store` gives several the same
    database; by default each has its own."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(engine)) for engine in engines]
        database = open_store() if open_store else open_sqlite_copy(directory / "headrace.db")
        stack.callback(database.close)
        api_key = fill_store(
            database,
            [*zip(urls, [engine.api_key for engine in engines], strict=True)]
            + [(address, "") for address in addresses],
            credit_floor_nanousd,
            engine,
        )
        for replica, where in zip(database.store.list(Replica), regions, strict=False):
            database.store.update(replace(replica, region=where))
        if credit_nanousd:
            database.ledger.credit(make_id("ten", 1), credit_nanousd, "opening", "test")
        journal = Journal(directory / "journal", journal_limits or small_journal, disk)
        stack.callback(journal.close)
        access_log = io.BytesIO()
        config = GatewayConfig(
            pepper,
            timeouts=timeouts or Timeouts(),
            content_directory=directory / "content",
            egress=EgressPolicy.allowing(media_hosts),
            region=region,
            tracer=tracer,
        )
        gateway = await stack.enter_async_context(
            Gateway(database, journal, config, clock, access_log, limits=limits)
        )
        url = await stack.enter_async_context(serving(gateway.app))
        yield GatewaySite(database, journal, gateway, url, api_key, [*engines], access_log)


def fill_store(
    database: Database,
    replicas: Sequence[tuple[str, str]],
    credit_floor_nanousd: int | None,
    engine: str = "headrace",
) -> str:
    """One caller and one model with its replicas and price; the caller's key as text.

    The second time only the replicas get their new addresses."""
    if database.store.find(Tenant, tenant_name) is not None:
        for replica, access in zip(database.store.list(Replica), replicas, strict=True):
            address, engine_key = access
            moved = replace(replica, address=address, engine_key=engine_key)
            database.store.update(moved)
        return key_text()
    api_key = add_caller(database, credit_floor_nanousd)
    add_model(database, model_name, replicas, engine)
    return api_key


def add_caller(
    database: Database, credit_floor_nanousd: int | None = None, *, number: int = 1
) -> str:
    """A tenant with a project and a key; the key's text. The first is `acme`."""
    key_id = make_id("key", number)
    tenant_id, project_id = make_id("ten", number), make_id("prj", number)
    for resource in (
        Tenant(
            id=tenant_id,
            name=tenant_name if number == 1 else f"{tenant_name}-{number}",
            create_time=0.0,
            credit_floor_nanousd=credit_floor_nanousd,
        ),
        Project(id=project_id, name="chat", parent_id=tenant_id, create_time=0.0),
        ApiKey(
            id=key_id,
            name="main",
            parent_id=project_id,
            create_time=0.0,
            secret_hmac=hash_secret(pepper, secret_of_key.hex()),
        ),
    ):
        database.store.create(resource)
    return key_text(number)


def key_text(number: int = 1) -> str:
    """A caller's key as it presents it."""
    return format_key(make_id("key", number), secret_of_key)


def add_model(
    database: Database,
    name: str,
    replicas: Sequence[tuple[str, str]],
    engine: str = "headrace",
    *,
    number: int = 1,
    fallbacks: tuple[str, ...] = (),
) -> None:
    """The n-th model: a version, a deployment, a price, and replicas by address and key."""
    model_id, version_id = make_id("mod", number), make_id("ver", number)
    for resource in (
        Model(
            id=model_id,
            name=name,
            create_time=0.0,
            targets=(WeightedTarget(version_id),),
            fallbacks=fallbacks,
        ),
        ModelVersion(id=version_id, name="v1", parent_id=model_id, create_time=0.0, source="sim"),
        Deployment(
            id=make_id("dep", number),
            name="main",
            parent_id=model_id,
            create_time=0.0,
            model_version_id=version_id,
            engine=engine,
        ),
        PriceBook(
            id=make_id("prb", number),
            name=f"2026-{number}",
            create_time=0.0,
            effective_time=0.0,
            prices={name: price},
        ),
    ):
        database.store.create(resource)
    for place, access in enumerate(replicas, start=1 + 1000 * (number - 1)):
        database.store.create(sim_replica(place, number, name, access, engine))


def sim_replica(
    place: int, number: int, name: str, access: tuple[str, str], engine: str
) -> Replica:
    """A replica of the n-th model that serves already."""
    return Replica(
        id=make_id("rep", place),
        name=f"r{place}",
        parent_id=make_id("dep", number),
        create_time=0.0,
        state=ReplicaState.ACTIVE,
        address=access[0],
        engine_key=access[1],
        engine=engine,
        model_name=name,
        served_model_name="fake",
    )

"""What one control plane is made of: its loops, its pages, and what both share."""

import asyncio
import os
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headrace.adapters.registry import all_adapters
from headrace.base.clock import SystemClock
from headrace.base.loops import Loop, LoopKeeper
from headrace.cli.admin_site import create_admin_site
from headrace.cli.fleet import (
    Fleet,
    NodeListener,
    open_fleet,
)
from headrace.cli.launcher_options import (
    LauncherChoice,
    LauncherKind,
    open_launcher,
)
from headrace.cli.management import Management, read_management_settings
from headrace.cli.platform_files import PlatformFiles
from headrace.console.app import create_console_app
from headrace.control.admin.app import create_admin_app
from headrace.control.applier import Applier
from headrace.control.counter_sampler import CounterSampler
from headrace.control.decide import ControlTimes
from headrace.control.gateway_poll import GatewayPoll
from headrace.control.hourly_reconciliation import HourlyReconciliation
from headrace.control.insight import Insight
from headrace.control.leader import Leader
from headrace.control.live_history import LiveHistory
from headrace.control.metrics import ControlMetrics
from headrace.control.metrics_site import MetricsSite
from headrace.control.model_files import ModelFiles
from headrace.control.nodes.standing import NodeTimes
from headrace.control.observer import Observer
from headrace.control.probe import EngineProbe
from headrace.control.probe_site import ProbeSite
from headrace.control.reconciler import Reconciler
from headrace.control.scale_loop import ScaleLoop
from headrace.control.scaler import Scaler
from headrace.control.traffic import TrafficBook
from headrace.http import server
from headrace.http.asgi import App
from headrace.http.client import HttpClient
from headrace.launchers.protocol import Launcher
from headrace.spec.prefix_key import prefix_cache_key
from headrace.storage import Database
from headrace.storage.store import Store

drain_timeout_s = 5.0
look_age_s = 0.2  # of what loops see of the store, at most


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """What was said about nodes."""

    times: NodeTimes = field(default_factory=NodeTimes)
    listener: NodeListener | None = None
    runs_here: bool = True
    place: tuple[str, str] = ("", "")  # this machine's region and zone


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What one control plane is made of."""

    database: Database
    data_dir: Path
    cache_dir: Path
    admin_token: str
    pepper: bytes
    gateway_url: str | None = None
    gateway_addresses: tuple[str, ...] = ()
    devices: int | None = None
    launcher: LauncherChoice = field(default_factory=LauncherChoice)
    nodes: NodeSetup = field(default_factory=NodeSetup)
    kv_events_offset: int = 0


def make_fleet(plane: ControlPlane, store: Store, local: Launcher, leader: Leader) -> Fleet | None:
    """The nodes; None where a cluster of another kind places replicas."""
    if plane.launcher.kind is not LauncherKind.PROCESS:
        return None
    return open_fleet(
        store,
        local=local,
        pepper=plane.pepper,
        clock=SystemClock(),
        leads=lambda: leader.leads,
        times=plane.nodes.times,
        runs_here=plane.nodes.runs_here,
        place=plane.nodes.place,
    )


def make_reconciler(
    plane: ControlPlane,
    launcher: Launcher,
    client: HttpClient,
    leader: Leader,
    book: TrafficBook,
    *,
    fleet: Fleet | None,
    seen: Store,
    loops: LoopKeeper,
) -> Reconciler:
    """The reconciler over what the launcher runs; it looks at `seen`, and writes to the store."""
    clock = SystemClock()
    times = ControlTimes()
    store = plane.database.store
    adapters = {adapter.name: adapter for adapter in all_adapters}
    observer = Observer(
        store=seen,
        launcher=launcher,
        probe=EngineProbe(client, clock, plane.pepper),
        model_files=ModelFiles(plane.cache_dir, clock),
        adapters=adapters,
        clock=clock,
        health=book,
        nodes=None if fleet is None else fleet.loop,
    )
    applier = Applier(
        store=store,
        launcher=launcher,
        adapters=adapters,
        clock=clock,
        times=times,
        cpu_count=len(os.sched_getaffinity(0)),
        pepper=plane.pepper,
        prefix_key=prefix_cache_key(plane.pepper),
        kv_events_offset=plane.kv_events_offset,
        transaction=plane.database.transaction,
    )
    return Reconciler(observer, applier, clock, times, seen.revision, leader=leader, loops=loops)


def make_sampler(
    plane: ControlPlane, seen: Store, client: HttpClient, clock: SystemClock, kept_days: int
) -> CounterSampler:
    """What samples the engines' counters, for `headrace reconcile`."""
    return CounterSampler(
        store=seen,
        samples=plane.database.engine_samples,
        probe=EngineProbe(client, clock, plane.pepper),
        adapters={adapter.name: adapter for adapter in all_adapters},
        clock=clock,
        kept_days=kept_days,
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loops and the pages of one control plane share; it belongs to an event loop."""

    client: HttpClient
    clock: SystemClock
    leader: Leader
    book: TrafficBook
    seen: Store  # as of a moment ago
    poll: GatewayPoll
    scaler: Scaler
    live: LiveHistory
    management: Management
    launcher: Launcher
    fleet: Fleet | None
    loops: LoopKeeper
    closing: asyncio.Event  # set when the server drains


async def make_parts(plane: ControlPlane) -> Parts:
    """Open the launcher, and put the rest beside it."""
    client, clock = HttpClient(), SystemClock()
    leader, book = Leader(plane.database.leadership()), TrafficBook()
    seen = plane.database.cached_store(clock, look_age_s)
    files = PlatformFiles(plane.data_dir)
    launcher = await asyncio.to_thread(
        open_launcher, plane.launcher, files, clock, str(plane.cache_dir)
    )
    fleet = make_fleet(plane, seen, launcher, leader)
    return Parts(
        client=client,
        clock=clock,
        leader=leader,
        book=book,
        seen=seen,
        poll=GatewayPoll(
            client, plane.gateway_addresses, pepper=plane.pepper, book=book, clock=clock
        ),
        scaler=Scaler(seen, plane.database.learnt_loads, book, clock, plane.devices),
        live=LiveHistory(seen, book, clock, len(plane.gateway_addresses)),
        management=Management(read_management_settings(), plane.database, plane.pepper, clock),
        launcher=launcher if fleet is None else fleet.launcher,
        fleet=fleet,
        loops=LoopKeeper(clock),
        closing=asyncio.Event(),
    )


def start_loops(plane: ControlPlane, parts: Parts, stop: asyncio.Event) -> list[asyncio.Task[None]]:
    """Whatever runs until `stop` is set; what fails of it is started again."""
    leader, fleet, clock = parts.leader, parts.fleet, parts.clock
    reconciler = make_reconciler(
        plane, parts.launcher, parts.client, leader, parts.book,
        fleet=fleet, seen=parts.seen, loops=parts.loops,
    )  # fmt: skip

    def leads() -> bool:
        return leader.leads

    kept_days = parts.management.settings.engine_samples_days
    sampler = make_sampler(plane, parts.seen, parts.client, clock, kept_days)
    scaling = ScaleLoop(parts.poll, parts.scaler, clock, leads)
    reconciliation = HourlyReconciliation(plane.database, clock)
    running: dict[str, Loop] = {
        "deployments": partial(reconciler.run, stop),
        "scaling": partial(scaling.run, stop),
        "live_history": partial(parts.live.run, stop),
        "engine_samples": partial(sampler.run, stop, leads),
        "reconciliation": partial(reconciliation.run, stop, leads),
        **parts.management.loops(stop, leads),
    }
    if fleet is not None:
        running["nodes"] = partial(fleet.loop.run, stop)
        listener = plane.nodes.listener
        if listener is not None:
            running["node_listener"] = partial(listener.serve, fleet.reports, stop)
            if listener.certificate is not None:
                running["node_certificate"] = partial(listener.certificate.follow, stop)
    return [parts.loops.start(name, loop, stop) for name, loop in running.items()]


def make_site(plane: ControlPlane, parts: Parts) -> App:
    """The admin API, the console, what nodes report to, and the metrics, as one app."""
    fleet, settings = parts.fleet, parts.management.settings
    admin = create_admin_app(
        plane.database,
        plane.admin_token,
        pepper=plane.pepper,
        gateway_url=plane.gateway_url,
        allowed_hosts=settings.admin_hosts,
        single_sign_on=parts.management.single_sign_on,
        egress=settings.egress,
        payment_provider=settings.payment_provider,
        insight=Insight(parts.poll, parts.scaler, parts.live),
        node_loop=None if fleet is None else fleet.loop,
        launcher=parts.launcher,
        closing=parts.closing,
    )
    figures = ControlMetrics(
        plane.database,
        parts.clock,
        lambda: parts.leader.leads,
        lambda: fleet is not None and fleet.loop.frozen_reason != "",
        parts.loops.totals,
    )
    return create_admin_site(
        admin,
        create_console_app(),
        gateway_url=next(iter(plane.gateway_addresses), plane.gateway_url),
        client=parts.client,
        node_app=None if fleet is None else fleet.reports,
        probes=ProbeSite(parts.loops.complaint),
        metrics=MetricsSite(
            figures.text,
            store=parts.seen,
            client=parts.client,
            adapters={adapter.name: adapter for adapter in all_adapters},
            pepper=plane.pepper,
            clock=parts.clock,
        ),
    )


async def reconcile_and_serve(plane: ControlPlane, sock: socket.socket) -> None:
    """Run the loops beside the HTTP server; they end when the server does."""
    parts, stop = await make_parts(plane), asyncio.Event()
    loops = start_loops(plane, parts, stop)
    try:
        site, closing = make_site(plane, parts), parts.closing
        await server.serve(site, sock, drain_timeout_s=drain_timeout_s, on_drain=closing.set)
    finally:
        stop.set()
        await asyncio.gather(*loops)
        await parts.management.close()
        await parts.client.close()
        await asyncio.to_thread(parts.launcher.close)

"""`headrace control`: reconcilers, admin API and console, one process of `headrace up`.

It carries no customer traffic. When it ends, replicas live on, and its successor adopts them; they
end with the supervisor, by the lifeline.
"""

import asyncio
import json
import logging
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from headrace.adapters.registry import all_adapters
from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli.admin_site import create_admin_site
from headrace.cli.fleet import (
    Fleet,
    FreezeShare,
    LocalNode,
    LostAfter,
    NodeCertificate,
    NodeKey,
    NodeListen,
    NodeListener,
    NodePlaintext,
    node_listener,
    node_times,
    open_fleet,
)
from headrace.cli.launcher_options import (
    KubernetesImage,
    KubernetesLoraClaim,
    KubernetesModelClaim,
    KubernetesModelHostPath,
    KubernetesNamespace,
    KubernetesTolerate,
    KubernetesTopologyKey,
    LauncherChoice,
    LauncherKind,
    LauncherName,
    RayAddress,
    open_launcher,
)
from headrace.cli.listening import ListenDescriptor, listener
from headrace.cli.management import Management, read_management_settings
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.routing_options import KvEventsOffset, RegionName, ZoneName
from headrace.cli.settings import CacheDir, DatabaseUrl, DataDir
from headrace.cli.settings import database_url as database_setting
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
from headrace.control.nodes.standing import NodeTimes, default_times
from headrace.control.observer import Observer
from headrace.control.probe import EngineProbe
from headrace.control.reconciler import Reconciler
from headrace.control.scale_loop import ScaleLoop
from headrace.control.scaler import Scaler
from headrace.control.traffic import TrafficBook
from headrace.http import server
from headrace.http.client import HttpClient
from headrace.launchers.protocol import Launcher
from headrace.spec.prefix_key import prefix_cache_key
from headrace.storage import Database, open_database
from headrace.storage.store import Store

drain_timeout_s = 5.0
look_age_s = 0.2  # of what loops see of the store, at most


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("control", help="The control plane of `headrace up`.")(control)


def control(
    *,
    data_dir: DataDir,
    cache_dir: CacheDir,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port of the admin API and console.")] = 8081,
    gateway_url: Annotated[
        str | None, typer.Option(help="Where customers reach the gateway, for examples.")
    ] = None,
    gateway_addresses: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway-address",
            help="Where each gateway answers the control plane; repeatable. Default: gateway-url.",
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=0, help="Devices that autoscaled deployments share; default: no bound."),
    ] = None,
    database_url: DatabaseUrl = None,
    listen_descriptor: ListenDescriptor = None,
    launcher: LauncherName = LauncherKind.PROCESS,
    kubernetes_namespace: KubernetesNamespace = "headrace",
    kubernetes_image: KubernetesImage = "",
    kubernetes_model_claim: KubernetesModelClaim = "",
    kubernetes_lora_claim: KubernetesLoraClaim = "",
    kubernetes_model_host_path: KubernetesModelHostPath = "",
    kubernetes_topology_key: KubernetesTopologyKey = "",
    kubernetes_tolerate: KubernetesTolerate = None,
    ray_address: RayAddress = "auto",
    node_listen: NodeListen = None,
    node_tls_certificate: NodeCertificate = None,
    node_tls_key: NodeKey = None,
    node_plaintext: NodePlaintext = False,
    node_freeze_share: FreezeShare = default_times.freeze_share,
    node_lost_after: LostAfter = default_times.lost_after_s,
    local_node: LocalNode = True,
    region: RegionName = "",
    zone: ZoneName = "",
    kv_events_offset: KvEventsOffset = 0,
) -> None:
    """Reconcile deployments, and serve the admin API and the console, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    nodes_door = node_listener(
        node_listen, node_tls_certificate, node_tls_key, plaintext=node_plaintext
    )
    token, pepper = read_secrets(data_dir)
    os.environ.pop(database_setting.variable, None)
    with listener(host, port, listen_descriptor) as sock:
        database = open_database(PlatformFiles(data_dir).database, database_url)
        control_plane = ControlPlane(
            database=database,
            data_dir=data_dir,
            cache_dir=cache_dir,
            admin_token=token,
            pepper=pepper,
            gateway_url=gateway_url,
            gateway_addresses=tuple(gateway_addresses or filter(None, [gateway_url])),
            devices=devices,
            launcher=LauncherChoice(
                launcher,
                kubernetes_namespace,
                kubernetes_image,
                kubernetes_model_claim,
                kubernetes_lora_claim,
                kubernetes_model_host_path,
                kubernetes_topology_key,
                tuple(kubernetes_tolerate or ()),
                ray_address,
            ),
            nodes=NodeSetup(
                node_times(node_freeze_share, node_lost_after),
                nodes_door,
                local_node,
                (region, zone),
            ),
            kv_events_offset=kv_events_offset,
        )
        try:
            server.run(reconcile_and_serve(control_plane, sock))
        finally:
            database.close()


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


def read_secrets(data_dir: Path) -> tuple[str, bytes]:
    """The admin token of this start, and the pepper; ConfigurationError if `up` made none."""
    try:
        token = json.loads(PlatformFiles(data_dir).admin.read_bytes())["token"]
        pepper = PlatformFiles(data_dir).pepper.read_bytes()
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{data_dir} has no platform that was started ({error}); start it with `headrace up`."
        ) from None
    return str(token), pepper


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
    return Reconciler(observer, applier, clock, times, seen.revision, leader=leader)


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


async def reconcile_and_serve(plane: ControlPlane, sock: socket.socket) -> None:
    """Run the loops beside the HTTP server; they end when the server does."""
    stop, closing = asyncio.Event(), asyncio.Event()
    client = HttpClient()
    clock = SystemClock()
    leader = Leader(plane.database.leadership())
    book = TrafficBook()
    seen = plane.database.cached_store(clock, look_age_s)
    poll = GatewayPoll(client, plane.gateway_addresses, pepper=plane.pepper, book=book, clock=clock)
    scaler = Scaler(seen, plane.database.learnt_loads, book, clock, plane.devices)
    live = LiveHistory(seen, book, clock, len(plane.gateway_addresses))
    settings = read_management_settings()
    management = Management(settings, plane.database, plane.pepper, clock)
    files = PlatformFiles(plane.data_dir)
    launcher = await asyncio.to_thread(
        open_launcher, plane.launcher, files, clock, str(plane.cache_dir)
    )
    fleet = make_fleet(plane, seen, launcher, leader)
    launcher = launcher if fleet is None else fleet.launcher
    reconciler = make_reconciler(plane, launcher, client, leader, book, fleet=fleet, seen=seen)
    sampler = make_sampler(plane, seen, client, clock, settings.engine_samples_days)
    loops = [
        asyncio.create_task(reconciler.run(stop)),
        asyncio.create_task(ScaleLoop(poll, scaler, clock, lambda: leader.leads).run(stop)),
        asyncio.create_task(live.run(stop)),
        asyncio.create_task(sampler.run(stop, lambda: leader.leads)),
        asyncio.create_task(
            HourlyReconciliation(plane.database, clock).run(stop, lambda: leader.leads)
        ),
        asyncio.create_task(management.run(stop, lambda: leader.leads)),
    ]
    if fleet is not None:
        loops.append(asyncio.create_task(fleet.loop.run(stop)))
        if plane.nodes.listener is not None:
            loops.append(asyncio.create_task(plane.nodes.listener.serve(fleet.reports, stop)))
    admin = create_admin_app(
        plane.database,
        plane.admin_token,
        pepper=plane.pepper,
        gateway_url=plane.gateway_url,
        allowed_hosts=management.settings.admin_hosts,
        single_sign_on=management.single_sign_on,
        egress=management.settings.egress,
        payment_provider=management.settings.payment_provider,
        insight=Insight(poll, scaler, live),
        node_loop=None if fleet is None else fleet.loop,
        launcher=launcher,
        closing=closing,
    )
    try:
        site = create_admin_site(
            admin,
            create_console_app(),
            gateway_url=next(iter(plane.gateway_addresses), plane.gateway_url),
            client=client,
            node_app=None if fleet is None else fleet.reports,
            metrics=MetricsSite(
                ControlMetrics(
                    plane.database,
                    clock,
                    lambda: leader.leads,
                    lambda: fleet is not None and fleet.loop.frozen_reason != "",
                ).text,
                store=seen,
                client=client,
                adapters={adapter.name: adapter for adapter in all_adapters},
                pepper=plane.pepper,
            ),
        )
        await server.serve(site, sock, drain_timeout_s=drain_timeout_s, on_drain=closing.set)
    finally:
        stop.set()
        await asyncio.gather(*loops)
        await client.close()
        await asyncio.to_thread(launcher.close)

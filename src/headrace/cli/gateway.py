"""`headrace gateway`: the customers' port, one process of `headrace up`.

It serves on from its last snapshot while the store or the control plane is away. It ends on
SIGTERM after its running requests, or with the supervisor, by the lifeline.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli.listening import ListenDescriptor, listener
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.routing_options import KvEventsOffset, RegionName, RoutingPolicyName, ZoneName
from headrace.cli.settings import DatabaseUrl, DataDir, LimitsUrl, OtlpEndpoint
from headrace.cli.tls_options import (
    Listeners,
    TlsCertificate,
    TlsKey,
    TlsListen,
    tls_listener,
)
from headrace.cli.tracing_options import tracing
from headrace.gateway.forwarding import Timeouts, headers_grace_default_s
from headrace.gateway.gateway import Gateway, GatewayConfig
from headrace.gateway.pauses import shorten_pauses
from headrace.gateway.posting_process import PostingProcess
from headrace.http import server
from headrace.http.callers import Networks, networks_of
from headrace.http.egress import EgressPolicy
from headrace.ledger.journal import Journal
from headrace.ledger.lease_keeper import WhenAway
from headrace.router.policies import default_policy
from headrace.storage import open_database, open_limits

drain_timeout_default_s = 30.0

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway", help="The gateway process of `headrace up`.")(gateway)


def gateway(
    *,
    data_dir: DataDir,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8080,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Listen beyond this machine, without TLS.")
    ] = False,
    drain_timeout_s: Annotated[
        float,
        typer.Option("--drain-timeout", min=0, help="How long running requests may take (s)."),
    ] = drain_timeout_default_s,
    database_url: DatabaseUrl = None,
    limits_url: LimitsUrl = None,
    when_limits_away: Annotated[
        WhenAway,
        typer.Option(help="What to do while shared limits cannot be asked: spend leases, refuse."),
    ] = WhenAway.SPEND_LEASES,
    tls_listen: TlsListen = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    routing_policy: RoutingPolicyName = default_policy,
    region: RegionName = "",
    zone: ZoneName = "",
    kv_events_offset: KvEventsOffset = 0,
    otlp_endpoint: OtlpEndpoint = None,
    media_allowed_hosts: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_MEDIA_ALLOWED_HOSTS",
            help="Hosts of the own network that images may be fetched from, comma-separated.",
        ),
    ] = "",
    trusted_proxies: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_TRUSTED_PROXIES",
            help="Networks of proxies whose X-Forwarded-For is believed, for keys that are bound "
            "to networks; comma-separated.",
        ),
    ] = "",
    headers_grace_s: Annotated[
        float,
        typer.Option(
            "--headers-grace",
            envvar="HEADRACE_HEADERS_GRACE",
            min=0,
            help="How long an engine may refuse a stream with a status of its own (s).",
        ),
    ] = headers_grace_default_s,
    listen_descriptor: ListenDescriptor = None,
) -> None:
    """Serve customers' requests from the replicas that the store names, until SIGTERM."""
    if not (allow_public or server.is_loopback(host)):
        raise ConfigurationError(
            f"Refusing to listen on {host}: API keys would cross the network unencrypted. Use "
            "--tls-listen with a certificate, put a TLS proxy in front of a loopback address, or "
            "pass --allow-public if that is wanted."
        )
    proxies = proxy_networks(trusted_proxies)
    tls = tls_listener(tls_listen, tls_certificate, tls_key)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    pepper = PlatformFiles(data_dir).read_pepper()
    with listener(host, port, listen_descriptor) as sock, ExitStack() as stack:
        path = data_dir / "headrace.db"
        database = open_database(path, database_url)
        stack.callback(database.close)
        journal = Journal(data_dir / "journal")
        stack.callback(journal.close)
        for problem in journal.problems:
            log.warning("%s", problem)
        poster = PostingProcess(path, journal.directory, database_url)
        stack.callback(poster.close)
        config = GatewayConfig(
            pepper,
            timeouts=Timeouts(headers_grace_s=headers_grace_s),
            tracer=stack.enter_context(tracing(otlp_endpoint, "headrace-gateway")),
            content_directory=data_dir / "content",
            when_limits_away=when_limits_away,
            trusted_proxies=proxies,
            egress=EgressPolicy.allowing(media_allowed_hosts.split(",")),
            routing_policy=routing_policy,
            region=region,
            zone=zone,
            kv_events_offset=kv_events_offset,
            certificate=None if tls is None else tls.certificate,
        )
        limits = open_limits(database, limits_url)
        if limits is not None:
            stack.callback(limits.close)
        tls_socket = None if tls is None else stack.enter_context(server.bind(*tls.address))
        listeners = Listeners(sock, tls_socket, None if tls is None else tls.certificate)
        make_gateway = partial(
            Gateway,
            database,
            journal,
            config,
            SystemClock(),
            sys.stderr.buffer,
            poster=poster,
            limits=limits,
        )
        server.run(serve(make_gateway, listeners, drain_timeout_s))


def proxy_networks(text: str) -> Networks:
    """The networks of `--trusted-proxies`; ConfigurationError names one that is none."""
    try:
        return networks_of(text.split(","))
    except ValueError as error:
        raise ConfigurationError(f"--trusted-proxies: {error}") from None


async def serve(
    make_gateway: Callable[[], Gateway], listeners: Listeners, drain_timeout_s: float
) -> None:
    """Run one gateway until it has drained; it is made here, as it belongs to the event loop."""
    async with make_gateway() as running:
        if running.recovered:
            log.warning("settled %d requests that a crash left running", len(running.recovered))
        shorten_pauses()
        app = running.app
        await listeners.serve(app, drain_timeout_s, on_drain=app.drain, on_cut=app.cut)

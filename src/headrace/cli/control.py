"""`headrace control`: reconcilers, admin API and console, one process of `headrace up`.

It carries no customer traffic. When it ends, replicas live on, and its successor adopts them; they
end with the supervisor, by the lifeline.
"""

import asyncio
import json
import logging
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from headrace.adapters.registry import all_adapters
from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli.admin_site import create_admin_site
from headrace.cli.listening import ListenDescriptor, listener
from headrace.cli.platform_files import PlatformFiles, local_launcher
from headrace.cli.settings import CacheDir, DatabaseUrl, DataDir
from headrace.cli.settings import database_url as database_setting
from headrace.console.app import create_console_app
from headrace.control.admin.app import create_admin_app
from headrace.control.applier import Applier
from headrace.control.decide import ControlTimes
from headrace.control.model_files import ModelFiles
from headrace.control.observer import Observer
from headrace.control.probe import EngineProbe
from headrace.control.reconciler import Reconciler
from headrace.http import server
from headrace.http.asgi import App
from headrace.http.client import HttpClient
from headrace.storage import Database, open_database

drain_timeout_s = 5.0


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
    database_url: DatabaseUrl = None,
    listen_descriptor: ListenDescriptor = None,
) -> None:
    """Reconcile deployments, and serve the admin API and the console, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    token, pepper = read_secrets(data_dir)
    os.environ.pop(database_setting.variable, None)  # engines inherit the rest
    with listener(host, port, listen_descriptor) as sock:
        database = open_database(PlatformFiles(data_dir).database, database_url)
        try:
            site = create_admin_site(
                create_admin_app(database, token, pepper=pepper, gateway_url=gateway_url),
                create_console_app(),
            )
            server.run(reconcile_and_serve(database, data_dir, cache_dir, site, sock))
        finally:
            database.close()


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


def make_reconciler(
    database: Database, data_dir: Path, cache_dir: Path, client: HttpClient
) -> Reconciler:
    """The reconciler over real processes of this machine."""
    clock = SystemClock()
    times = ControlTimes()
    launcher = local_launcher(PlatformFiles(data_dir), clock)
    adapters = {adapter.name: adapter for adapter in all_adapters}
    observer = Observer(
        store=database.store,
        launcher=launcher,
        probe=EngineProbe(client),
        model_files=ModelFiles(cache_dir, clock),
        adapters=adapters,
        clock=clock,
    )
    applier = Applier(
        store=database.store,
        launcher=launcher,
        adapters=adapters,
        clock=clock,
        times=times,
        cpu_count=len(os.sched_getaffinity(0)),
    )
    return Reconciler(observer, applier, clock, times, database.store.revision)


async def reconcile_and_serve(
    database: Database, data_dir: Path, cache_dir: Path, site: App, sock: socket.socket
) -> None:
    """Run the loop beside the HTTP server; the loop ends when the server does."""
    stop = asyncio.Event()
    client = HttpClient()
    reconciler = make_reconciler(database, data_dir, cache_dir, client)
    loop = asyncio.create_task(reconciler.run(stop))
    try:
        await server.serve(site, sock, drain_timeout_s=drain_timeout_s)
    finally:
        stop.set()
        await loop
        await client.close()

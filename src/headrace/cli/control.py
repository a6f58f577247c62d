"""`headrace control`: reconcilers, admin API and console, one process of `headrace up`.

It carries no customer traffic. When it ends, replicas live on, and its successor adopts them; they
end with the supervisor, by the lifeline.
"""

import json
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.control_parts import ControlPlane, NodeSetup, reconcile_and_serve
from headrace.cli.fleet import (
    FreezeShare,
    LocalNode,
    LostAfter,
    NodeCertificate,
    NodeKey,
    NodeListen,
    NodePlaintext,
    node_listener,
    node_times,
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
)
from headrace.cli.listening import ListenDescriptor, listener
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.routing_options import KvEventsOffset, RegionName, ZoneName
from headrace.cli.settings import CacheDir, DatabaseUrl, DataDir
from headrace.cli.settings import database_url as database_setting
from headrace.control.nodes.standing import default_times
from headrace.http import server
from headrace.storage import open_database


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
    if nodes_door is not None:
        nodes_door.check()
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


def read_secrets(data_dir: Path) -> tuple[str, bytes]:
    """The admin token of this start, and the pepper; ConfigurationError if `up` made none."""
    try:
        token = json.loads(PlatformFiles(data_dir).admin.read_bytes())["token"]
        pepper = PlatformFiles(data_dir).pepper.read_bytes()
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{data_dir} has no secrets of a platform ({error}); start it with `headrace up`, or "
            "make them once with `headrace init` and copy them to each machine."
        ) from None
    return str(token), pepper

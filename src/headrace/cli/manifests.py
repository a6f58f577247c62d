"""`headrace manifests`: everything that a Kubernetes cluster needs to run headrace, as YAML.

The Secret is made anew at each run, and keys made with another one are worth nothing: a cluster
that has one gets later versions with `--without-secret`.
"""

import base64
import secrets
import sys
from typing import Annotated

import typer
import yaml

from headrace.base.errors import ConfigurationError
from headrace.launchers.kubernetes.platform_objects import Installation, platform_objects

pepper_bytes = 32
token_bytes = 32


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("manifests", help="Write what a Kubernetes cluster needs to run headrace.")(
        manifests
    )


def manifests(
    *,
    image: Annotated[str, typer.Option(help="An image with headrace in it.")],
    database_url: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_DATABASE_URL",
            help="PostgreSQL, as postgresql://user:password@host/db.",
        ),
    ],
    limits_url: Annotated[
        str,
        typer.Option(envvar="HEADRACE_LIMITS_URL", help="Redis; default: limits in PostgreSQL."),
    ] = "",
    namespace: Annotated[str, typer.Option(help="Where everything goes.")] = "headrace",
    gateways: Annotated[int, typer.Option(min=1, help="Gateways at least.")] = 2,
    gateways_max: Annotated[int, typer.Option(min=1, help="Gateways at most.")] = 8,
    hostname: Annotated[
        str, typer.Option(help="The name that customers use; writes a Gateway API route.")
    ] = "",
    gateway: Annotated[
        str, typer.Option(help="The Gateway that the route hangs on, as namespace/name.")
    ] = "",
    model_storage: Annotated[
        str, typer.Option(help="How much room model files get, as 200Gi.")
    ] = "200Gi",
    model_storage_class: Annotated[
        str,
        typer.Option(
            help="A storage class that many nodes can mount; default: the cluster's default."
        ),
    ] = "",
    lora_claim: Annotated[
        str, typer.Option(help="A volume claim with LoRA adapters, at /adapters of each engine.")
    ] = "",
    otlp_endpoint: Annotated[
        str, typer.Option(help="A collector's OTLP/HTTP address, for every process.")
    ] = "",
    without_secret: Annotated[
        bool,
        typer.Option(
            "--without-secret",
            help="Leave the Secret out, as the cluster has one: a new one ends every API key.",
        ),
    ] = False,
) -> None:
    """Write every object to standard output, with new secrets unless they are left out."""
    if not database_url.startswith("postgresql"):
        raise ConfigurationError(
            "several machines share PostgreSQL: --database-url postgresql://..."
        )
    objects = platform_objects(
        Installation(
            namespace=namespace,
            image=image,
            database_url=database_url,
            limits_url=limits_url,
            admin_token=secrets.token_urlsafe(token_bytes),
            pepper_base64=base64.b64encode(secrets.token_bytes(pepper_bytes)).decode(),
            gateways=gateways,
            gateways_max=gateways_max,
            hostname=hostname,
            gateway_class=gateway,
            model_storage=model_storage,
            model_storage_class=model_storage_class,
            lora_claim=lora_claim,
            otlp_endpoint=otlp_endpoint,
        )
    )
    if without_secret:
        objects = [each for each in objects if each["kind"] != "Secret"]
    yaml.dump_all(objects, sys.stdout, WrittenOut, sort_keys=False)


class WrittenOut(yaml.SafeDumper):
    """Writes what occurs twice twice, for whoever edits the file."""

    def ignore_aliases(self, data: object) -> bool:
        """Always."""
        return True

"""`headrace metrics`: what a Prometheus on another machine has to show."""

import typer

from headrace.cli.platform_files import PlatformFiles
from headrace.cli.settings import DataDir
from headrace.spec.platform_token import metrics_token


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="What a scraper on another machine has to show: token.", no_args_is_help=True
    )
    app.add_typer(group, name="metrics")
    group.callback()(metrics)
    group.command("token")(token)


def metrics() -> None:
    """What a scraper has to show."""


def token(*, data_dir: DataDir) -> None:
    """Print the token that opens the metrics of gateways and control planes, and nothing else.

    It follows from the platform's pepper, so it is the same on each of its machines. A Prometheus
    on the platform's own machine needs none."""
    typer.echo(metrics_token(PlatformFiles(data_dir.expanduser().absolute()).read_pepper()))

"""`headrace limits`: what gateways share in Redis, put right after a loss."""

from contextlib import closing

import typer

from headrace.cli.platform_files import PlatformFiles
from headrace.cli.settings import DatabaseUrl, DataDir, LimitsUrl
from headrace.storage import open_database, recount_limits


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Limits that gateways share in Redis: recount.", no_args_is_help=True)
    app.add_typer(group, name="limits")
    group.callback()(limits)
    group.command("recount")(recount)


def limits() -> None:
    """Limits that gateways share in Redis."""


def recount(
    *, data_dir: DataDir, database_url: DatabaseUrl = None, limits_url: LimitsUrl = None
) -> None:
    """Have a Redis that lost its data count every limit anew, from the ledger and the gateways.

    Run it once every gateway that has a journal runs again, and has posted it. For a minute
    nothing is granted beyond what gateways hold; nothing is ever granted beyond a limit."""
    if limits_url is None:
        raise typer.BadParameter("say which Redis: --limits-url redis://host/0")
    path = PlatformFiles(data_dir.expanduser().absolute()).existing_database(database_url)
    with closing(open_database(path, database_url)) as database:
        seconds = recount_limits(database, limits_url)
    typer.echo(f"Every limit is counted anew; gateways are granted more in {seconds:.0f} s.")

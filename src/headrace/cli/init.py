"""`headrace init`: the secrets of a platform whose gateways and control planes start one by one.

`headrace up` makes them for itself. Where each part has a machine of its own, all need the same.
"""

from typing import Annotated

import typer

from headrace.cli.platform_files import PlatformFiles
from headrace.cli.settings import DataDir
from headrace.cli.supervisor import data_dir as directory

admin_url_default = "http://127.0.0.1:8081"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init", help="Write the secrets that gateways and control planes share.")(init)


def init(
    *,
    admin_url: Annotated[
        str, typer.Option(help="Where commands on these machines find the admin API.")
    ] = admin_url_default,
    data_dir: DataDir,
) -> None:
    """Write the pepper of API keys and the admin token, for `headrace gateway` and `control`.

    What is there stays as it is. Copy both files to the data directory of each machine."""
    files = PlatformFiles(data_dir.expanduser().absolute())
    with directory.locked(files):
        directory.ensure_pepper(files)
        if not files.admin.exists():
            directory.write_admin_address(files, admin_url)
    typer.echo(f"{files.pepper}\n{files.admin}")
    typer.echo(
        "Copy both to the data directory of every gateway and control plane, for their owner's "
        "eyes alone. Without the pepper no API key can be checked: keep a copy elsewhere.",
        err=True,
    )

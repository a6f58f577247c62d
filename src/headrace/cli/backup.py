"""`headrace backup` and `headrace restore`: everything that a platform keeps, in one file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.settings import DatabaseUrl, DataDir
from headrace.storage.backup import read_backup, write_backup


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(
    *,
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    data_dir: DataDir,
    database_url: DatabaseUrl = None,
) -> None:
    """Write the database, the journal and the secrets into one file, while the platform runs.

    Whoever has the file has the secret for API keys: keep it as you keep those."""
    write_backup(data_dir.expanduser().absolute(), file, time.time(), database_url)
    typer.echo(f"wrote {file}")


def restore(
    *,
    file: Annotated[Path, typer.Argument(help="A file that `headrace backup` wrote.")],
    data_dir: DataDir,
    database_url: DatabaseUrl = None,
) -> None:
    """Read a backup into an empty data directory, and check the book; exit status 1 if it is not
    sound.

    What was changed after the backup is gone: keys revoked since then work again."""
    problems = read_backup(file, data_dir.expanduser().absolute(), database_url)
    for problem in problems:
        typer.echo(problem)
    typer.echo(f"restored {data_dir}; the book is {'broken' if problems else 'sound'}")
    if problems:
        raise typer.Exit(1)

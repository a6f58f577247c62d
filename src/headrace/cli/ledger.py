"""`headrace ledger`: the book itself, read from the database, whether the platform runs or not."""

from contextlib import closing

import typer

from headrace.cli import output
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.settings import AsJson, DatabaseUrl, DataDir
from headrace.storage import open_database


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="The book of money and tokens: check.", no_args_is_help=True)
    app.add_typer(group, name="ledger")
    group.callback()(ledger)
    group.command("check")(check)


def ledger() -> None:
    """The book of money and tokens."""


def check(*, data_dir: DataDir, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Ask every invariant of the rows themselves; exit status 1 if one is broken.

    Debits equal credits in every entry, every settlement is booked once at its amount, and every
    total is the sum of what it is made of. Reads everything."""
    path = PlatformFiles(data_dir.expanduser().absolute()).existing_database(database_url)
    with closing(open_database(path, database_url)) as database:
        problems = database.ledger.check()
        count = database.ledger.settlement_count()
    if as_json:
        output.write_json({"settlements": count, "problems": problems})
    else:
        for problem in problems:
            typer.echo(problem)
        verdict = f"{len(problems)} broken" if problems else "sound"
        typer.echo(f"{count} settlements; the book is {verdict}")
    if problems:
        raise typer.Exit(1)

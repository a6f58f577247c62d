"""`headrace reconcile`: what was billed against what each engine counted itself.

With `--json`, `items` has one object a replica: `engine_*` and `billed_*` tokens, `difference`
(what the engine counted and nobody was billed), and `reasons` for one. Exit status 1 if a
difference has no reason.

`--list` shows the hourly reports that the control plane keeps, `--show TIME` the one of an hour.
"""

import datetime
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import NotFound
from headrace.cli import output
from headrace.cli.durations import parse_moment
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.settings import AsJson, DatabaseUrl, DataDir
from headrace.control.hourly_reconciliation import decode_rows
from headrace.ledger.reconciliation import Reconciled, ReportRow, reconcile
from headrace.storage import open_database
from headrace.storage.reconciliation_reports import StoredReport

default_span_s = 3_600.0
reports_listed = 48


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reconcile")(compare)


def compare(
    *,
    data_dir: DataDir,
    database_url: DatabaseUrl = None,
    since: Annotated[
        str | None, typer.Option(help="From then on: 7d (ago), 2026-11-01 or a time, UTC.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Before then; default: now.")] = None,
    list_reports: Annotated[
        bool, typer.Option("--list", help="List the stored reports of the last 48 hours.")
    ] = False,
    show: Annotated[
        str | None, typer.Option(help="Show the stored report of the hour of this time, UTC.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare billed tokens with the engines' own counters, an hour back by default."""
    now_s = time.time()
    end_s = parse_moment(until, now_s, "--until").timestamp() if until else now_s
    begin_s = parse_moment(since, now_s, "--since").timestamp() if since else end_s - default_span_s
    path = PlatformFiles(data_dir.expanduser().absolute()).existing_database(database_url)
    with closing(open_database(path, database_url)) as database:
        if list_reports:
            list_heads(database.reconciliations.newest(reports_listed), as_json=as_json)
            return
        if show is not None:
            at = parse_moment(show, now_s, "--show").timestamp()
            show_report(database.reconciliations.covering(at), as_json=as_json)
            return
        samples = database.engine_samples
        found = reconcile(samples.read(begin_s, end_s), samples.billed)
    if as_json:
        output.write_json({"since": begin_s, "until": end_s, "items": [view(row) for row in found]})
    else:
        write_rows(found)
    if not all(row.is_explained for row in found):
        raise typer.Exit(1)


def list_heads(reports: list[StoredReport], *, as_json: bool) -> None:
    """The stored reports, the newest first."""
    if as_json:
        heads = [msgspec.structs.asdict(each) for each in reports]
        for head in heads:
            del head["body"]  # a list has none
        output.write_json({"items": heads})
        return
    rows = [
        (
            format_hour(each.begin_time),
            output.format_count(each.difference_tokens),
            output.format_count(each.unexplained_tokens),
        )
        for each in reports
    ]
    empty = "no hour is reported yet; the control plane makes a report five minutes after each"
    output.write_table(("HOUR (UTC)", ">DIFFERENCE", ">UNEXPLAINED"), rows, empty=empty)


def show_report(report: StoredReport | None, *, as_json: bool) -> None:
    """One stored report; exit status 1 if a difference has no reason."""
    if report is None:
        raise NotFound("no report of that hour is kept; `headrace reconcile --list` names them")
    found = decode_rows(report.body)
    if as_json:
        items = [{**view(row.compared), "engine": row.engine, "model": row.model} for row in found]
        span = {"since": report.begin_time, "until": report.end_time}
        output.write_json({**span, "items": items})
    else:
        write_rows([row.compared for row in found], {row.compared.replica_id: row for row in found})
    if report.unexplained_tokens:
        raise typer.Exit(1)


def format_hour(begin_time: float) -> str:
    """When an hour began."""
    return f"{datetime.datetime.fromtimestamp(begin_time, datetime.UTC):%Y-%m-%d %H:%M}"


def view(row: Reconciled) -> dict[str, object]:
    """A row as JSON."""
    return {
        **msgspec.to_builtins(row),
        "difference": row.difference_tokens,
        "explained": row.is_explained,
    }


def write_rows(found: list[Reconciled], known: Mapping[str, ReportRow] | None = None) -> None:
    """A table, and the reasons below it; `known`: of which engine and model each replica is."""
    names = () if known is None else ("KIND", "MODEL")
    columns = ("REPLICA", *names, ">REQUESTS", ">ENGINE", ">BILLED", ">DIFFERENCE")
    rows = [
        (
            row.replica_id,
            *(() if known is None else (known[row.replica_id].engine, known[row.replica_id].model)),
            output.format_count(row.requests),
            output.format_count(row.engine_prompt_tokens + row.engine_completion_tokens),
            output.format_count(row.billed_prompt_tokens + row.billed_completion_tokens),
            str(row.difference_tokens),
        )
        for row in found
    ]
    output.write_table(
        columns,
        rows,
        empty="no replica was sampled twice in this time; each that serves is, once a minute",
    )
    for row in found:
        for reason in row.reasons if row.difference_tokens else ():
            typer.echo(f"{row.replica_id}: {reason}")
        if not row.is_explained:
            typer.echo(f"{row.replica_id}: the difference has no known reason")

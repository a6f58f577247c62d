"""`headrace sim run SCENARIO` and `headrace sim list`: arguments in, tables or JSON out."""

from typing import Annotated

import msgspec
import typer

from headrace.base.errors import InvalidRequest
from headrace.cli.output import write_fields, write_json, write_table
from headrace.sim.fleet.policies import headrace, policies
from headrace.sim.fleet.report import Latency, Report
from headrace.sim.fleet.scenario import load, names
from headrace.sim.fleet.simulation import Simulation

as_json_option = typer.Option("--json", help="Write one JSON document and nothing else.")


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        help="Simulate fleets on a virtual clock: run, list.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("run")(run_scenario)
    group.command("list")(list_scenarios)
    app.add_typer(group, name="sim")


def run_scenario(
    scenario: Annotated[str, typer.Argument(help="A name from `sim list`, or a .toml file.")],
    seed: Annotated[int, typer.Option(help="Of every random number; repeats a run exactly.")] = 0,
    policy: Annotated[
        str, typer.Option(help=f"Instead of the scenario's: {headrace}, {', '.join(policies)}.")
    ] = "",
    check_every: Annotated[
        int | None,
        typer.Option(
            help="Events between two full checks of the invariants; unset: 10,000 or more.", min=1
        ),
    ] = None,
    as_json: Annotated[bool, as_json_option] = False,
) -> None:
    """Simulate a fleet: the real router and scheduler on a virtual clock, from a seed."""
    chosen = load(scenario)
    if policy:
        if policy != headrace and policy not in policies:
            raise InvalidRequest(
                f"There is no policy {policy!r}; there are {headrace}, {', '.join(policies)}."
            )
        chosen = msgspec.structs.replace(chosen, policy=policy)
    report = Simulation(chosen, seed, name=scenario).run(check_interval_events=check_every)
    if as_json:
        write_json(report)
    else:
        write_fields(lines(report))


def list_scenarios(as_json: Annotated[bool, as_json_option] = False) -> None:
    """Show the scenarios that come with headrace."""
    titles = [(name, load(name).title) for name in names()]
    if as_json:
        write_json([{"name": name, "title": title} for name, title in titles])
    else:
        write_table(("NAME", "TITLE"), titles, empty="There are no scenarios.")


def lines(report: Report) -> list[tuple[str, str]]:
    """A report for people."""
    return [
        ("scenario", f"{report.scenario}, seed {report.seed}, policy {report.policy}"),
        ("simulated", f"{report.simulated_s:,.1f} s in {report.events:,} events"),
        (
            "requests",
            f"{report.requests:,}: {report.finished:,} finished, {report.failed:,} failed, "
            f"{report.refused:,} refused; {report.retries:,} retries, {report.waited:,} waited",
        ),
        ("first token", latency_text(report.ttft_s)),
        ("between tokens", latency_text(report.itl_s)),
        ("whole answer", latency_text(report.e2e_s)),
        ("output", f"{report.output_tokens_per_s:,.0f} tokens/s"),
        (
            "goodput",
            f"{report.goodput_per_s:,.2f} requests/s, {report.objective_share:.1%} of all",
        ),
        ("prefix cache", f"{report.cached_share:.1%} of prompt tokens"),
        ("busiest replica", f"{report.imbalance:.2f} of the mean"),
        ("spent", f"${report.spent_usd:.6f}"),
    ]


def latency_text(latency: Latency) -> str:
    """Milliseconds: median, 90th and 99th percentile."""
    values = (latency.p50, latency.p90, latency.p99)
    return " / ".join(f"{value * 1000:,.1f}" for value in values) + " ms (p50 / p90 / p99)"

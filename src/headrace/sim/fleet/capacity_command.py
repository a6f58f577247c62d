"""`headrace capacity`: from a traffic and an objective to devices and dollars."""

import math
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError, InvalidRequest
from headrace.cli.output import format_count, note, write_json, write_table
from headrace.cli.plan import find_model
from headrace.control.planning.precision import find_precision
from headrace.sim.fleet.capacity import Need, alone, fewest, simulated
from headrace.sim.fleet.command import as_json_option
from headrace.sim.fleet.device_speeds import ReplicaDevice, derive
from headrace.sim.fleet.scenario import Demand, Scenario, load_demand

plot_inches = (7, 4.5)
own_device = "the scenario's"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capacity", help="How many devices a traffic needs for its objective.")(capacity)


def capacity(
    scenario: Annotated[
        str, typer.Argument(help="Traffic and objective: a name from `sim list`, or a .toml file.")
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(help="A known model, or a config.json; default: the scenario's device."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="A type and what it costs an hour, as H100=2.50; repeatable."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of the weights; default: as they are published.")
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of one sequence at most.")] = 8192,
    target: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of requests within the objective.")
    ] = 0.99,
    duration_s: Annotated[
        float | None, typer.Option(min=1.0, help="Of simulated arrivals; default: the scenario's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of every random number.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, as_json_option] = False,
) -> None:
    """Simulate growing fleets of each type until the objective is met; the cheapest comes first."""
    chosen = load_demand(scenario)
    if duration_s is not None:
        chosen = msgspec.structs.replace(chosen, duration_s=duration_s)
    check_proof(chosen, target)
    if (model is None) != (device is None):
        raise InvalidRequest("give both --model and --device, or neither", param="model")
    candidates: list[tuple[ReplicaDevice, float | None]]
    if model is None:
        if not isinstance(chosen, Scenario):
            raise InvalidRequest(
                f"{scenario} describes no device: give --model and --device, or add a [device]",
                param="model",
            )
        candidates = [(ReplicaDevice(own_device, 1, chosen.device), None)]
    else:
        shape = find_model(model)
        found = find_precision(precision or shape.native_precision)
        candidates = [
            (derive(shape, found, name, context), price)
            for name, price in map(priced, device or [])
        ]
    needs = [need(chosen, replica, price, target, seed) for replica, price in candidates]
    needs.sort(key=order)
    if plot is not None:
        draw(needs, chosen, target, plot)
    if as_json:
        write_json(needs)
        return
    write_table(
        (
            "DEVICE",
            ">A REPLICA",
            ">REPLICAS",
            ">DEVICES",
            ">$ AN HOUR",
            ">IN OBJECTIVE",
            ">TTFT P90",
        ),
        [row(each) for each in needs],
        empty="no device was named",
    )
    goal = chosen.objective
    note(
        f"objective: first token within {goal.ttft_s:g} s and {goal.tpot_s * 1000:g} ms a token, "
        f"for {target:.1%} of the requests; modelled devices, not measured ones"
    )


def check_proof(demand: Demand, target: float) -> None:
    """InvalidRequest if too few requests come to tell the target's share from a smaller one."""
    expected = sum(each.rate_per_s for each in demand.traffic) * demand.duration_s
    needed = 1.0 if target == 1.0 else 1.0 / (1.0 - target)
    if expected < 0.999 * needed:
        raise InvalidRequest(
            f"about {expected:,.0f} requests come in {demand.duration_s:g} s, and {target:.1%} can "
            f"be told of {needed:,.0f} or more: give a longer --duration-s",
            param="duration_s",
        )


def priced(text: str) -> tuple[str, float | None]:
    """`H100=2.50` or `H100`."""
    name, _, price = text.partition("=")
    try:
        usd = float(price) if price else None
    except ValueError:
        usd = math.nan
    if usd is not None and not 0 <= usd < math.inf:
        raise InvalidRequest(
            f"{text!r}: write a type and dollars an hour, as H100=2.50", param="device"
        )
    return name, usd


def need(
    demand: Demand, replica: ReplicaDevice, price: float | None, target: float, seed: int
) -> Need:
    """What a type comes to."""
    lone = alone(demand, replica.model, seed)
    if lone.objective_share < target:
        return Need(
            device=replica.name,
            devices_per_replica=replica.devices,
            replicas=None,
            devices=None,
            usd_per_hour=None,
            points=(lone,),
        )
    replicas, points = fewest(simulated(demand, replica.model, seed), target)
    devices = replicas * replica.devices
    return Need(
        device=replica.name,
        devices_per_replica=replica.devices,
        replicas=replicas,
        devices=devices,
        usd_per_hour=None if price is None else round(price * devices, 6),
        points=points,
    )


def order(each: Need) -> tuple[bool, bool, float]:
    """What meets the objective first, then what has a price, then the cheapest or the fewest."""
    price = each.usd_per_hour
    return each.devices is None, price is None, price if price is not None else each.devices or 0


def row(each: Need) -> tuple[str, ...]:
    """A type for people."""
    return (
        each.device,
        format_count(each.devices_per_replica),
        "too slow" if each.replicas is None else format_count(each.replicas),
        "-" if each.devices is None else format_count(each.devices),
        "-" if each.usd_per_hour is None else f"{each.usd_per_hour:,.2f}",
        f"{each.at.objective_share:.2%}",
        f"{each.at.ttft_p90_s * 1000:,.0f} ms",
    )


def legend_of(each: Need) -> str:
    """A type with what it comes to."""
    price = "" if each.usd_per_hour is None else f", ${each.usd_per_hour:,.2f} an hour"
    return f"{each.device}: {each.devices}{price}"


def draw(needs: list[Need], demand: Demand, target: float, path: Path) -> None:
    """The share within the objective against the devices, a line a type."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise ConfigurationError("--plot needs matplotlib: pip install 'headrace[plots]'") from None
    figure = Figure(figsize=plot_inches, layout="constrained")
    axes = figure.add_subplot()
    met = [each for each in needs if each.replicas is not None]
    for each in met:  # of the others only requests alone are known, which are no point of a curve
        counts = [point.replicas * each.devices_per_replica for point in each.points]
        shares = [point.objective_share * 100 for point in each.points]
        (line,) = axes.plot(counts, shares, marker="o", markersize=4, label=legend_of(each))
        enough = each.at.replicas * each.devices_per_replica, each.at.objective_share * 100
        axes.plot(*enough, marker="o", markersize=9, color=line.get_color())
    axes.axhline(target * 100, color="0.5", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("devices")
    axes.set_ylabel("requests within the objective, %")
    axes.set_ylim(0, 102)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_formatter("{x:g}")
    goal = demand.objective
    axes.set_title(
        f"{demand.title}: first token within {goal.ttft_s:g} s, {goal.tpot_s * 1000:g} ms a token",
        fontsize=10,
    )
    if met:
        axes.legend(title=f"fewest for {target:.1%}", fontsize=9)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} can't be drawn: {error}") from None

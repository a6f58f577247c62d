"""Which autoscaler needs the fewest device-hours for 99% of the requests within the objective?

    python bench/sim_autoscaling.py RESULTS.jsonl --seeds 1,2,3 --plot OUT.svg > table.md

Every rule is run with several settings of its one number, so that none is judged by a bad one.
`headrace` is run with nothing told, as it is by default (with its first guess, with none, with one
that is too low and with some that are too high), and with what a replica can do declared.
A run that RESULTS.jsonl already has is not repeated, so it may be interrupted and gone on with.
Simulated time only: the same results on any machine.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.sim.fleet.scenario import Scaling, load
from headrace.sim.fleet.simulation import Simulation

target = 0.99


class Setting(msgspec.Struct, frozen=True):
    """One rule with its number."""

    label: str
    rule: str
    knob: float | None
    tokens_per_s: float | None = None
    guess_factor: float = 1.0  # that the first guess of it is off by; 0: none


class Result(msgspec.Struct, frozen=True):
    """One run."""

    scenario: str
    setting: Setting
    seed: int
    share: float  # within the objective
    device_hours: float
    turns_per_hour: float


settings = (
    Setting("clairvoyant", "clairvoyant", 10_500.0),
    Setting("headrace, nothing told", "headrace", None),
    Setting("headrace, nothing told, no guess", "headrace", None, None, 0.0),
    Setting("headrace, nothing told, 1.6 times the guess", "headrace", None, None, 1.6),
    Setting("headrace, nothing told, 0.6 times the guess", "headrace", None, None, 0.6),
    Setting("headrace, nothing told, twice the guess", "headrace", None, None, 2.0),
    Setting("HPA", "hpa", 8.0),
    Setting("KPA", "kpa", 8.0),
    Setting("headrace, capacity told", "headrace", 0.95, 10_000.0),
    Setting("headrace, capacity told", "headrace", 0.95, 11_000.0),
    Setting("APA", "apa", 8.0),
    Setting("planner", "planner", 0.5),
    Setting("HPA", "hpa", 10.0),
    Setting("KPA", "kpa", 10.0),
    Setting("clairvoyant", "clairvoyant", 11_250.0),
    Setting("HPA", "hpa", 6.0),
    Setting("KPA", "kpa", 6.0),
    Setting("APA", "apa", 6.0),
    Setting("planner", "planner", 0.3),
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--scenarios", default="scaled-day")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    options.results.touch()
    results = [
        msgspec.json.decode(line, type=Result) for line in options.results.read_bytes().splitlines()
    ]
    known = {(result.scenario, result.setting, result.seed) for result in results}
    for name in options.scenarios.split(","):
        for seed in map(int, options.seeds.split(",")):
            for setting in settings:
                if (name, setting, seed) not in known:
                    results.append(run(name, setting, seed))
                    with options.results.open("ab") as file:
                        file.write(msgspec.json.encode(results[-1]) + b"\n")
    for name in options.scenarios.split(","):
        print(table(name, [result for result in results if result.scenario == name]))
    if options.plot:
        plot(results, options.scenarios.split(","), options.plot)


def run(name: str, setting: Setting, seed: int) -> Result:
    scenario = load(name)
    bounds = scenario.scaling
    assert bounds is not None
    fields = {
        "rule": setting.rule,
        "knob": setting.knob,
        "tokens_per_s": setting.tokens_per_s,
        "guess_factor": setting.guess_factor,
    }
    scaling = msgspec.convert({**msgspec.structs.asdict(bounds), **fields}, Scaling)
    report = Simulation(msgspec.structs.replace(scenario, scaling=scaling), seed).run()
    return Result(
        name,
        setting,
        seed,
        report.objective_share,
        report.device_hours,
        report.turns_per_hour,
    )


def table(name: str, results: Sequence[Result]) -> str:
    """A row a setting, over its seeds; ratios to the clairvoyant's cheapest that meets the goal."""
    rows: dict[Setting, list[Result]] = {}
    for result in results:
        rows.setdefault(result.setting, []).append(result)
    best = min(
        (
            statistics.fmean(r.device_hours for r in runs)
            for setting, runs in rows.items()
            if setting.rule == "clairvoyant" and statistics.fmean(r.share for r in runs) >= target
        ),
        default=None,
    )
    lines = [
        f"\n### {name}: {load(name).title}\n",
        "| rule | its number | seeds | in objective (range) | device-hours (range) | "
        "to the clairvoyant | turns an hour |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in sorted(
        rows, key=lambda each: (each.label, each.knob or 0, each.tokens_per_s or 0)
    ):
        shares = [result.share for result in rows[setting]]
        hours = [result.device_hours for result in rows[setting]]
        mean = statistics.fmean
        cells = (
            setting.label,
            number_of(setting),
            str(len(shares)),
            f"{mean(shares):.2%} ({min(shares):.2%} to {max(shares):.2%})",
            f"{mean(hours):.2f} ({min(hours):.2f} to {max(hours):.2f})",
            "-" if best is None else f"{mean(hours) / best:.2f}",
            f"{mean(result.turns_per_hour for result in rows[setting]):.1f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number_of(setting: Setting) -> str:
    """What the rule was told."""
    if setting.knob is None:
        return "-"
    declared = setting.tokens_per_s
    return f"{setting.knob:g}" + (f" of {declared:,.0f} tokens/s" if declared else "")


def plot(results: Sequence[Result], names: Sequence[str], path: Path) -> None:
    """What was missed against what it took; every run is a point."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- where a plot is wanted

    figure = Figure(figsize=(5.5 * len(names), 4.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for label in dict.fromkeys(setting.label for setting in settings):
            here = [r for r in results if r.scenario == name and r.setting.label == label]
            missed = [max(1e-4, 1 - result.share) for result in here]
            axes.scatter([result.device_hours for result in here], missed, s=18, label=label)
        axes.axhline(1 - target, color="0.5", linewidth=1, linestyle="--")
        axes.set(xlabel="device-hours", ylabel="requests outside the objective", yscale="log")
        axes.set_title(name, fontsize=10)
    figure.axes[0].legend(fontsize=7)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1:])

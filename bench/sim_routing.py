"""Which routing policy is best where: every policy on every scenario with several seeds.

    python bench/sim_routing.py [--seeds 3] [--scenarios chat,agents] > table.md

Writes the tables of docs/benchmarks/fleet.md: the mean over the seeds, and the range of the TTFT.
Simulated time only: the same command gives the same bytes on any machine.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

import msgspec

from headrace.sim.fleet.policies import headrace, policies
from headrace.sim.fleet.report import Report
from headrace.sim.fleet.scenario import load
from headrace.sim.fleet.simulation import Simulation

default_scenarios = (
    "chat,bursts,batch,agents,documents,shared-150,shared-83,"
    "sharegpt,azure-2024-chat,azure-2024-code"
)
columns = (
    "policy",
    "TTFT p50",
    "TTFT p90 (range)",
    "ITL p99",
    "output tok/s",
    "in objective",
    "cached",
    "imbalance",
    "not answered",
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scenarios", default=default_scenarios)
    parser.add_argument("--policies", default=",".join([headrace, *policies]))
    options = parser.parse_args(arguments)
    for name in options.scenarios.split(","):
        scenario = load(name)
        print(f"\n### {name}: {scenario.title}\n")
        print("| " + " | ".join(columns) + " |")
        print("|---" * len(columns) + "|")
        for policy in options.policies.split(","):
            chosen = msgspec.structs.replace(scenario, policy=policy)
            reports = [Simulation(chosen, seed).run() for seed in range(1, options.seeds + 1)]
            print("| " + " | ".join(row(policy, reports)) + " |", flush=True)


def row(policy: str, reports: Sequence[Report]) -> list[str]:
    p90s = [report.ttft_s.p90 for report in reports]
    unanswered = [(report.failed + report.refused) / report.requests for report in reports]
    mean = statistics.fmean
    return [
        policy,
        f"{mean(r.ttft_s.p50 for r in reports):.3f} s",
        f"{mean(p90s):.3f} s ({min(p90s):.3f} to {max(p90s):.3f})",
        f"{mean(r.itl_s.p99 for r in reports) * 1000:.0f} ms",
        f"{mean(r.output_tokens_per_s for r in reports):,.0f}",
        f"{mean(r.objective_share for r in reports):.1%}",
        f"{mean(r.cached_share for r in reports):.1%}",
        f"{mean(r.imbalance for r in reports):.2f}",
        f"{mean(unanswered):.1%}",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])

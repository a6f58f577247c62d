"""How many replicas a traffic needs for its objective: simulated, doubled, then halved.

A fleet of n replicas meets a target if this share of all requests had their first token and their
pace within the objective. More replicas never serve worse but for the noise of one seed, so the
search doubles n until it meets the target and then bisects; every fleet that was tried is a point
of the curve.
"""

from collections.abc import Callable

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.scenario import Demand, Scenario
from headrace.sim.fleet.simulation import Simulation

replicas_max = 16_384
lone_requests = 64


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet that was tried."""

    replicas: int
    objective_share: float
    ttft_p90_s: float
    ttft_p99_s: float
    output_tokens_per_s: float


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one type of device comes to."""

    device: str
    devices_per_replica: int
    replicas: int | None  # None: not even a request alone meets the objective often enough
    devices: int | None
    usd_per_hour: float | None  # None: no price was given
    points: tuple[Point, ...]  # by replicas; the curve

    @property
    def at(self) -> Point:
        """The fleet that meets the target; the one that came nearest where none does."""
        if self.replicas is None:
            return max(self.points, key=lambda point: point.objective_share)
        return next(point for point in self.points if point.replicas == self.replicas)


Try = Callable[[int], Point]


def fewest(attempt: Try, target: float) -> tuple[int, tuple[Point, ...]]:
    """The fewest replicas that meet the target, and all that was tried; InvalidRequest if none.

    Ask `alone` first: this tries ever larger fleets."""
    points: dict[int, Point] = {}

    def meets(replicas: int) -> bool:
        if replicas not in points:
            points[replicas] = attempt(replicas)
        return points[replicas].objective_share >= target

    high = 1
    while not meets(high):
        if high >= replicas_max:
            raise InvalidRequest(
                f"{replicas_max:,} replicas do not meet the target; take a faster device, another "
                "objective or less traffic",
                param="target",
            )
        high *= 2
    low = high // 2  # does not meet it, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        if meets(middle):
            high = middle
        else:
            low = middle
    return high, tuple(points[count] for count in sorted(points))


def simulated(demand: Demand, device: DeviceModel, seed: int) -> Try:
    """Tries fleets of a device under some traffic; a scenario's faults and scaling are left out."""

    def attempt(replicas: int) -> Point:
        chosen = Scenario(
            title=demand.title,
            duration_s=demand.duration_s,
            policy=demand.policy,
            fleet=msgspec.structs.replace(demand.fleet, deployments=1, replicas=replicas),
            device=device,
            traffic=demand.traffic,
            network=demand.network,
            objective=demand.objective,
        )
        report = Simulation(chosen, seed).run()
        return Point(
            replicas=replicas,
            objective_share=report.objective_share,
            ttft_p90_s=report.ttft_s.p90,
            ttft_p99_s=report.ttft_s.p99,
            output_tokens_per_s=report.output_tokens_per_s,
        )

    return attempt


def alone(demand: Demand, device: DeviceModel, seed: int) -> Point:
    """How requests fare that have a replica each: no fleet does better."""
    arrivals = sum(traffic.rate_per_s for traffic in demand.traffic) * demand.duration_s
    share = min(1.0, lone_requests / arrivals)
    traffic = [
        msgspec.structs.replace(each, rate_per_s=each.rate_per_s * share) for each in demand.traffic
    ]
    quiet = msgspec.structs.replace(demand, traffic=traffic)
    return simulated(quiet, device, seed)(lone_requests)

"""Who gets a place, who is ended for it, and who waits.

What runs stays where it is. A replica that finds no place may end running ones of lower priority:
all of them are taken away in thought, and put back from the highest priority down as long as the
new one still has a place, so that few are ended, and of the lowest priority. A gang ends whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.control.placement.cluster import Assignment, Node, Request
from headrace.control.placement.search import cluster_of, place

preemptions_max = 64  # replicas or gangs that are tried by ending others, in one round
victims_max = 256  # running ones that are considered for it


@dataclass(frozen=True, slots=True)
class Queued:
    """Replicas of a request that wait."""

    request_name: str
    replicas: tuple[str, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The outcome: new places, running replicas to end first, and the queue in its order."""

    assignments: tuple[Assignment, ...]
    preempted: tuple[Assignment, ...]
    queued: tuple[Queued, ...]


def schedule(
    nodes: Sequence[Node], running: Sequence[Assignment], requests: Sequence[Request]
) -> Schedule:
    """Place what can be placed; the same for any order of the arguments."""
    placed = place(cluster_of(nodes, running), requests)
    kept = sorted(running)
    preempted: list[Assignment] = []
    for unit in units_without_place(requests, placed)[:preemptions_max]:
        # A lower one that found its place in this very round gives way like one that runs.
        found = preempt(nodes, [*kept, *placed], [*kept, *placed], unit)
        if found is not None:
            ended, places = found
            preempted += [assignment for assignment in kept if assignment in ended]
            kept = [assignment for assignment in kept if assignment not in ended]
            placed = [assignment for assignment in placed if assignment not in ended]
            placed += places
    return Schedule(tuple(sorted(placed)), tuple(sorted(preempted)), queue(requests, placed))


def units_without_place(requests: Sequence[Request], placed: Sequence[Assignment]) -> list[Request]:
    """What has no place: gangs whole, other replicas each for itself, by priority and name."""
    has_place = {assignment.replica for assignment in placed}
    units: list[Request] = []
    for request in sorted(requests, key=lambda r: (-r.priority, r.name)):
        missing = tuple(name for name in request.replicas if name not in has_place)
        if request.is_gang and missing:
            units.append(request)
        elif not request.is_gang:
            units += [replace(request, replicas=(name,)) for name in missing]
    return units


def preempt(
    nodes: Sequence[Node],
    taken: Sequence[Assignment],
    running: Sequence[Assignment],
    unit: Request,
) -> tuple[list[Assignment], list[Assignment]] | None:
    """Whom to end for a unit and where it goes then; None if even that does not help."""
    lower = [assignment for assignment in running if assignment.priority < unit.priority]
    victims = victim_units(lower)[:victims_max]
    if not victims:
        return None
    ended = [assignment for group in victims for assignment in group]
    places = places_without(nodes, taken, ended, unit)
    if places is None:
        return None
    for group in reversed(victims):  # the highest priority first
        fewer = [assignment for assignment in ended if assignment not in group]
        still = places_without(nodes, taken, fewer, unit)
        if still is not None:
            ended, places = fewer, still
    return ended, places


def victim_units(running: Sequence[Assignment]) -> list[list[Assignment]]:
    """Running replicas by what ends together, the lowest priority first."""
    groups: dict[tuple[int, str], list[Assignment]] = {}
    for assignment in sorted(running):
        name = assignment.request_name if assignment.is_gang else assignment.replica
        groups.setdefault((assignment.priority, name), []).append(assignment)
    return [group for _, group in sorted(groups.items())]


def places_without(
    nodes: Sequence[Node],
    taken: Sequence[Assignment],
    ended: Sequence[Assignment],
    unit: Request,
) -> list[Assignment] | None:
    """Places for all of a unit once these have ended, or None."""
    rest = [assignment for assignment in taken if assignment not in ended]
    places = place(cluster_of(nodes, rest), [unit])
    return places if len(places) == len(unit.replicas) else None


def queue(requests: Sequence[Request], placed: Sequence[Assignment]) -> tuple[Queued, ...]:
    """What waits, in the order in which it will be tried."""
    has_place = {assignment.replica for assignment in placed}
    waiting = []
    for request in sorted(requests, key=lambda r: (-r.priority, r.name)):
        missing = tuple(sorted(name for name in request.replicas if name not in has_place))
        if missing:
            waiting.append(Queued(request.name, missing, request.priority))
    return tuple(waiting)

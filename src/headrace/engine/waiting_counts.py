"""Who waits, by why and by class, for /metrics; classes beyond the bounds are the outermost."""

from headrace.engine.scheduler import Scheduler

class_min = -4
class_max = 8


def waiting_by_reason(scheduler: Scheduler, arrival_count: int) -> dict[str, int]:
    """Counts by reason, as of the last step; `arrival_count` came since.

    Of those that were preempted none is deferred: they hold a place before the others."""
    waiting = tuple(scheduler.waiting)
    preempted = sum(sequence.preemption_count > 0 for sequence in waiting)
    deferred = min(scheduler.deferred_count, len(waiting) - preempted)
    capacity = len(waiting) - preempted - deferred + arrival_count
    return {"capacity": capacity, "deferred": deferred, "preempted": preempted}


def waiting_by_class(scheduler: Scheduler) -> dict[str, int]:
    """Counts by the class that each has aged to; the classes that nobody waits in are left out."""
    counts: dict[str, int] = {}
    for sequence in tuple(scheduler.waiting):
        name = str(min(max(sequence.priority, class_min), class_max))
        counts[name] = counts.get(name, 0) + 1
    return counts

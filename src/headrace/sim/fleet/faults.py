"""What breaks, when, and whom it hits: drawn from the seed, so a failing run can be replayed."""

import random

from headrace.sim.fleet.attempt import Replica
from headrace.sim.fleet.books import Books
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.gateway import SimGateway
from headrace.sim.fleet.replicas import Replicas
from headrace.sim.fleet.scenario import Fault
from headrace.sim.fleet.traffic import draw_some
from headrace.sim.fleet.wire import Wire

lasting = ("slow", "flap", "partition", "disk-stall")


def end_s(fault: Fault) -> float:
    """When it breaks nothing any more."""
    return fault.at_s + (fault.duration_s if fault.kind in lasting else 0.0)


class FaultInjector:
    """Turns faults into events."""

    def __init__(
        self,
        loop: Loop,
        replicas: Replicas,
        gateway: SimGateway,
        wire: Wire,
        *,
        books: Books | None,
        rng: random.Random,
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._gateway = gateway
        self._wire = wire
        self._books = books
        self._rng = rng

    def plan(self, fault: Fault) -> None:
        """Ask the loop for everything that a fault does."""
        if fault.kind == "clock-jump":
            self._loop.at(fault.at_s, self._loop.set_wall, fault.jump_s)
            return
        if fault.kind == "disk-stall":
            self._loop.at(fault.at_s, self._stall_disk, fault.at_s + fault.duration_s)
            return
        for replica in self._victims(fault):
            if fault.kind == "hang":
                self._loop.at(fault.at_s, self._gateway.hang, replica)
            elif fault.kind == "slow":
                self._loop.at(fault.at_s, self._slow, (replica, fault.factor))
                self._loop.at(fault.at_s + fault.duration_s, self._slow, (replica, 1.0))
            elif fault.kind == "partition":
                self._loop.at(fault.at_s, self._wire.cut, replica)
                self._loop.at(fault.at_s + fault.duration_s, self._wire.heal, replica)
            elif fault.kind == "flap":
                at_s = fault.at_s
                while at_s < fault.at_s + fault.duration_s:
                    self._loop.at(at_s, self._replicas.crash, replica)
                    at_s += fault.period_s
            else:
                self._loop.at(fault.at_s, self._replicas.crash, replica)

    def _victims(self, fault: Fault) -> list[Replica]:
        replicas = self._replicas.all
        if fault.kind in ("zone-loss", "partition"):
            zones = sorted({replica.zone for replica in replicas})
            lost = {zones[index] for index in draw_some(self._rng, len(zones), fault.replicas)}
            return [replica for replica in replicas if replica.zone in lost]
        return [replicas[index] for index in draw_some(self._rng, len(replicas), fault.replicas)]

    def _stall_disk(self, until_s: float) -> None:
        if self._books is not None:
            self._books.stall_disk(until_s)

    def _slow(self, change: tuple[Replica, float]) -> None:
        replica, factor = change
        if replica.is_up:
            replica.engine.slow_down(factor)

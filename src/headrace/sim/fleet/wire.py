"""The network between a simulated gateway and its replicas, and what can become of a message there.

    gateway --send--> ~ latency ~> engine --first token, end--> ~ latency ~> gateway
                 |                  |                      |
                 lost, doubled      refused, turned away   cut: held until it heals

A cut carries nothing either way; what an engine said meanwhile comes when it heals, unless the
gateway has given the stream up by then.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from headrace.base.errors import HeadraceError, RateLimited
from headrace.sim.fleet.attempt import Attempt, Replica
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.scenario import NetworkSpec


class Hearer(Protocol):
    """A gateway: what reaches it of an attempt. It may have given that up already."""

    def accepted(self, attempt: Attempt) -> None:
        """The engine took it; told only where that can change something."""
        ...

    def first_output(self, attempt: Attempt) -> None:
        """Its first token came."""
        ...

    def completed(self, attempt: Attempt) -> None:
        """Its last token came."""
        ...

    def failed(self, attempt: Attempt, *, is_down: bool) -> None:
        """The connection could not be made, or broke; `is_down`: nobody is there."""
        ...

    def turned_away(self, attempt: Attempt) -> None:
        """The engine's own queue is full."""
        ...

    def not_servable(self, attempt: Attempt) -> None:
        """The engine says that the request is wrong."""
        ...


class Wire:
    """Carries attempts to engines, and to the gateway what these say: it is their listener."""

    def __init__(self, loop: Loop, network: NetworkSpec, rng: random.Random) -> None:
        self._after = loop.after
        self._network = network
        self._latency_s = network.latency_s
        self._lost_share = network.lost_share
        self._duplicate_share = network.duplicate_share
        self._rng = rng
        self._held: dict[int, list[tuple[Callable[[Attempt], None], Attempt]]] = {}  # by a cut

    def join(self, gateway: Hearer) -> None:
        """Who hears what comes from the engines."""
        self._gateway = gateway
        # Bound once: each is asked for with every request.
        self._on_reached = self._reach_engine
        self._on_first_output = gateway.first_output
        self._on_completed = gateway.completed

    def send(self, attempt: Attempt) -> None:
        """The gateway sends a request to its replica."""
        replica = attempt.replica
        assert replica is not None
        if replica.is_cut or (self._lost_share and self._rng.random() < self._lost_share):
            self._after(self._network.connect_timeout_s, self._timed_out, attempt)
            return
        self._after(self._latency_s, self._on_reached, attempt)
        if self._duplicate_share and self._rng.random() < self._duplicate_share:
            self._after(2 * self._latency_s, self._reach_engine_again, attempt)

    def _reach_engine(self, attempt: Attempt) -> None:
        replica, latency_s = attempt.replica, self._latency_s
        assert replica is not None
        if replica.is_cut:
            self._after(self._network.connect_timeout_s, self._timed_out, attempt)
            return
        if not replica.is_up:
            self._after(latency_s, self._refused, attempt)
            return
        if not replica.is_hung:
            try:
                replica.engine.submit(attempt)
            except RateLimited:
                self._after(latency_s, self._gateway.turned_away, attempt)
                return
            except HeadraceError:
                self._after(latency_s, self._gateway.not_servable, attempt)
                return
        replica.running[attempt] = None
        lease = attempt.lease
        if lease is not None and lease.is_awaited:
            self._after(latency_s, self._gateway.accepted, attempt)
        if replica.is_hung:
            self._after(self._network.stall_timeout_s, self._stalled, attempt)

    def _reach_engine_again(self, attempt: Attempt) -> None:
        """The same request a second time: an engine refuses an id that runs."""
        replica = attempt.replica
        assert replica is not None
        if replica.is_up and not replica.is_hung and not replica.is_cut:
            with suppress(HeadraceError):
                replica.engine.submit(attempt)

    def first_token(self, attempt: Attempt) -> None:
        """An engine's event: the prompt's work is done."""
        replica = attempt.replica
        assert replica is not None
        replica.worked_tokens += attempt.request.prompt_tokens - attempt.cached_tokens
        if replica.is_cut:
            self._hold(self._on_first_output, attempt)
        else:
            self._after(self._latency_s, self._on_first_output, attempt)

    def finished(self, attempt: Attempt) -> None:
        """An engine's event: the answer's work is done."""
        replica = attempt.replica
        assert replica is not None
        replica.worked_tokens += attempt.request.output_tokens
        if replica.is_cut:
            self._hold(self._on_completed, attempt)
        else:
            replica.running.pop(attempt, None)
            self._after(self._latency_s, self._on_completed, attempt)

    def watch_silent(self, replica: Replica) -> None:
        """A fault: its engine says nothing any more; the streams in it stall."""
        for attempt in replica.running:
            self._after(self._network.stall_timeout_s, self._stalled, attempt)

    def cut(self, replica: Replica) -> None:
        """A fault: nothing reaches the replica or comes from it; streams wait, or stall."""
        replica.is_cut = True
        for attempt in replica.running:
            self._after(self._network.stall_timeout_s, self._stalled_by_cut, attempt)

    def heal(self, replica: Replica) -> None:
        """The network is back; what was sent meanwhile is sent again."""
        replica.is_cut = False
        for receive, attempt in self._held.pop(replica.index, ()):
            if receive is self._on_completed:
                replica.running.pop(attempt, None)
            self._after(self._latency_s, receive, attempt)

    def break_connection(self, attempt: Attempt) -> None:
        """The process at the other end died."""
        replica = attempt.replica
        assert replica is not None
        if replica.is_cut:
            self._hold(self._broken, attempt)
        else:
            self._after(self._latency_s, self._broken, attempt)

    def _hold(self, receive: Callable[[Attempt], None], attempt: Attempt) -> None:
        """An event that a cut keeps from the gateway."""
        replica = attempt.replica
        assert replica is not None
        self._held.setdefault(replica.index, []).append((receive, attempt))

    def _timed_out(self, attempt: Attempt) -> None:
        """The message never came through: it says nothing of whether anybody lives there."""
        self._gateway.failed(attempt, is_down=False)

    def _refused(self, attempt: Attempt) -> None:
        """Nobody listens there."""
        assert attempt.replica is not None
        self._gateway.failed(attempt, is_down=not attempt.replica.is_up)

    def _broken(self, attempt: Attempt) -> None:
        """The connection broke under a running request."""
        assert attempt.replica is not None
        self._gateway.failed(attempt, is_down=not attempt.replica.is_up)

    def _stalled_by_cut(self, attempt: Attempt) -> None:
        assert attempt.replica is not None
        if attempt.replica.is_cut:
            self._stalled(attempt)

    def _stalled(self, attempt: Attempt) -> None:
        """Nothing came for too long."""
        if attempt.lease is not None:
            replica = attempt.replica
            assert replica is not None
            replica.running.pop(attempt, None)
            replica.engine.abort(attempt)
            self._gateway.failed(attempt, is_down=False)

"""The loop that listens to gateways and looks at what scales; it ends with the control plane."""

import asyncio
import logging
from collections.abc import Callable

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.loops import pause_unless
from headrace.control.gateway_poll import GatewayPoll, poll_interval_s
from headrace.control.scaler import Scaler

look_interval_s = 2.0  # a request that wakes a deployment waits at most so much longer

logger = logging.getLogger(__name__)


class ScaleLoop:
    """Asks gateways each second, and lets the scaler look every other."""

    def __init__(
        self, poll: GatewayPoll, scaler: Scaler, clock: Clock, leads: Callable[[], bool]
    ) -> None:
        """`leads` says whether this control plane may change anything."""
        self._poll = poll
        self._scaler = scaler
        self._clock = clock
        self._leads = leads

    async def run(self, stop: asyncio.Event) -> None:
        """Go on until told to stop."""
        look_due_s = 0.0
        away = Absence(logger, self._clock, "scaling waits for the store", "scaling goes on")
        while not stop.is_set():
            try:
                await self._poll.ask_all()
                now_s = self._clock.monotonic_s()
                if now_s >= look_due_s and self._leads():
                    look_due_s = now_s + look_interval_s
                    await asyncio.to_thread(self._scaler.look)
                    away.end()
            except HeadraceError as error:
                away.note(error)
            await pause_unless(stop, poll_interval_s)

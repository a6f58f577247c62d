"""Passive health of one endpoint: failures eject it for a while, one probe lets it back in.

    CLOSED --failure--> OPEN --time passes, next request--> HALF_OPEN --success--> CLOSED
                         ^-------------------failure------------'

The n-th ejection in a row lasts `ejection_s_min * 2**(n - 1)`, at most `ejection_s_max`. A request
that began before the ejection says nothing about the endpoint of now, so its end changes nothing:
otherwise one crash under 30 requests would count 30 times. One that went to the ejected endpoint
because nothing else was left (decision 0031) readmits it when it is answered; that it fails too is
no news.

An endpoint that answers that it failed on a request is there: one such answer says something of the
request, and only `failed_in_row_max` of them without a good one between eject it.
"""

from enum import StrEnum

ejection_s_min = 0.5  # a restarted process is back sooner than that, or not for long
ejection_s_max = 30.0
failed_in_row_max = 5  # Envoy's default for the same
doublings_max = 8  # beyond that the ejection is at its maximum anyway


class BreakerState(StrEnum):
    """Whether an endpoint gets requests."""

    CLOSED = "closed"  # all of them
    OPEN = "open"  # none until its time is over, then one
    HALF_OPEN = "half_open"  # none but the one that probes


closed = BreakerState.CLOSED  # asked with every request, and found sooner than an enum's member


class Breaker:
    """The state above, for one endpoint."""

    __slots__ = ("_ejected_s", "_ejections", "_failed_in_row", "_open_until_s", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self._ejections = 0  # in a row
        self._ejected_s = 0.0  # when it was last
        self._open_until_s = 0.0
        self._failed_in_row = 0  # requests of which it said so itself

    def permits(self, now_s: float) -> bool:
        """Whether a request may go there now."""
        if self.state is closed:
            return True
        return self.state is BreakerState.OPEN and now_s >= self._open_until_s

    def begin(self, now_s: float) -> bool:
        """A request goes there; True if it is the probe, whose verdict is awaited.

        False for one that goes there although the endpoint is ejected."""
        if self.state is closed or not self.permits(now_s):
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def succeed(self, began_s: float, *, is_probe: bool) -> None:
        """A request that began then got a good answer, whole."""
        self._failed_in_row = 0
        self.answer(began_s, is_probe=is_probe)

    def fail_request(self, began_s: float, now_s: float, *, is_probe: bool) -> bool:
        """The endpoint answered that it failed on one request; True if that was one too many."""
        self._failed_in_row += 1
        if self._failed_in_row >= failed_in_row_max:
            self.fail(now_s, is_probe=is_probe)
            return True
        self.answer(began_s, is_probe=is_probe)
        return False

    def answer(self, began_s: float, *, is_probe: bool) -> None:
        """A request that began then is being answered, or was refused for what it is."""
        if is_probe or (self.state is not closed and began_s > self._ejected_s):
            self.state = BreakerState.CLOSED
            self._ejections = 0

    def fail(self, now_s: float, *, is_probe: bool) -> None:
        """A request could not connect, or its connection broke."""
        if not is_probe and self.state is not closed:
            return
        duration_s = min(ejection_s_max, ejection_s_min * 2 ** min(self._ejections, doublings_max))
        self._ejections += 1
        self._ejected_s = now_s
        self._open_until_s = now_s + duration_s
        self.state = BreakerState.OPEN

    def abandon_probe(self) -> None:
        """The probe ended without a verdict, as when its client went away; the next one decides.

        Unless another request was answered meanwhile, which readmitted the endpoint."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN

    def retry_after_s(self, now_s: float) -> float:
        """How long from now until a request may go there; 0 if one may now."""
        return 0.0 if self.state is closed else max(0.0, self._open_until_s - now_s)

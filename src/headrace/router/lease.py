"""One request's load on one endpoint: taken when it is routed, given back whatever happens."""

from dataclasses import dataclass

from headrace.router.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Work:
    """What a request is expected to cost an endpoint, in tokens."""

    prefill_tokens: int
    decode_tokens: int


class Lease:
    """Counts a request on an endpoint until `release`; each method may be called again."""

    __slots__ = ("_held_tokens", "_is_probe", "_prefill_tokens", "_released", "endpoint")

    def __init__(self, endpoint: Endpoint, work: Work, now_s: float) -> None:
        """Count the request; the endpoint must be available."""
        assert work.prefill_tokens >= 0
        assert work.decode_tokens >= 0
        self.endpoint = endpoint
        self._is_probe = endpoint.breaker.begin(now_s)
        self._prefill_tokens = work.prefill_tokens
        self._held_tokens = work.prefill_tokens + work.decode_tokens
        self._released = False
        endpoint.in_flight_tokens += self._held_tokens
        endpoint.in_flight_requests += 1

    @property
    def held_tokens(self) -> int:
        """What it counts for now."""
        return self._held_tokens

    def prefilled(self) -> None:
        """The first token came, so the prompt is no work any more."""
        self._give_back(self._prefill_tokens)
        self._prefill_tokens = 0

    def succeed(self) -> None:
        """The endpoint answered; call it early, so that a long stream is no long probe."""
        self.endpoint.breaker.succeed(is_probe=self._is_probe)
        self._is_probe = False

    def fail(self, now_s: float) -> None:
        """The endpoint could not be reached or broke the connection: eject it."""
        self.endpoint.breaker.fail(now_s, is_probe=self._is_probe)
        self._is_probe = False

    def release(self) -> None:
        """The request is no longer there."""
        if self._released:
            return
        self._released = True
        if self._is_probe:
            self.endpoint.breaker.abandon_probe()
            self._is_probe = False
        self._prefill_tokens = 0
        self._give_back(self._held_tokens)
        self.endpoint.in_flight_requests -= 1

    def _give_back(self, tokens: int) -> None:
        self._held_tokens -= tokens
        self.endpoint.in_flight_tokens -= tokens
        assert self.endpoint.in_flight_tokens >= 0

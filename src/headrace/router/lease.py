"""One request's load on one endpoint: taken when it is routed, given back whatever happens."""

import msgspec

from headrace.router.breaker import closed
from headrace.router.endpoint import Endpoint
from headrace.router.prompt_prefix import PromptPrefix, no_prefix


class Work(msgspec.Struct, frozen=True, gc=False):
    """A request as far as its replica matters: what it costs, and what makes one suit it."""

    prefill_tokens: int
    decode_tokens: int
    prefix: PromptPrefix = no_prefix
    session: str = ""  # requests of one session prefer one endpoint; empty: none
    adapter: str = ""  # LoRA; endpoints that were sent it lately have it loaded
    request_id: str = ""  # under which the choice can be explained


class Lease:
    """Counts a request on an endpoint until `release`; each method may be called again."""

    __slots__ = (
        "_fresh_tokens",
        "_held_tokens",
        "_is_probe",
        "_prefill_tokens",
        "_released",
        "_taken_s",
        "endpoint",
        "predicted_tokens",
        "told_tokens",
        "turn_tokens",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        work: Work,
        now_s: float,
        *,
        predicted_tokens: int = 0,
        told_tokens: int | None = None,
    ) -> None:
        """Count the request.

        `predicted_tokens` of the prompt should be in its cache, and cost nothing; `told_tokens` is
        the same in the engine's own tokens, where it tells what it holds."""
        prompt_tokens = work.prefill_tokens
        assert prompt_tokens >= 0
        assert work.decode_tokens >= 0
        predicted = predicted_tokens if predicted_tokens < prompt_tokens else prompt_tokens
        self.endpoint = endpoint
        self.predicted_tokens = predicted
        self.told_tokens = told_tokens
        self.turn_tokens = 0  # that its tenant was charged for its turn in a queue; 0: it had none
        self._taken_s = now_s
        breaker = endpoint.breaker
        self._is_probe = breaker.state is not closed and breaker.begin(now_s)
        self._fresh_tokens = self._prefill_tokens = fresh = prompt_tokens - predicted
        self._held_tokens = held = fresh + work.decode_tokens
        self._released = False
        endpoint.in_flight_tokens += held
        endpoint.in_flight_requests += 1
        endpoint.leases_total += 1
        endpoint.queued_prefill_tokens += fresh
        endpoint.held_fresh_tokens += fresh
        endpoint.follow()

    @property
    def held_tokens(self) -> int:
        """What it counts for now."""
        return self._held_tokens

    def prefilled(self, now_s: float | None) -> None:
        """The first token came, so the prompt is no work any more.

        None: it came some time ago, as with an answer that comes whole; nothing is measured."""
        endpoint, tokens = self.endpoint, self._prefill_tokens
        if tokens:
            if now_s is not None:
                began_s = max(self._taken_s, endpoint.first_token_s)
                endpoint.rate.observe(tokens, now_s - began_s)
                endpoint.first_token_s = now_s
            self._end_prefill()
        endpoint.follow_queue()

    @property
    def is_awaited(self) -> bool:
        """Whether its answer could still change anything, because the endpoint was not well."""
        return self._is_probe or self.endpoint.breaker.state is not closed

    def answered(self) -> None:
        """The endpoint answers; call it early, so that a long stream is no long probe."""
        self.endpoint.breaker.answer(self._taken_s, is_probe=self._is_probe)
        self._is_probe = False
        self.endpoint.follow_health()

    def succeed(self) -> None:
        """The endpoint answered well, to the end."""
        self.endpoint.breaker.succeed(self._taken_s, is_probe=self._is_probe)
        self._is_probe = False
        self.endpoint.follow_health()

    def fail_request(self, now_s: float) -> bool:
        """The endpoint answered that it failed on this request; True if so many did that it is
        ejected."""
        breaker = self.endpoint.breaker
        is_ejected = breaker.fail_request(self._taken_s, now_s, is_probe=self._is_probe)
        self._is_probe = False
        self.endpoint.follow_health()
        return is_ejected

    def fail(self, now_s: float) -> None:
        """The endpoint could not be reached or broke the connection: eject it."""
        self.endpoint.breaker.fail(now_s, is_probe=self._is_probe)
        self._is_probe = False
        self.endpoint.follow_health()

    def release(self) -> None:
        """The request is no longer there."""
        if self._released:
            return
        self._released = True
        endpoint = self.endpoint
        if self._is_probe:
            endpoint.breaker.abandon_probe()
            self._is_probe = False
        if self._prefill_tokens:
            self._end_prefill()
        endpoint.in_flight_tokens -= self._held_tokens
        self._held_tokens = 0
        endpoint.in_flight_requests -= 1
        endpoint.held_fresh_tokens -= self._fresh_tokens
        assert endpoint.in_flight_tokens >= 0
        assert endpoint.held_fresh_tokens >= 0
        endpoint.follow()

    def _end_prefill(self) -> None:
        endpoint, tokens = self.endpoint, self._prefill_tokens
        self._prefill_tokens = 0
        self._held_tokens -= tokens
        endpoint.in_flight_tokens -= tokens
        endpoint.queued_prefill_tokens -= tokens
        assert endpoint.in_flight_tokens >= 0
        assert endpoint.queued_prefill_tokens >= 0

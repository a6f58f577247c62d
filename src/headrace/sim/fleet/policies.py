"""How else a router could choose: the policies that ours is compared with, each in a few lines.

They see what a gateway sees: its own leases, the health of an endpoint, the declared limit of an
answer but not its length; the `-precise` ones also what the engine's cache really holds. None
limits an endpoint or lets a request wait: all waiting is in the engines. Sources: least requests
and two choices are folklore (Mitzenmacher 2001); `cache-aware` is sglang's router, its threshold
and imbalance rule; `scored` is llm-d's sum of a queue, a KV and a prefix score with its default
weights 2, 2, 3; `least-work` is the cost in seconds of docs/concepts/simulator.md.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from headrace.router.endpoint import Endpoint
from headrace.router.picker import least_loaded
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.prefix_index import PrefixIndex
from headrace.sim.fleet.request import Attempt, SimRequest, prefix_keys

cache_threshold = 0.5  # share of a prompt that must match, sglang's default
imbalance_absolute, imbalance_relative = 32, 1.1  # sglang's defaults
queue_weight, kv_weight, prefix_weight = 2.0, 2.0, 3.0  # llm-d's defaults
kv_pressure_s = 0.15  # of k / (1 - k), as in sglang's least_load
kv_share_max = 0.95  # beyond it the barrier would be infinite
harm_weight = 6.0  # of 2, 6 and 20 the best over all shipped scenarios (docs/benchmarks/fleet.md)
output_tokens_prior = 256.0  # until answers were seen
output_memory = 0.02  # weight of the newest answer in the mean


@dataclass(slots=True)
class Load:
    """What this router has put on one endpoint, by kind of work."""

    index: PrefixIndex
    prefill_tokens: int = 0  # sent and not computed yet, without what the cache should have
    decoding_requests: int = 0
    context_tokens: int = 0  # KV that its requests hold
    fresh_tokens: int = 0  # of them, those that it did not share when it was sent
    held: dict[Attempt, int] = field(default_factory=dict)  # prefill tokens of each, while counted
    fresh: dict[Attempt, int] = field(default_factory=dict)


class Policy:
    """Chooses an endpoint; `routed`, `prefilled` and `ended` keep its books."""

    def __init__(
        self,
        rng: random.Random,
        device: DeviceModel,
        known_tokens: Callable[[Endpoint, SimRequest], int],
    ) -> None:
        self.rng = rng
        self.device = device
        self.known_tokens = known_tokens
        self.loads: dict[str, Load] = {}
        self.output_tokens_mean = output_tokens_prior

    needs_books = False

    def choose(
        self,
        endpoints: Sequence[Endpoint],
        request: SimRequest,
        now_s: float,
        excluded: Collection[str],
    ) -> Endpoint | None:
        """An available endpoint, or None if there is none."""
        able = [e for e in endpoints if e.is_available(now_s) and e.spec.id not in excluded]
        return self.pick(able, request) if able else None

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these, of which there is at least one."""
        raise NotImplementedError

    def load(self, endpoint: Endpoint) -> Load:
        """The books of an endpoint."""
        found = self.loads.get(endpoint.spec.id)
        if found is None:
            found = self.loads[endpoint.spec.id] = Load(PrefixIndex(self.device.kv_tokens))
        return found

    def match(self, endpoint: Endpoint, request: SimRequest) -> int:
        """Tokens of the prompt that the endpoint should have."""
        keys = prefix_keys(request.segments, request.tenant)
        return self.load(endpoint).index.match(keys, request.segments)

    def routed(self, endpoint: Endpoint, attempt: Attempt) -> None:
        """A request goes there."""
        if not self.needs_books:
            return
        request, load = attempt.request, self.load(endpoint)
        keys = prefix_keys(request.segments, request.tenant)
        fresh = request.prompt_tokens - load.index.match(keys, request.segments)
        load.index.insert(keys, request.segments)
        load.held[attempt] = load.fresh[attempt] = fresh
        load.fresh_tokens += fresh
        load.prefill_tokens += fresh
        load.context_tokens += request.prompt_tokens

    def prefilled(self, endpoint: Endpoint, attempt: Attempt) -> None:
        """Its first token came."""
        if self.needs_books:
            load = self.load(endpoint)
            load.prefill_tokens -= load.held[attempt]
            load.held[attempt] = 0
            load.decoding_requests += 1

    def ended(self, endpoint: Endpoint, attempt: Attempt) -> None:
        """It is no longer there."""
        if not self.needs_books:
            return
        load = self.load(endpoint)
        load.prefill_tokens -= load.held.pop(attempt)
        load.fresh_tokens -= load.fresh.pop(attempt)
        load.decoding_requests -= attempt.has_output
        load.context_tokens -= attempt.request.prompt_tokens
        if attempt.produced_tokens:
            step = attempt.produced_tokens - self.output_tokens_mean
            self.output_tokens_mean += output_memory * step

    def least(self, able: Sequence[Endpoint], cost: Callable[[Endpoint], float]) -> Endpoint:
        """The endpoint of least cost, ties at random."""
        costs = [cost(endpoint) for endpoint in able]
        least = min(costs)
        ties = [e for e, value in zip(able, costs, strict=True) if value == least]
        return ties[0] if len(ties) == 1 else self.rng.choice(ties)


class RandomChoice(Policy):
    """Any of them."""

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        return self.rng.choice(able)


class RoundRobin(Policy):
    """Each in turn, by deployment."""

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        turn = self.turns.get(request.deployment, 0)
        self.turns[request.deployment] = turn + 1
        return able[turn % len(able)]

    def __init__(
        self,
        rng: random.Random,
        device: DeviceModel,
        known_tokens: Callable[[Endpoint, SimRequest], int],
    ) -> None:
        super().__init__(rng, device, known_tokens)
        self.turns: dict[int, int] = {}


class LeastRequests(Policy):
    """The one with the fewest requests of ours."""

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        return self.least(able, lambda endpoint: endpoint.in_flight_requests)


class TwoChoices(Policy):
    """The less loaded of two that were drawn."""

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        pair = self.rng.sample(able, 2) if len(able) > 1 else able
        return min(pair, key=lambda endpoint: endpoint.in_flight_requests)


class LeastTokens(Policy):
    """Our picker's rule, without the limits and the queue around it."""

    def choose(
        self,
        endpoints: Sequence[Endpoint],
        request: SimRequest,
        now_s: float,
        excluded: Collection[str],
    ) -> Endpoint | None:
        """The real `least_loaded`."""
        return least_loaded(endpoints, now_s, self.rng, excluded, over_capacity=True)


class PrefixOnly(Policy):
    """The one that was sent the longest prefix before, whatever its load."""

    needs_books = True

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        return self.least(able, lambda e: -self.match(e, request))


class CacheAware(Policy):
    """The one with the prefix, unless it matches too little or the fleet is out of balance."""

    needs_books = True

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        counts = [endpoint.in_flight_requests for endpoint in able]
        least, most = min(counts), max(counts)
        is_balanced = most - least <= imbalance_absolute or most <= imbalance_relative * least
        if is_balanced:
            best = self.least(able, lambda e: -self.match(e, request))
            if self.match(best, request) > cache_threshold * request.prompt_tokens:
                return best
        return self.least(able, lambda endpoint: endpoint.in_flight_requests)


class Scored(Policy):
    """The highest weighted sum of scores between 0 and 1."""

    needs_books = True

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        queues = [load.prefill_tokens for load in map(self.load, able)]
        least, most = min(queues), max(queues)

        def score(endpoint: Endpoint) -> float:
            load = self.load(endpoint)
            queue = (most - load.prefill_tokens) / (most - least) if most > least else 1.0
            kv = 1.0 - min(1.0, load.context_tokens / self.device.kv_tokens)
            prefix = self.match(endpoint, request) / request.prompt_tokens
            return queue_weight * queue + kv_weight * kv + prefix_weight * prefix

        return self.least(able, lambda endpoint: -score(endpoint))


class LeastWork(Policy):
    """The least expected seconds: what is queued, what is new of this prompt, what decodes."""

    needs_books = True

    def pick(self, able: Sequence[Endpoint], request: SimRequest) -> Endpoint:
        """One of these."""
        return self.least(able, lambda endpoint: self.cost_s(endpoint, request))

    def cost_s(self, endpoint: Endpoint, request: SimRequest) -> float:
        """Seconds until the first token, and what each later one waits for the others."""
        load, device = self.load(endpoint), self.device
        fresh = request.prompt_tokens - self.matched(endpoint, request)
        prefill_s = (load.prefill_tokens + fresh) / device.prefill_tokens_per_s
        mine = min(self.output_tokens_mean, float(request.max_tokens))
        per_step_s = (
            len(load.held) * (device.sequence_s + device.row_s * (not device.is_roofline))
            + load.context_tokens * device.context_token_s
        )
        held = load.context_tokens + len(load.held) * self.output_tokens_mean / 2
        share = min(kv_share_max, (held + request.prompt_tokens) / device.kv_tokens)
        return prefill_s + mine * per_step_s + kv_pressure_s * share / (1 - share)

    def matched(self, endpoint: Endpoint, request: SimRequest) -> int:
        """Tokens that need not be computed."""
        return self.match(endpoint, request)


class LeastWorkBlind(LeastWork):
    """The same cost without any credit for prefixes."""

    def matched(self, endpoint: Endpoint, request: SimRequest) -> int:
        """None."""
        return 0


class LeastHarm(LeastWork):
    """What is queued, and the new tokens of this prompt at a multiple: they delay everybody there.

    `least-work` asks what the request itself waits, and so trades a prefix of 6,000 tokens for a
    slightly emptier replica; computing it anew holds up all who decode there, and evicts others'
    prefixes. The multiple stands for both; decoding counts only as room taken in the KV pool."""

    def cost_s(self, endpoint: Endpoint, request: SimRequest) -> float:
        """Seconds, of which the fresh ones count `harm_weight` times."""
        load, device = self.load(endpoint), self.device
        fresh = request.prompt_tokens - self.matched(endpoint, request)
        held = load.fresh_tokens + len(load.held) * self.output_tokens_mean / 2
        share = min(kv_share_max, (held + fresh) / device.kv_tokens)
        prefill_s = (load.prefill_tokens + harm_weight * fresh) / device.prefill_tokens_per_s
        return prefill_s + kv_pressure_s * share / (1 - share)


class LeastHarmPrecise(LeastHarm):
    """The same, told by the engines themselves what their caches hold."""

    def matched(self, endpoint: Endpoint, request: SimRequest) -> int:
        """What the engine says."""
        return self.known_tokens(endpoint, request)


class LeastWorkPrecise(LeastWork):
    """The same cost, told by the engines themselves what their caches hold."""

    def matched(self, endpoint: Endpoint, request: SimRequest) -> int:
        """What the engine says."""
        return self.known_tokens(endpoint, request)


headrace = "headrace"  # the real picker, limits and fair queue; not in the table below
policies: dict[str, type[Policy]] = {
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "two-choices": TwoChoices,
    "least-tokens": LeastTokens,
    "prefix-only": PrefixOnly,
    "cache-aware": CacheAware,
    "scored": Scored,
    "least-work-blind": LeastWorkBlind,
    "least-work": LeastWork,
    "least-work-precise": LeastWorkPrecise,
    "least-harm": LeastHarm,
    "least-harm-precise": LeastHarmPrecise,
}

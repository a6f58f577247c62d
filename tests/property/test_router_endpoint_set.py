"""Whatever happens to the fleet and to its requests, the router's counts are the leases' sums."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.base.errors import Unavailable
from headrace.router.breaker import BreakerState
from headrace.router.capacity import standing_s
from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker, Saturated
from headrace.router.policy import LeastTokens

replica_ids = [f"rep_{number}" for number in range(5)]
specs = st.builds(
    EndpointSpec,
    id=st.sampled_from(replica_ids),
    pool=st.sampled_from(["ver_1", "ver_2"]),
    address=st.just("http://127.0.0.1"),
    accepts_requests=st.booleans(),
    engine_key=st.sampled_from(["launch 1", "launch 2"]),
)
tokens = st.integers(0, 10_000)


class RouterMachine(RuleBasedStateMachine):
    """Random updates, picks, verdicts and releases."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.endpoints = EndpointSet()
        self.picker = Picker(self.endpoints, random.Random(3), LeastTokens())
        self.leases: list[Lease] = []
        self.released: list[Lease] = []

    @rule(new_specs=st.lists(specs, max_size=8))
    def fleet_changes(self, new_specs: list[EndpointSpec]) -> None:
        self.endpoints.update(new_specs)
        assert {endpoint.spec.id for endpoint in self.endpoints} == {s.id for s in new_specs}

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        prefill=tokens,
        decode=tokens,
        excluded=st.sets(st.sampled_from(replica_ids), max_size=3),
        tries_ejected=st.booleans(),
    )
    def request_arrives(
        self, prefill: int, decode: int, excluded: set[str], *, tries_ejected: bool
    ) -> None:
        usable = [
            endpoint
            for endpoint in self.endpoints
            if endpoint.is_available(self.now_s) and endpoint.spec.id not in excluded
        ]
        able = [endpoint for endpoint in usable if endpoint.spec.pool == "ver_1"]
        if not able and tries_ejected:
            able = [
                endpoint
                for endpoint in self.endpoints.pool("ver_1")
                if endpoint.spec.accepts_requests and endpoint.spec.id not in excluded
            ]
        in_pool = [endpoint for endpoint in able if not endpoint.is_full()]
        least = min((endpoint.in_flight_tokens for endpoint in in_pool), default=None)
        try:
            lease = self.picker.lease(
                [("ver_1", 1)],
                Work(prefill, decode),
                self.now_s,
                frozenset(excluded),
                tries_ejected=tries_ejected,
            )
        except Saturated:
            assert able
            assert not in_pool
            return
        except Unavailable:
            assert not able
            return
        assert lease.endpoint in in_pool
        assert lease.endpoint.in_flight_tokens - prefill - decode == least
        self.leases.append(lease)

    @rule(
        replica_id=st.sampled_from(replica_ids),
        running=st.integers(0, 50),
        waiting=st.integers(0, 50),
    )
    def load_is_reported(self, replica_id: str, running: int, waiting: int) -> None:
        endpoint = self.endpoints.find(replica_id)
        if endpoint is not None:
            before = endpoint.capacity.requests_max
            queue_s = endpoint.queued_prefill_tokens * endpoint.rate.seconds_per_token
            endpoint.report_load(running=running, waiting=waiting, now_s=self.now_s)
            limit = endpoint.capacity.requests_max
            assert limit >= 1
            if queue_s >= standing_s and waiting > max(1, running // 8):
                assert limit <= max(1, endpoint.in_flight_requests)
            if waiting <= max(1, running // 8):
                assert limit >= before

    @rule(index=st.integers(0, 99), verdict=st.sampled_from(["succeed", "fail", "prefilled", ""]))
    def something_happens(self, index: int, verdict: str) -> None:
        known = self.leases + self.released
        if not known:
            return
        lease = known[index % len(known)]
        if verdict == "succeed":
            lease.succeed()
        elif verdict == "fail":
            lease.fail(self.now_s)
        elif verdict == "prefilled":
            lease.prefilled(self.now_s)
        else:
            lease.release()
            if lease in self.leases:
                self.leases.remove(lease)
                self.released.append(lease)

    @invariant()
    def loads_are_the_sums_of_leases(self) -> None:
        endpoints: set[Endpoint] = {*self.endpoints, *(lease.endpoint for lease in self.leases)}
        for endpoint in endpoints:
            own = [lease for lease in self.leases if lease.endpoint is endpoint]
            assert endpoint.in_flight_requests == len(own)
            assert endpoint.in_flight_tokens == sum(lease.held_tokens for lease in own)
            assert 0 <= endpoint.queued_prefill_tokens <= endpoint.held_fresh_tokens
            if not own:
                assert endpoint.held_fresh_tokens == 0
                assert endpoint.pressure_s == 0

    @invariant()
    def the_impaired_of_a_pool_are_those_that_are_full_or_ejected(self) -> None:
        for name in ("ver_1", "ver_2"):
            pool = self.endpoints.whole_pool(name)
            if pool is not None:
                assert pool.load.impaired == {
                    endpoint
                    for endpoint in pool.members
                    if endpoint.is_full() or endpoint.breaker.state is not BreakerState.CLOSED
                }

    @invariant()
    def endpoints_of_a_pool_have_slots_of_their_own(self) -> None:
        for name in ("ver_1", "ver_2"):
            slots = [endpoint.slot for endpoint in self.endpoints.pool(name)]
            assert len(slots) == len(set(slots))

    @invariant()
    def no_probe_is_forgotten(self) -> None:
        probing = {lease.endpoint for lease in self.leases}
        for endpoint in self.endpoints:
            if endpoint.breaker.state is BreakerState.HALF_OPEN:
                assert endpoint in probing


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""Every endpoint there is, replaced as a whole: no event can be missed, because there are none."""

from collections.abc import Iterable, Iterator, Sequence

from headrace.router.alike import alike
from headrace.router.block_index import BlockIndex
from headrace.router.endpoint import Endpoint, EndpointSpec, PoolLoad
from headrace.router.prefix_index import PrefixIndex
from headrace.router.service_rate import ServiceRate


class Pool:
    """The endpoints of one model version, and what is known of them together."""

    __slots__ = (
        "_free_slots",
        "_rates",
        "accepting",
        "blocks",
        "has_cohorts",
        "index",
        "load",
        "members",
        "prefillers",
        "slot_bits",
        "slot_count",
    )

    def __init__(self) -> None:
        self.members: tuple[Endpoint, ...] = ()
        self.accepting: tuple[Endpoint, ...] = ()  # those that take requests, by the store
        self.load = PoolLoad()
        self.prefillers: tuple[Endpoint, ...] = ()  # the same of those that compute prompts alone
        self.has_cohorts = False  # a canary splits its requests
        self.index = PrefixIndex()
        self.blocks = BlockIndex()
        self.slot_bits = 0  # of the members
        self.slot_count = 0  # one more than the highest slot there ever was at once
        self._free_slots: list[int] = []
        self._rates: dict[str, ServiceRate] = {}  # by deployment

    def endpoint(self, spec: EndpointSpec) -> Endpoint:
        """A new endpoint, with the lowest free slot and its deployment's rate."""
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self.slot_count
            self.slot_count += 1
        rate = self._rates.setdefault(spec.deployment_id, ServiceRate())
        return Endpoint(spec, slot=slot, rate=rate, pool_load=self.load)

    def replace_members(self, members: Sequence[Endpoint]) -> None:
        """Take the endpoints that there are now; forget what was known of others."""
        for gone in set(self.members).difference(members):
            self.index.forget(gone.slot)
            self.blocks.forget(gone.slot)
            gone.join(PoolLoad())  # its leases go on, and concern nobody here
            self._free_slots.append(gone.slot)
        self._free_slots.sort(reverse=True)
        self.members = tuple(members)
        accepting = [member for member in members if member.spec.accepts_requests]
        self.prefillers = tuple(m for m in accepting if not m.spec.answers)
        self.accepting = alike((m for m in accepting if m.spec.answers), self.load)
        self.slot_bits = sum(1 << member.slot for member in members)
        self.has_cohorts = any(member.spec.cohort_weight for member in members)
        present = {member.spec.deployment_id for member in members}
        self._rates = {name: rate for name, rate in self._rates.items() if name in present}


class EndpointSet:
    """The endpoints by id and by pool; load and health survive an update of the same process."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._pools: dict[str, Pool] = {}

    def update(self, specs: Iterable[EndpointSpec]) -> None:
        """Make the set equal to `specs`. Leases on what went away stay valid and count nowhere."""
        endpoints: dict[str, Endpoint] = {}
        members: dict[str, list[Endpoint]] = {}
        for spec in specs:
            if spec.id in endpoints:
                continue  # the first of an id counts
            pool = self._pools.setdefault(spec.pool, Pool())
            known = self._endpoints.get(spec.id)
            if (
                known is not None
                and known.spec.is_same_process(spec)
                and known.spec.pool == spec.pool
            ):
                known.take(spec)
                endpoint = known
            else:
                endpoint = pool.endpoint(spec)
            endpoints[spec.id] = endpoint
            members.setdefault(spec.pool, []).append(endpoint)
        self._endpoints = endpoints
        for name, pool in self._pools.items():
            pool.replace_members(members.get(name, ()))
        self._pools = {name: pool for name, pool in self._pools.items() if pool.members}

    def pool(self, name: str) -> Sequence[Endpoint]:
        """The endpoints of a model version, available or not; empty if there are none."""
        found = self._pools.get(name)
        return () if found is None else found.members

    def whole_pool(self, name: str) -> Pool | None:
        """The same with what is known of them together, or None."""
        return self._pools.get(name)

    def find(self, endpoint_id: str) -> Endpoint | None:
        """The endpoint of a replica, or None."""
        return self._endpoints.get(endpoint_id)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)

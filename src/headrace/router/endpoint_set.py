"""Every endpoint there is, replaced as a whole: no event can be missed, because there are none."""

from collections.abc import Iterable, Iterator, Sequence

from headrace.router.endpoint import Endpoint, EndpointSpec


class EndpointSet:
    """The endpoints by id and by pool; load and health survive an update of the same process."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._pools: dict[str, tuple[Endpoint, ...]] = {}

    def update(self, specs: Iterable[EndpointSpec]) -> None:
        """Make the set equal to `specs`. Leases on what went away stay valid and count nowhere."""
        endpoints: dict[str, Endpoint] = {}
        pools: dict[str, list[Endpoint]] = {}
        for spec in specs:
            if spec.id in endpoints:
                continue  # the first of an id counts
            known = self._endpoints.get(spec.id)
            if known is not None and known.spec.is_same_process(spec):
                known.spec = spec
                endpoint = known
            else:
                endpoint = Endpoint(spec)
            endpoints[spec.id] = endpoint
            pools.setdefault(spec.pool, []).append(endpoint)
        self._endpoints = endpoints
        self._pools = {name: tuple(members) for name, members in pools.items()}

    def pool(self, name: str) -> Sequence[Endpoint]:
        """The endpoints of a model version, available or not; empty if there are none."""
        return self._pools.get(name, ())

    def find(self, endpoint_id: str) -> Endpoint | None:
        """The endpoint of a replica, or None."""
        return self._endpoints.get(endpoint_id)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)

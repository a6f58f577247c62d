"""The replicas of a fleet and the control plane's view of them: up, down, hung, back.

    up --crash--> down --seen after `detect_s`--> taken out --`start_s`--> up, as a new process
    up --hang---> silent --seen after `detect_s`--> killed: down, as above
    launched --`start_s`--> up --drained--> takes nothing new --idle--> gone

The gateway has its own, faster view: broken connections, and the breaker of `router`.
"""

from collections.abc import Callable, Iterator

from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.picker import WeightedPool
from headrace.sim.fleet.attempt import Attempt, Replica, SimEngine
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.invariants import Invariants

drain_interval_s = 1.0  # how often one that drains is looked at


class Replicas:
    """All replicas; owns the endpoint set that the gateway follows."""

    def __init__(
        self,
        loop: Loop,
        invariants: Invariants,
        new_engine: Callable[[], SimEngine],
        *,
        detect_s: float,
        start_s: float,
        kv_tokens: int,
    ) -> None:
        self.all: list[Replica] = []  # ever, by index
        self.pools: dict[int, tuple[WeightedPool, ...]] = {}  # the only one, by deployment
        self._present: dict[int, Replica] = {}
        self._by_name: dict[str, Replica] = {}  # all, ever
        self.by_endpoint: dict[Endpoint, Replica] = {}  # those that the gateway knows
        self.endpoints = EndpointSet()
        self.departed: list[Endpoint] = []  # one a relaunch
        self.on_broken: Callable[[Attempt], None] | None = None  # connections that a crash cuts
        self._loop = loop
        self._invariants = invariants
        self._new_engine = new_engine
        self._detect_s = detect_s
        self._start_s = start_s
        self._kv_tokens = kv_tokens

    def add(self, deployment: int, zone: int) -> None:
        """One more, up from the start; `publish` makes it known."""
        index = len(self.all)
        name = f"replica-{index}"
        self._take(Replica(index, name, deployment, zone, self._new_engine()))

    def of(self, deployment: int) -> list[Replica]:
        """A deployment's replicas that are to stay, those that start among them."""
        return [
            replica
            for replica in self._present.values()
            if replica.deployment == deployment and not replica.is_leaving
        ]

    def launch(self, deployment: int) -> None:
        """One more, which is up in `start_s`."""
        index = len(self.all)
        replica = Replica(index, f"replica-{index}", deployment, 0, self._new_engine())
        replica.is_up, replica.is_starting, replica.is_removed = False, True, True
        replica.launch_s = self._loop.now_s
        self._take(replica)
        self._loop.after(self._start_s, self._serve, replica)

    def _take(self, replica: Replica) -> None:
        self.all.append(replica)
        self._present[replica.index] = replica
        self._by_name[replica.name] = replica
        self.pools.setdefault(replica.deployment, ((f"pool-{replica.deployment}", 1),))

    def drain(self, replica: Replica) -> None:
        """Send it nothing more, and end it once it is idle; one that starts ends at once."""
        replica.is_leaving = True
        if replica.is_starting:
            self._end(replica)
            return
        replica.is_removed = True
        self._invariants.removed(replica.name)
        self.publish()
        self._end_when_idle(replica)

    def missing(self) -> list[str]:
        """Those that are to serve and do not, because of what broke; not those that start."""
        late_s = self._loop.now_s - self._start_s
        return [
            replica.name
            for replica in self._present.values()
            if not replica.is_leaving
            and not (replica.is_starting and replica.launch_s > late_s)
            and not self._serves(replica)
        ]

    def _serves(self, replica: Replica) -> bool:
        endpoint = self.endpoints.find(replica.name)
        is_well = replica.is_up and not replica.is_hung and not replica.is_cut
        return is_well and endpoint is not None and endpoint.spec.accepts_requests

    def device_s(self, until_s: float) -> float:
        """Seconds of all replicas up to a time, from launch until they were gone."""
        return sum(
            max(0.0, min(until_s, until_s if r.gone_s is None else r.gone_s) - r.launch_s)
            for r in self.all
        )

    def _serve(self, replica: Replica) -> None:
        if replica.gone_s is None:
            replica.is_up, replica.is_starting, replica.is_removed = True, False, False
            self.publish()

    def _end_when_idle(self, replica: Replica) -> None:
        endpoint = self.endpoints.find(replica.name)
        if replica.is_up and endpoint is not None and endpoint.in_flight_requests:
            self._loop.after(drain_interval_s, self._end_when_idle, replica)
        else:
            self._end(replica)

    def _end(self, replica: Replica) -> None:
        if replica.gone_s is not None:
            return
        replica.gone_s = self._loop.now_s
        replica.is_up = replica.is_starting = False
        replica.engine.halt()
        del self._present[replica.index]
        self.publish()

    def publish(self) -> None:
        """Give the gateway the endpoints there are."""
        before = {endpoint.spec.id: endpoint for endpoint in self.endpoints}
        self.endpoints.update(self._spec(replica) for replica in self._present.values())
        for name, endpoint in before.items():
            if endpoint is not self.endpoints.find(name):
                self.departed.append(endpoint)
        self.by_endpoint = {
            endpoint: self._by_name[endpoint.spec.id] for endpoint in self.endpoints
        }

    def all_endpoints(self) -> Iterator[Endpoint]:
        """Those there are, and those of processes that are gone, whose leases may still end."""
        yield from self.endpoints
        yield from self.departed

    def crash(self, replica: Replica) -> None:
        """The process dies: connections break, and new ones are refused."""
        if not replica.is_up:
            return
        replica.is_up = False
        replica.engine.halt()
        broken = tuple(replica.running)
        replica.running.clear()
        for attempt in broken:
            assert self.on_broken is not None
            self.on_broken(attempt)
        self._detect_soon(replica)

    def hang(self, replica: Replica) -> None:
        """The process stays, accepts, and says nothing any more."""
        if replica.is_up and not replica.is_hung:
            replica.is_hung = True
            replica.engine.halt()
            self._detect_soon(replica)

    def _detect_soon(self, replica: Replica) -> None:
        if not replica.is_detected:
            replica.is_detected = True
            self._loop.after(self._detect_s, self._detect, replica)

    def _detect(self, replica: Replica) -> None:
        """The control plane sees that it is gone, or kills what hangs, and starts another."""
        replica.is_removed = True
        self._invariants.removed(replica.name)
        self.publish()
        self.crash(replica)
        self._loop.after(self._start_s, self._start, replica)

    def _start(self, replica: Replica) -> None:
        if replica.is_leaving:
            return
        replica.launches += 1
        replica.engine = self._new_engine()
        replica.is_up, replica.is_hung = True, False
        replica.is_removed = replica.is_detected = False
        self._invariants.is_back(replica.name)
        self.publish()

    def _spec(self, replica: Replica) -> EndpointSpec:
        return EndpointSpec(
            id=replica.name,
            pool=self.pools[replica.deployment][0][0],
            address=f"sim://{replica.name}",
            accepts_requests=not replica.is_removed,
            engine_key=str(replica.launches),
            kv_tokens=self._kv_tokens,
        )

"""What must hold at every event of a simulation, whatever is broken on purpose.

* a request ends exactly once, and nothing of it is sent, answered or settled afterwards
* the leases that endpoints count are the attempts that are under way; at the end none are left
* a replica that is down gets, after its first refusal, one probe for each ejection and no more, but
  for requests that have nowhere else to go; after the control plane took it out, nothing
* once the faults are over, all replicas that are wanted serve, within the control plane's time
* one settlement a request in the ledger, however often it was shipped; no credit overrun
"""

from collections.abc import Iterable, Sequence

from headrace.router.breaker import ejection_s_min
from headrace.router.endpoint import Endpoint
from headrace.sim.fleet.request import Outcome, SimRequest


class InvariantBroken(AssertionError):
    """The simulated system did what must never happen; the seed replays it."""


class Invariants:
    """Counts what ought to be, beside the code that is checked."""

    def __init__(self) -> None:
        self.requests_open = 0  # came, and did not end yet
        self.attempts_open = 0
        self._refused_s: dict[str, float] = {}  # endpoint down and known to be: its last send
        self._removed: set[str] = set()
        self._settled: set[int] = set()

    def sent(self, endpoint: Endpoint, now_s: float, *, is_last_resort: bool) -> None:
        """An attempt goes to an endpoint; a last resort is ejected, as all others that are left."""
        self.attempts_open += 1
        if not self._removed and not self._refused_s:
            return  # all are well
        name = endpoint.spec.id
        if name in self._removed:
            raise InvariantBroken(f"a request was sent to {name}, which was taken out")
        last_s = self._refused_s.get(name)
        if last_s is not None:
            if now_s - last_s < ejection_s_min:
                if is_last_resort:
                    return  # and no probe
                raise InvariantBroken(f"{name} is down and got two requests within an ejection")
            self._refused_s[name] = now_s

    def released(self) -> None:
        """An attempt is over, and its lease given back."""
        self.attempts_open -= 1
        if self.attempts_open < 0:
            raise InvariantBroken("a lease was given back twice")

    def refused(self, name: str, now_s: float) -> None:
        """The gateway learnt that an endpoint is down."""
        self._refused_s[name] = now_s

    def removed(self, name: str) -> None:
        """The control plane took a replica out."""
        self._removed.add(name)

    def is_back(self, name: str) -> None:
        """A replica is up, and may get requests again."""
        self._removed.discard(name)
        self._refused_s.pop(name, None)

    def end(self, request: SimRequest, outcome: Outcome) -> None:
        """A request ended."""
        if request.outcome is not None:
            raise InvariantBroken(f"request {request.id} ended twice: {request.outcome}, {outcome}")
        self.requests_open -= 1

    def settled(self, request_id: int) -> None:
        """The ledger has a new settlement."""
        if request_id in self._settled:
            raise InvariantBroken(f"request {request_id} was settled twice")
        self._settled.add(request_id)

    def reached(self, missing: Sequence[str]) -> None:
        """The faults are over, and the control plane had its time: these do not serve."""
        if missing:
            raise InvariantBroken(f"the faults are over, and {', '.join(missing)} do not serve")

    def check(self, endpoints: Iterable[Endpoint]) -> None:
        """Compare what the endpoints count with what is under way."""
        counted = sum(endpoint.in_flight_requests for endpoint in endpoints)
        if counted != self.attempts_open:
            raise InvariantBroken(f"{counted} leases are held by {self.attempts_open} attempts")

    def check_end(self, endpoints: Iterable[Endpoint]) -> None:
        """Nothing may be left once all traffic has ended."""
        if self.requests_open:
            raise InvariantBroken(f"{self.requests_open} requests never ended")
        if self.attempts_open:
            raise InvariantBroken(f"{self.attempts_open} attempts never ended")
        for endpoint in endpoints:
            if endpoint.in_flight_requests or endpoint.in_flight_tokens:
                raise InvariantBroken(f"{endpoint.spec.id} still counts load")

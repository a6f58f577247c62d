"""What happens in `chaos`, what came of it, and what a client asks."""

import math
from collections import Counter
from dataclasses import dataclass, field

from headrace.sim.counting_engine import keyed_prompt
from headrace.sim.gateway_site import model_name
from headrace.spec.limits import Limits

max_tokens = 8  # of an answer


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """What happens."""

    seed: int = 1
    gateways: int = 4
    clients: int = 64
    works: int = 1_000  # answers that clients want
    duration_s_max: float = math.inf  # they want no more after so long
    attempts_max: int = 200  # of one piece of work, before a client gives up
    limits: Limits | None = None  # of the clients' key
    is_spent_out: bool = False  # ask on at the end, once all is up again, until the limits refuse
    uses_redis: bool = False
    events: tuple[str, ...] = ("gateway", "database", "redis", "poster", "network")  # in turn
    event_interval_s: float = 3.0
    outage_s: float = 1.0
    events_max: int = 1_000_000


@dataclass(slots=True)
class ChaosReport:
    """What came of it; no `problems`: no answer was lost or doubled, and no limit overrun."""

    answers: int = 0
    given_up: int = 0
    was_stopped: bool = False  # before all of the work was done
    statuses: Counter[int] = field(default_factory=Counter)
    duplicates: int = 0  # pairs that were answered twice, by one answer
    keys: int = 0  # whose charges were compared with that of one answer
    broken: int = 0  # connections that ended without an answer
    kills: Counter[str] = field(default_factory=Counter)
    engine_requests: int = 0
    settlements: int = 0
    billed_tokens: int = 0
    billed_nanousd: int = 0
    took_s: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a client."""

    work: int
    streams: bool
    leaves: bool
    key: str = ""  # its Idempotency-Key, if it has one

    @property
    def prompt(self) -> str:
        """What is asked, which names the key."""
        return f"{keyed_prompt}{self.key}" if self.key else f"work {self.work}"

    def body(self) -> dict[str, object]:
        """What is sent."""
        return {
            "model": model_name,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": max_tokens,
            "stream": self.streams,
        }

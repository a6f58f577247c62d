"""One try of a request at one replica, and what is asked of the engine there and told by it."""

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.router.lease import Lease
from headrace.router.prompt_prefix import PromptPrefix
from headrace.sim.fleet.request import SimRequest, answer_content


class Attempt(msgspec.Struct, eq=False):
    """One try of a request at one replica."""

    request: SimRequest
    number: int  # of the request's tries, from 1
    lease: Lease | None = None  # the gateway's; it is over when it is given back
    replica: "Replica | None" = None  # None: an engine is driven alone, without a gateway
    start_s: float = 0.0  # when it was sent
    has_output: bool = False  # the gateway saw a token
    cached_tokens: int = 0  # of the prompt
    produced_tokens: int = 0  # as of the last event

    @property
    def key(self) -> str:
        """A name that no other attempt has."""
        return f"{self.request.id}.{self.number}"


class Listener(Protocol):
    """Who is told what an engine does, at the moment when it does it."""

    def first_token(self, attempt: Attempt) -> None:
        """The prompt is computed and the first token is out."""
        ...

    def finished(self, attempt: Attempt) -> None:
        """The last token is out; the engine holds nothing of it any more."""
        ...


class SimEngine(Protocol):
    """An engine on the virtual clock."""

    def submit(self, attempt: Attempt) -> None:
        """Queue it; RateLimited if the engine's queue is full."""
        ...

    def abort(self, attempt: Attempt) -> None:
        """Forget it with the next step; nothing more is told of it."""
        ...

    def load(self) -> tuple[int, int]:
        """Requests that run and that wait."""
        ...

    def known_tokens(self, prefix: PromptPrefix) -> int:
        """Tokens of the prompt whose KV it has; what a router with the engine's events knows."""
        ...

    def slow_down(self, factor: float) -> None:
        """Take `factor` times as long as the device's model says, from the next step on."""
        ...

    def halt(self) -> None:
        """Never do anything again."""
        ...


@dataclass(eq=False, slots=True)
class Replica:
    """One engine, or the place where one was."""

    index: int
    name: str
    deployment: int
    zone: int
    engine: SimEngine
    is_cut: bool = False  # the network between the gateway and it carries nothing
    is_up: bool = True  # its process answers connections
    is_hung: bool = False
    worked_tokens: int = 0  # that its engines computed
    running: dict[Attempt, None] = field(default_factory=dict)  # attempts inside
    launches: int = 1
    is_removed: bool = False  # from the endpoint set
    is_detected: bool = False  # the control plane knows, and acts
    is_starting: bool = False  # launched, and not up yet
    is_leaving: bool = False  # drains, or is gone
    launch_s: float = 0.0
    gone_s: float | None = None


def answer_key(keys: tuple[int, ...], attempt: Attempt) -> int:
    """The key of the prefix that a prompt and its answer make."""
    return hash((keys[-1], answer_content, attempt.request.output_tokens))

"""One try of a request at one endpoint, and where it may have used something."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from headrace.router.endpoint import EndpointSpec
from headrace.router.lease import Lease
from headrace.spec.settlements import TokenUsage


class UsedAt(NamedTuple):
    """Whom to ask what an attempt used."""

    spec: EndpointSpec
    request_id: str  # by which that engine knows it
    is_prompt_only: bool  # the prompt was computed there, for an answer that never began

    def part_of(self, usage: TokenUsage) -> TokenUsage:
        """What of the engine's record is the attempt's: nobody was to see a prompt's one token."""
        return msgspec.structs.replace(usage, completion_tokens=0) if self.is_prompt_only else usage


class Attempt:
    """One try of a request at one endpoint."""

    __slots__ = (
        "has_failed",
        "has_output",
        "is_split",
        "lease",
        "meet",
        "number",
        "prefilled_at",
        "request_id",
        "sent_to",
        "start_s",
        "was_refused",
    )

    def __init__(self, lease: Lease, request_id: str, start_s: float, number: int) -> None:
        self.lease = lease
        self.number = number  # among the attempts of its request; the first is 1
        self.request_id = request_id  # by which its engine knows it
        self.start_s = start_s
        self.sent_to: EndpointSpec | None = None  # where it may have used something
        self.prefilled_at: tuple[EndpointSpec, str] | None = None  # its prompt, and by which id
        # Has another engine compute the prompt, and says how this one finds it; None: it does both.
        self.meet: Callable[[], Mapping[str, object]] | None = None
        self.is_split = False  # its prompt's KV came from there
        self.has_output = False
        self.has_failed = False
        self.was_refused = False  # with an error status, by an engine that may have worked before

    @property
    def spec(self) -> EndpointSpec:
        """The replica."""
        return self.lease.endpoint.spec

    @property
    def used_at(self) -> UsedAt | None:
        """Where it may have used something; None: no engine got it."""
        if self.sent_to is not None:
            return UsedAt(self.sent_to, self.request_id, is_prompt_only=False)
        if self.prefilled_at is not None:  # it ended before its second leg began
            return UsedAt(*self.prefilled_at, is_prompt_only=True)
        return None

"""How many of a deployment's replicas compute prompts for the others, and which prompts."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

ReplicaCount = Annotated[int, Meta(ge=1, le=1000)]


class ReplicaRole(StrEnum):
    """What a replica does of a request."""

    WHOLE = ""  # all of it
    PREFILL = "prefill"  # computes prompts, whose KV goes to those that answer
    DECODE = "decode"  # answers, and computes the prompts that are not worth moving


class Disaggregation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many replicas of each kind; the router decides for each request whether it is split."""

    prefill: ReplicaCount = 1
    decode: ReplicaCount = 1
    threshold_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] = 512  # shorter ones stay whole

    @property
    def replicas(self) -> int:
        """Of both kinds."""
        return self.prefill + self.decode

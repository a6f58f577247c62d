"""How a deployment changes from one generation to the next, and how far that has come."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]


class RolloutStrategy(StrEnum):
    """What serves while a new generation comes."""

    ROLLING = "rolling"  # one new replica for one old, a few at a time
    BLUE_GREEN = "blue-green"  # all new beside all old, then all requests at once
    CANARY = "canary"  # a share of the requests first, in steps


class CanaryStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share of the requests for a while."""

    weight: Annotated[int, Meta(ge=1, le=99)]  # percent to the new generation
    pause_s: Seconds = 60.0


class RolloutPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way, and what counts as harm: the new generation against the old one meanwhile."""

    strategy: RolloutStrategy = RolloutStrategy.ROLLING
    surge: Annotated[int, Meta(ge=1, le=1000)] = 1  # replicas above the wanted number
    steps: Annotated[tuple[CanaryStep, ...], Meta(max_length=20)] = (
        CanaryStep(5),
        CanaryStep(25),
        CanaryStep(50),
    )
    bake_s: Seconds = 30.0  # blue-green: the old ones stay for so long after the switch
    rolls_back: bool = True
    requests_min: Annotated[int, Meta(ge=1)] = 20  # of the new generation; fewer are no evidence
    failure_share_max: Share = 0.05  # above the old generation's
    first_token_factor_max: Annotated[float, Meta(ge=1.0)] = 1.5  # of the old one's 90th percentile
    objective_drop_max: Share = 0.1  # of the share of requests whose first token is in time
    objective_first_token_s: Annotated[float, Meta(gt=0.0)] = 2.0
    starts_max: Annotated[int, Meta(ge=1)] = 3  # launches of a new replica that came to nothing


class RolloutProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout under way."""

    former_generation: int
    step: int = 0  # of a canary's; blue-green: 1 once the requests are switched
    step_time: float | None = None  # since when its replicas serve; None: not yet
    weight: int | None = None  # percent of the requests for the new generation; None: by replicas
    is_paused: bool = False
    is_rollback: bool = False  # goes straight back, and is not judged


class RolloutVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the last rollout ended."""

    generation: int  # that was rolled out
    succeeded: bool
    reason: str
    time: float

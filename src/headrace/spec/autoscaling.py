"""Between how many replicas a deployment is scaled, by what, and when other bounds hold."""

from typing import Annotated

import msgspec
from msgspec import Meta

minutes_per_day = 24 * 60
Replicas = Annotated[int, Meta(ge=0, le=1000)]
Positive = Annotated[float, Meta(gt=0.0)]
Share = Annotated[float, Meta(gt=0.0, le=1.0)]
ClockTime = Annotated[str, Meta(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]  # 24 hours, UTC


class ScheduledBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other bounds at a time of the day; one that ends before it begins goes past midnight."""

    begins: ClockTime
    ends: ClockTime
    weekdays: Annotated[tuple[Annotated[int, Meta(ge=0, le=6)], ...], Meta(max_length=7)] = (
        0, 1, 2, 3, 4, 5, 6,
    )  # fmt: skip
    min: Replicas | None = None  # None: as otherwise
    max: Replicas | None = None


class Autoscaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds and targets; the target that asks for most replicas decides."""

    min: Replicas = 1  # 0: without requests for `idle_s` nothing runs
    max: Replicas = 1
    target_tokens_per_s: Positive | None = None  # of work a replica; None: learnt from its best
    target_requests: Positive | None = None  # in flight a replica
    target_kv_share: Share = 0.8
    target_first_token_s: Positive = 2.0
    target_inter_token_s: Positive | None = None  # between two tokens, an answer's mean
    target_attainment: Share = 0.99  # of the requests, in the times above
    target_utilisation: Share = 0.7  # of what a replica can do: room for bursts
    down_after_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 300.0  # of less need, all the time
    idle_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 600.0
    schedule: Annotated[tuple[ScheduledBounds, ...], Meta(max_length=50)] = ()
    priority: Annotated[int, Meta(ge=0, le=1000)] = 100  # who gets devices when they are scarce
    devices: Annotated[int, Meta(ge=0, le=1024)] = 1  # of one replica, for the budget


class ScaleState(msgspec.Struct, frozen=True, kw_only=True):
    """What the autoscaler decided last, for people."""

    replicas: int
    time: float
    reason: str

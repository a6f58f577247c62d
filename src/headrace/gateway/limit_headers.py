"""The limits of a request's scopes, and the headers that tell a client where it stands."""

import math

from headrace.gateway.snapshot import Principal, ServedModel, Snapshot
from headrace.http.asgi import Header
from headrace.ledger.limits import MinuteStanding
from headrace.ledger.scopes import ScopeLimits, no_limits
from headrace.spec.limits import Limits


def limits_of(principal: Principal, served: ServedModel | None) -> ScopeLimits:
    """The limits of every scope of a request; `no_limits` itself if there are none.

    Without a model those of the caller alone."""
    key, model = principal.key, None if served is None else served.model
    both = key.model_limits.get(model.name) if model and key.model_limits else None
    limits = ScopeLimits(
        principal.tenant.limits,
        principal.project.limits,
        key.limits,
        None if model is None else model.limits,
        both,
    )
    return no_limits if limits == no_limits else limits


def rolling_periods_s(snapshot: Snapshot) -> set[int]:
    """Every rolling period that some limit counts in."""
    found: list[Limits | None] = [served.model.limits for served in snapshot.models.values()]
    for principal in snapshot.principals.values():
        key = principal.key
        found += [principal.tenant.limits, principal.project.limits, key.limits]
        found += (key.model_limits or {}).values()
    return {period for limits in found if limits for period in limits.rolling_periods_s}


def limit_headers(standing: MinuteStanding) -> list[Header]:
    """OpenAI's `x-ratelimit-*` headers, of the scope that has the least left."""
    reset = b"%ds" % max(1, math.ceil(standing.reset_s))
    headers: list[Header] = []
    for what, room in ((b"requests", standing.requests), (b"tokens", standing.tokens)):
        if room is not None:
            headers += [
                (b"x-ratelimit-limit-" + what, b"%d" % room.limit),
                (b"x-ratelimit-remaining-" + what, b"%d" % room.remaining),
                (b"x-ratelimit-reset-" + what, reset),
            ]
    return headers

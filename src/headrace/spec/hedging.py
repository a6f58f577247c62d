"""When a request is sent to a second replica, because the first one is slow to begin."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Hedging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second replica gets the request after the later of both times; the first byte wins."""

    after_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 1.0
    # Of the times in which the deployment's answers began lately; None: `after_s` alone counts.
    first_output_quantile: Annotated[float, Meta(gt=0.0, lt=1.0)] | None = None

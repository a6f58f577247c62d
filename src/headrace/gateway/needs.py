"""What a request needs of a replica beside its model, and who lacks it."""

from collections.abc import Sequence

from headrace.gateway.asked import Asked
from headrace.gateway.images import takers_of
from headrace.gateway.snapshot import ServedModel
from headrace.router.endpoint import EndpointSpec


def unable_ids(
    asked: Asked, served: ServedModel, endpoints: Sequence[EndpointSpec]
) -> frozenset[str]:
    """The endpoints that see no images where there are some, or lack the adapter asked for."""
    unable: frozenset[str] = frozenset()
    if asked.images:
        unable = takers_of(served, endpoints).unable_ids
    if served.adapter:
        unable |= {spec.id for spec in endpoints if served.adapter not in spec.loras}
    return unable

"""Endpoints of one deployment, in the order of their slots: what a cost need not ask each of them.

Such are most pools while all is well, as long as no rollout or second kind of device divides them.
Their prompts cost the same a token, and what is known by slot lies beside them in the same order.
"""

from collections.abc import Iterable, Sequence

from headrace.router.endpoint import Endpoint, PoolLoad


class Alike(tuple[Endpoint, ...]):
    """At least one endpoint; all have one rate, and the slots 0, 1, 2, ..."""

    loads_s: Sequence[float]  # of each, and of slots behind them perhaps


def alike(endpoints: Iterable[Endpoint], load: PoolLoad) -> tuple[Endpoint, ...]:
    """The endpoints of one pool, as `Alike` if they are."""
    found = tuple(endpoints)
    is_alike = bool(found) and all(
        endpoint.slot == place and endpoint.rate is found[0].rate
        for place, endpoint in enumerate(found)
    )
    if not is_alike:
        return found
    made = Alike(found)
    made.loads_s = load.loads_s
    return made

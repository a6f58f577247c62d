"""Endpoints of one deployment, in the order of their slots: what a cost need not ask each of them.

Such are most pools while all is well, as long as no rollout or second kind of device divides them.
Their prompts cost the same a token, and what is known by slot lies beside them in the same order.
"""

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.router.by_slot import Costs, TokensBySlot, as_list, many
from headrace.router.endpoint import Endpoint, PoolLoad


class Alike(tuple[Endpoint, ...]):
    """At least one endpoint, and all have one rate; a whole pool has the slots 0, 1, 2, ..."""

    load: PoolLoad  # what each says, and slots that it has not perhaps
    slots: NDArray[np.intp] | slice  # its own

    def without(self, gone: Collection[Endpoint]) -> "Alike | list[Endpoint]":
        """All but these of a whole pool; few endpoints, or none, are a list."""
        slots = sorted((e.slot for e in gone if e.slot < len(self)), reverse=True)
        left = list(self)
        for slot in slots:
            del left[slot]
        if len(left) < many:
            return left
        return self._of(left, np.delete(np.arange(len(self)), slots))

    def joined_by(self, others: Collection[Endpoint]) -> "Alike":
        """These and others of the same pool; an order of slots is not kept."""
        slots = [endpoint.slot for endpoint in others]
        own = np.arange(len(self)) if isinstance(self.slots, slice) else self.slots
        return self._of((*self, *others), np.concatenate((own, np.array(slots, np.intp))))

    def tokens(self, matched: TokensBySlot) -> TokensBySlot:
        """What each has of a prompt, in their order."""
        if len(self.load.requests) < many:
            return as_list(matched)[: len(self)]
        return np.asarray(matched)[self.slots]

    def costs(
        self,
        prompt_tokens: int,
        weight: float,
        per_request: float,
        per_token_s: float,
        matched: TokensBySlot,
    ) -> Costs:
        """Of each its load and what is new of the prompt, which weighs more by each request."""
        load = self.load
        if len(load.requests) >= many:
            fresh = prompt_tokens - np.asarray(matched)[self.slots]
            costs = np.frombuffer(load.queued_tokens)[self.slots] * per_token_s
            costs += np.frombuffer(load.pressures_s)[self.slots]
            if per_request:
                weights = np.frombuffer(load.requests)[self.slots] * (per_request * per_token_s)
                weights += weight * per_token_s
                costs += weights * fresh
            else:
                costs += fresh * (weight * per_token_s)
            return costs
        return [
            (queued + (weight + per_request * requests) * (prompt_tokens - known)) * per_token_s
            + pressure_s
            for _, queued, pressure_s, requests, known in zip(
                self,
                load.queued_tokens,
                load.pressures_s,
                load.requests,
                as_list(matched),
                strict=False,
            )
        ]

    def requests_total(self) -> float:
        """How many are in flight at all of them."""
        requests = self.load.requests
        if len(requests) < many:
            return sum(requests[: len(self)])
        return float(np.add.reduce(np.frombuffer(requests)[self.slots]))

    def _of(self, endpoints: Iterable[Endpoint], slots: NDArray[np.intp]) -> "Alike":
        made = Alike(endpoints)
        made.load, made.slots = self.load, slots
        return made


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
    made.load, made.slots = load, slice(len(found))
    return made

"""Numbers of a pool's endpoints by slot: a list of few, an array of many.

A gateway mostly has a handful of replicas of a model, for which a list is faster; with a thousand
of them each pass over a list takes as long as all passes over arrays together.
"""

from collections.abc import Collection
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from headrace.router.rng import Rng

many = 64  # slots, from which arrays are faster
sample_size = 32  # of many costs

TokensBySlot = list[int] | NDArray[np.int64]
Costs = list[float] | NDArray[np.float64]


def no_tokens(slot_count: int) -> TokensBySlot:
    """Zero at every slot."""
    return [0] * slot_count if slot_count < many else np.zeros(slot_count, np.int64)


def set_tokens(values: TokensBySlot, slots: int, tokens: int) -> None:
    """Write `tokens` at every slot of `slots`, which are bits."""
    if isinstance(values, list):
        for slot in each_slot(slots, len(values)):
            values[slot] = tokens
    else:
        values[_mask(slots, len(values))] = tokens


def raise_tokens(values: TokensBySlot, slots: int, tokens: int) -> None:
    """The same where there is less now."""
    if isinstance(values, list):
        for slot in each_slot(slots, len(values)):
            values[slot] = max(values[slot], tokens)
    else:
        np.maximum(values, tokens, out=values, where=_mask(slots, len(values)))


def as_list(values: TokensBySlot) -> list[int]:
    """The same for who looks at each one."""
    return values if isinstance(values, list) else values.tolist()


def most_tokens(values: TokensBySlot) -> int:
    """The greatest of them; 0 if there are none."""
    if isinstance(values, list):
        return max(values, default=0)
    return int(values[values.argmax()]) if len(values) else 0  # a third of the time of `max`


def each_slot(slots: int, count: int) -> Collection[int]:
    """The positions of the bits that are set, below `count`."""
    return list(compress(range(count), map(int, f"{slots:b}"[::-1])))


def costs_of(prompt_tokens: int, known: TokensBySlot) -> Costs:
    """The tokens of a prompt that are not known, as a cost."""
    if isinstance(known, list):
        return [float(prompt_tokens - tokens) for tokens in known]
    return (prompt_tokens - known).astype(np.float64)


def least(costs: Costs, rng: Rng) -> int:
    """Where the least cost is; drawn if several places have it."""
    if isinstance(costs, list):
        lowest = min(costs)
        at, ties = costs.index(lowest), costs.count(lowest)
        if ties > 1:
            for _ in range(int(rng.random() * ties)):
                at = costs.index(lowest, at + 1)
        return at
    places = np.flatnonzero(costs == costs.min())
    return int(places[0 if len(places) == 1 else int(rng.random() * len(places))])


def cheap(costs: Costs, count: int) -> list[int]:
    """Where `count` of the least costs are, the least first; of very many perhaps fewer.

    Those are found by the second least of a sample: sorting a thousand costs for a log would take
    as long as the choice."""
    if isinstance(costs, list) or len(costs) <= sample_size:
        return sorted(range(len(costs)), key=costs.__getitem__)[:count]
    bound = np.sort(costs[:: len(costs) // sample_size])[1]
    places = np.flatnonzero(costs <= bound)
    found: list[int] = places[np.argsort(costs[places], kind="stable")[:count]].tolist()
    return found


def _mask(slots: int, count: int) -> NDArray[np.bool_]:
    data = (slots & ((1 << count) - 1)).to_bytes((count + 7) // 8, "little")
    bits = np.frombuffer(data, np.uint8)
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)

"""What a period would have cost at other prices: a price book tried on what was used.

Nothing is changed by it; each request is rated as it would have been, and rounded as it would have
been, so that the answer is exact.
"""

from collections.abc import Callable, Iterable

import msgspec

from headrace.spec.prices import Price
from headrace.spec.settlements import Charge, Settlement, platform_tenant_id


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant and model: what was charged, and what would have been."""

    tenant_id: str
    model: str
    requests: int
    charged_nanousd: int
    tried_nanousd: int
    unrated_requests: int  # had no price; at the tried prices they may


Rate = Callable[[Price, Settlement], Charge]


def try_prices(
    settlements: Iterable[Settlement], prices: dict[str, Price], rate: Rate
) -> list[TrialRow]:
    """Rate each request whose model has a tried price; the others keep what they were charged."""
    sums: dict[tuple[str, str], list[int]] = {}
    for settlement in settlements:
        if settlement.is_borne or settlement.tenant_id == platform_tenant_id:
            continue  # nobody pays for it at any price
        row = sums.setdefault((settlement.tenant_id, settlement.model), [0, 0, 0, 0])
        price = prices.get(settlement.model)
        charged = settlement.amount_nanousd
        row[0] += 1
        row[1] += charged or 0
        if price is None:
            row[2] += charged or 0
        else:
            own = price.shared(settlement.price_percent)
            row[2] += rate(own, settlement).amount_nanousd
        row[3] += charged is None
    return [
        TrialRow(
            tenant_id=tenant_id,
            model=model,
            requests=row[0],
            charged_nanousd=row[1],
            tried_nanousd=row[2],
            unrated_requests=row[3],
        )
        for (tenant_id, model), row in sorted(sums.items())
    ]

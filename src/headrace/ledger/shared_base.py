"""What the ledger knows of a limit that no gateway has counted yet: where its count begins."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.ledger.shared_keys import KeyedLimit, Measure, limit_of_key
from headrace.ledger.windows import buckets_per_period
from headrace.storage import UsageRow
from headrace.storage.lease_exchange import Ask, LimitKind

key_prefix = "key_"
prefixes = {"ten_": "tenant", "prj_": "project", key_prefix: "key"}
model_prefix = "model/"


class LedgerReader(Protocol):
    """The part of `storage.LedgerStore` that this needs."""

    def usage(
        self,
        group_by: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> list[UsageRow]:
        """Sums of settlements in `[since, until)`."""
        ...


def base_of(ask: Ask, ledger: LedgerReader) -> Ask:
    """The ask with what was used by window; a rolling period costs 65 reads, once."""
    limit = limit_of_key(ask.key)
    filters = filters_of(limit.scope_id)
    base: list[tuple[int, int]] = []
    if ask.kind is LimitKind.ROLLING and isinstance(limit.period, int):
        width_s = limit.period / buckets_per_period
        for window in range(ask.oldest_window, ask.oldest_window + buckets_per_period + 1):
            span = (window * width_s, (window + 1) * width_s)
            base.append((window, used(limit, ledger.usage((), *span, filters))))
    else:
        since = float(ask.oldest_window)
        base.append((ask.oldest_window, used(limit, ledger.usage((), since, None, filters))))
    kept = tuple((window, amount) for window, amount in base if amount)
    return msgspec.structs.replace(ask, has_base=True, base=kept)


def used(limit: KeyedLimit, rows: list[UsageRow]) -> int:
    """What rows of usage come to in a limit's measure."""
    if limit.measure is Measure.NANOUSD:
        return sum(row.amount_nanousd for row in rows)
    return sum(row.prompt_tokens + row.completion_tokens for row in rows)


def filters_of(scope_id: str) -> dict[str, str]:
    """How usage is filtered to a scope; the ids are those of `scopes.scope_ids`."""
    if scope_id.startswith(model_prefix):
        return {"model": scope_id.removeprefix(model_prefix)}
    key_id, slash, model = scope_id.partition("/")
    if slash:
        return {"key": key_id, "model": model}
    for prefix, dimension in prefixes.items():
        if scope_id.startswith(prefix):
            return {dimension: scope_id}
    raise ValueError(f"{scope_id!r} is no scope")

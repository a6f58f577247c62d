"""The ledger's tables agree with a dictionary, whatever is posted, how often and how grouped."""

import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource

small = st.integers(0, 50)


@st.composite
def settlements(draw: st.DrawFn) -> Settlement:
    """One of few requests of few tenants, so that duplicates and shared groups are common."""
    prompt = draw(small)
    rated = draw(st.booleans())
    charge = Charge(input_nanousd=draw(small), output_nanousd=draw(small)) if rated else None
    return Settlement(
        request_id=f"r{draw(st.integers(0, 12))}",
        tenant_id=draw(st.sampled_from(["ten_a", "ten_b"])),
        project_id="p",
        key_id=draw(st.sampled_from(["k1", "k2"])),
        model=draw(st.sampled_from(["small", "large"])),
        usage=TokenUsage(prompt, draw(st.integers(0, prompt)), draw(small)),
        outcome=draw(st.sampled_from(Outcome)),
        source=UsageSource.ENGINE,
        price_book_id="prb" if rated else None,
        charge=charge,
        settle_time=1_800_000_000.0 + draw(st.integers(0, 3)) * 50_000,
    )


credits_ = st.tuples(st.sampled_from(["ten_a", "ten_b"]), st.integers(1, 100))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.lists(settlements(), max_size=8), credits_), max_size=8))
def test_the_tables_agree_with_a_slow_obvious_ledger(
    steps: list[list[Settlement] | tuple[str, int]],
) -> None:
    booked: dict[str, Settlement] = {}
    balances: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as directory:
        database = open_sqlite_copy(Path(directory) / "headrace.db", ManualClock())
        ledger = database.ledger
        for number, step in enumerate(steps):
            if isinstance(step, tuple):
                ledger.credit(step[0], step[1], f"c{number}", "paid")
                balances[step[0]] += step[1]
                continue
            new = 0
            for record in step:
                if record.request_id not in booked:
                    booked[record.request_id] = record
                    new += 1
                    if record.amount_nanousd is not None:
                        balances[record.tenant_id] -= record.amount_nanousd
            assert ledger.post(step) == new
        assert ledger.balances() == balances
        assert ledger.check() == []
        for group_by in ((), ("tenant", "model"), ("key", "day")):
            by_day = ledger.usage(group_by)
            assert by_day == ledger.usage(group_by, since=1.0)
            assert sum(row.requests for row in by_day) == len(booked)
            assert sum(row.completion_tokens for row in by_day) == sum(
                record.usage.completion_tokens for record in booked.values()
            )
            assert sum(row.amount_nanousd for row in by_day) == sum(
                record.amount_nanousd or 0 for record in booked.values()
            )
        database.close()

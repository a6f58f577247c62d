"""What does money cost? Time on the gateway's event loop, waiting for the disk, and the book.

Usage: python bench/ledger.py [--requests 20000] [--clients 32] [--rows 1000000] [--directory DIR]

`loop_us` is the event loop's own time a request: reserve, one checkpoint, settle, each written to
the journal, while the writer thread syncs. `limits_us` is what limits in four scopes add to
reserving and settling alone, without a journal; it is the least of several rounds. `durable_ms`
is how long a client waits for its settlement to be on stable storage. The rest is the ledger with
`--rows` settlements of 100 tenants.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headrace.base.clock import SystemClock
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.ledger.scopes import ScopeLimits, no_limits
from headrace.ledger.shipper import Shipper
from headrace.spec.limits import Limits
from headrace.spec.prices import Price, PriceVersion
from headrace.spec.settlements import Charge, Settlement, UsageSource
from headrace.storage import Database, open_sqlite

price = PriceVersion(
    "prb_bench",
    Price(
        input_nanousd_per_million=150_000_000,
        cached_input_nanousd_per_million=75_000_000,
        output_nanousd_per_million=600_000_000,
    ),
)
post_batch = 2_000
limit_rounds = 5
limit_requests = 5_000
start_time = 1_796_083_200.0


async def measure_requests(meter: Meter, request_count: int, clients: int) -> dict[str, float]:
    busy_s = 0.0
    waits_s: list[float] = []

    async def client(first: int) -> None:
        nonlocal busy_s
        for number in range(first, request_count, clients):
            begun_s = time.perf_counter()
            held = meter.reserve(
                request_id=f"req_{number:026d}",
                tenant_id="ten_bench",
                project_id="prj_bench",
                key_id="key_bench",
                model="smollm2-135m-instruct",
                price=price,
                credit_floor_nanousd=0,
                prompt_tokens_max=200,
                output_tokens_max=400,
            )
            meter.checkpoint(held, TokenUsage(180, 64, 50))
            sequence = meter.settle(held, TokenUsage(180, 64, 200), Outcome.FINISHED)
            settled_s = time.perf_counter()
            await meter.durable(sequence)
            waits_s.append(time.perf_counter() - settled_s)
            busy_s += settled_s - begun_s

    begun_s = time.perf_counter()
    await asyncio.gather(*(client(first) for first in range(clients)))
    took_s = time.perf_counter() - begun_s
    waits_s.sort()
    return {
        "requests": request_count,
        "clients": clients,
        "loop_us": round(busy_s / request_count * 1e6, 1),
        "durable_ms_p50": round(waits_s[len(waits_s) // 2] * 1e3, 2),
        "durable_ms_p99": round(waits_s[len(waits_s) * 99 // 100] * 1e3, 2),
        "requests_per_s": round(request_count / took_s),
    }


def measure_limits(request_count: int) -> dict[str, float]:
    """Microseconds a request, with limits in four scopes and without any, in turn."""
    wide = 2**40
    some = Limits(
        requests_per_minute=wide,
        tokens_per_minute=wide,
        concurrent_requests=wide,
        tokens_per_period=wide,
        budget_nanousd=wide,
    )
    limited = ScopeLimits(tenant=some, project=some, key=some, model=some)
    bare_s, limited_s = float("inf"), float("inf")
    for _ in range(limit_rounds):
        bare_s = min(bare_s, timed(partial(reserve_and_settle, request_count, no_limits)))
        limited_s = min(limited_s, timed(partial(reserve_and_settle, request_count, limited)))
    return {
        "admission_us": round(bare_s / request_count * 1e6, 1),
        "admission_limited_us": round(limited_s / request_count * 1e6, 1),
        "limits_us": round((limited_s - bare_s) / request_count * 1e6, 1),
    }


def reserve_and_settle(request_count: int, limits: ScopeLimits) -> None:
    admission = Admission(SystemClock())
    for number in range(request_count):
        held = admission.reserve(
            request_id=f"req_{number:026d}",
            tenant_id="ten_bench",
            project_id="prj_bench",
            key_id=f"key_{number % 100}",
            model="smollm2-135m-instruct",
            price=price,
            credit_floor_nanousd=None,
            prompt_tokens_max=200,
            output_tokens_max=400,
            limits=limits,
        )
        admission.settle(held, TokenUsage(180, 64, 200), Outcome.FINISHED)


def settlement(number: int) -> Settlement:
    return Settlement(
        request_id=f"old_{number:026d}",
        tenant_id=f"ten_{number % 100}",
        project_id=f"prj_{number % 200}",
        key_id=f"key_{number % 400}",
        model=f"model-{number % 7}",
        usage=TokenUsage(180, 64, 200),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb_bench",
        charge=Charge(input_nanousd=17_400, cached_input_nanousd=4_800, output_nanousd=120_000),
        settle_time=start_time + number * 2.5,
    )


def measure_book(database: Database, row_count: int) -> dict[str, float]:
    ledger = database.ledger
    booking_s = 0.0
    for first in range(0, row_count, post_batch):
        batch = [settlement(number) for number in range(first, first + post_batch)]
        booking_s += timed(partial(ledger.post, batch))
    until = start_time + row_count * 2.5
    return {
        "rows": row_count,
        "settlements_per_s": round(row_count / booking_s),
        "post_again_s": round(timed(lambda: ledger.post(batch)), 3),
        "usage_by_tenant_model_day_s": round(
            timed(lambda: ledger.usage(("tenant", "model", "day"))), 3
        ),
        "usage_of_a_cut_range_s": round(
            timed(lambda: ledger.usage(("tenant",), start_time + 1, until)), 3
        ),
        "snapshot_s": round(timed(ledger.snapshot), 4),
        "check_s": round(timed(ledger.check), 2),
    }


def timed(action: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    action()
    return time.perf_counter() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="where to write; the disk that is measured")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=arguments.directory))
    database = open_sqlite(directory / "headrace.db")
    journal = Journal(directory / "journal")
    try:
        database.ledger.credit("ten_bench", 10**15, "bench", "credit to measure with")
        admission = Admission(SystemClock())
        meter = Meter(admission, journal)
        meter.recover(database.ledger.snapshot())
        results = asyncio.run(measure_requests(meter, arguments.requests, arguments.clients))
        shipper = Shipper(journal, database.ledger, admission)
        results["ship_requests_per_s"] = round(arguments.requests / timed(shipper.drain))
        print(json.dumps(results))
        print(json.dumps(measure_limits(limit_requests)))
        print(json.dumps(measure_book(database, arguments.rows)))
    finally:
        journal.close()
        database.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()

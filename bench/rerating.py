"""How long it takes to rate a month of requests again at other prices (`headrace prices try`).

    python bench/rerating.py --requests 10000000

Makes a month of settlements in a database file of its own (a temporary directory, a quarter of a
kilobyte a request), and tries a price book on it by the code of the route.
"""

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.billing.trial import try_prices
from headrace.ledger.rating import rate
from headrace.sim.clock import ManualClock
from headrace.spec.prices import ContextTier, Price
from headrace.storage import open_sqlite

month_start_s = 1_793_491_200.0  # 2026-11-01
month_s = 30 * 86_400.0
nothing_reserved = 2**62
columns = (
    "request_id",
    "tenant_id",
    "project_id",
    "key_id",
    "model",
    "day",
    "outcome",
    "source",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "price_book_id",
    "input_nanousd",
    "cached_input_nanousd",
    "output_nanousd",
    "waived_nanousd",
    "amount_nanousd",
    "settle_time",
)


def requests(count: int, seed: int) -> Iterator[tuple[object, ...]]:
    """Settlements in order of time."""
    rng = random.Random(seed)
    for number in range(count):
        settle_s = month_start_s + month_s * number / count
        prompt = rng.randrange(20, 4000)
        cached = rng.randrange(prompt)
        output = rng.randrange(1, 800)
        charge = ((prompt - cached) * 100, cached * 20, output * 400)
        yield (
            f"req_{number:026d}",
            f"ten_{rng.randrange(200)}",
            "prj_1",
            "key_1",
            f"model-{rng.randrange(20)}",
            f"2026-11-{1 + int((settle_s - month_start_s) // 86_400):02d}",
            "finished",
            "engine",
            prompt,
            cached,
            output,
            "prb_1",
            *charge,
            0,
            sum(charge),
            settle_s,
        )


def fill(path: Path, count: int) -> float:
    """Write the settlements alone; seconds it took."""
    started_s = time.perf_counter()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA foreign_keys=OFF")
        places = ", ".join("?" * len(columns))
        connection.executemany(
            f"INSERT INTO settlements ({', '.join(columns)}) VALUES ({places})",
            requests(count, seed=7),
        )
    connection.close()
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    arguments = parser.parse_args()
    price = Price(
        input_nanousd_per_million=150_000_000,
        cached_input_nanousd_per_million=30_000_000,
        output_nanousd_per_million=500_000_000,
    )
    long_price = Price(
        input_nanousd_per_million=250_000_000,
        cached_input_nanousd_per_million=30_000_000,
        output_nanousd_per_million=700_000_000,
    )
    tiered = Price(
        input_nanousd_per_million=150_000_000,
        cached_input_nanousd_per_million=30_000_000,
        output_nanousd_per_million=500_000_000,
        context_tiers=(ContextTier(3000, long_price),),
    )
    prices = {f"model-{n}": tiered if n % 2 else price for n in range(20)}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "headrace.db"
        open_sqlite(path, ManualClock()).close()
        filled_s = fill(path, arguments.requests)
        database = open_sqlite(path, ManualClock())
        started_s = time.perf_counter()
        used = database.late_rating.read(month_start_s, month_start_s + month_s)
        rows = try_prices(
            used,
            prices,
            lambda price, settled: rate(price, settled.usage, nothing_reserved, settled.units),
        )
        tried_s = time.perf_counter() - started_s
        database.close()
        counted = sum(row.requests for row in rows)
        assert counted == arguments.requests
        print(
            json.dumps(
                {
                    "requests": counted,
                    "fill_s": round(filled_s, 1),
                    "try_s": round(tried_s, 1),
                    "requests_per_s": round(counted / tried_s),
                    "tried_usd": sum(row.tried_nanousd for row in rows) / 1e9,
                    "database_mb": round(path.stat().st_size / 1e6),
                }
            )
        )


if __name__ == "__main__":
    main()

"""How many settlements a second does each database book, batched as a gateway's poster does it?

Usage: python bench/ledger_rates.py [--entries 20000] [--batch 1000] [--rounds 3]

Each round posts `--entries` settlements of 100 tenants, each once, to a fresh SQLite file and to a
fresh PostgreSQL of this machine, in turn. Both sync every commit to the disk. A settlement is one
entry, its two postings, its usage row, and its share of the accounts' and the day's sums.
"""

import argparse
import json
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path

from headrace.sim.postgres_server import PostgresServer
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.storage import Database, open_postgres, open_sqlite


def settlement(number: int) -> Settlement:
    return Settlement(
        request_id=f"req_{number:026d}",
        tenant_id=f"ten_{number % 100}",
        project_id=f"prj_{number % 200}",
        key_id=f"key_{number % 400}",
        model=f"model-{number % 7}",
        usage=TokenUsage(180, 64, 200),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb_bench",
        charge=Charge(input_nanousd=17_400, cached_input_nanousd=4_800, output_nanousd=120_000),
        settle_time=1_796_083_200.0,
    )


def measure(database: Database, entry_count: int, batch: int) -> float:
    """Entries a second; the settlements are made before the clock starts."""
    batches = [
        [settlement(number) for number in range(first, min(first + batch, entry_count))]
        for first in range(0, entry_count, batch)
    ]
    begun_s = time.perf_counter()
    for sequence, records in enumerate(batches, 1):
        database.ledger.post(records, journal_id="bench", sequence=sequence)
    took_s = time.perf_counter() - begun_s
    assert database.ledger.settlement_count() == entry_count
    return entry_count / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    directory.chmod(0o755)
    rates: dict[str, list[int]] = {"sqlite": [], "postgres": []}
    try:
        for turn in range(arguments.rounds):
            with closing(open_sqlite(directory / f"{turn}.db")) as database:
                rates["sqlite"].append(round(measure(database, arguments.entries, arguments.batch)))
            server = PostgresServer(directory / f"postgres-{turn}", {"fsync": "on"})
            server.create()
            server.start()
            try:
                with closing(open_postgres(server.url)) as database:
                    rate = measure(database, arguments.entries, arguments.batch)
                    rates["postgres"].append(round(rate))
            finally:
                server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({"batch": arguments.batch, "entries_per_s": rates}, indent=2))


if __name__ == "__main__":
    main()

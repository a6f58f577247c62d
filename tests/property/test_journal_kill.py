"""Real processes die by kill -9 while they meter; an oracle outside counts their answers."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from headrace.base.clock import SystemClock
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.meter import Meter
from headrace.ledger.shipper import Shipper
from headrace.storage import open_sqlite
from headrace.storage.tables import settlements

metering_process = """
import asyncio, sys, threading
from pathlib import Path
from headrace.base.clock import SystemClock
from headrace.ledger import shipper as shipping
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.ledger.shipper import Shipper
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import open_sqlite

shipping.interval_s = 0.005
directory, life = Path(sys.argv[1]), sys.argv[2]
database = open_sqlite(directory / "headrace.db")
journal = Journal(directory / "journal", JournalLimits(segment_bytes=20_000))
admission = Admission(SystemClock())
meter = Meter(admission, journal)
meter.recover(database.ledger.snapshot())
shipper = Shipper(journal, database.ledger, admission)
threading.Thread(target=shipper.run, args=(threading.Event(),), daemon=True).start()
price = PriceVersion("prb", Price(
    input_nanousd_per_million=10**6, cached_input_nanousd_per_million=10**6,
    output_nanousd_per_million=10**6))

async def client(name):
    number = 0
    while True:
        number += 1
        request_id = f"{life}-{name}-{number}"
        held = meter.reserve(
            request_id=request_id, tenant_id="ten_a", project_id="p", key_id="k", model="m",
            price=price, credit_floor_nanousd=0, prompt_tokens_max=10, output_tokens_max=500)
        meter.checkpoint(held, TokenUsage(10, 0, 1))
        await asyncio.sleep(0)
        tokens = 1 + number % 400
        await meter.durable(meter.settle(held, TokenUsage(10, 0, tokens), Outcome.FINISHED))
        print(request_id, 10 + tokens, flush=True)

async def main():
    await asyncio.gather(*(client(name) for name in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_every_answered_request_is_booked_once_at_its_price(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    database = open_sqlite(tmp_path / "headrace.db")
    database.ledger.credit("ten_a", 10**12, "credit", "paid")
    answered: dict[str, int] = {}
    for life in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", metering_process, str(tmp_path), str(life)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            for _ in range(rng.randrange(1, 400)):
                request_id, amount = process.stdout.readline().split()
                answered[request_id] = int(amount)
            process.kill()
    journal = Journal(tmp_path / "journal")
    admission = Admission(SystemClock())
    Meter(admission, journal).recover(database.ledger.snapshot())
    journal.close()
    Shipper(journal, database.ledger, admission).drain()
    with database.ledger._sessions.read() as connection:
        query = select(settlements.c.request_id, settlements.c.amount_nanousd)
        booked = {row.request_id: row.amount_nanousd for row in connection.execute(query)}
    assert journal.problems == []
    assert answered.items() <= booked.items()
    assert database.ledger.balances() == {"ten_a": 10**12 - sum(booked.values())}
    assert admission.available_nanousd("ten_a") == database.ledger.balances()["ten_a"]
    assert database.ledger.check() == []
    database.close()

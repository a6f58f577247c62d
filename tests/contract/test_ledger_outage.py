"""Half an hour without a database: requests go on, the journal is bounded, nothing is lost."""

from contextlib import closing
from pathlib import Path

import pytest

from headrace.base.errors import Unavailable
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.ledger.shipper import Shipper
from headrace.sim.clock import ManualClock
from headrace.sim.postgres_server import PostgresServer
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import open_postgres

outage_s = 1_800
requests_per_s = 2
wait_s = 30.0
price = PriceVersion(
    "prb_a",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)


@pytest.fixture
def server(open_directory: Path) -> PostgresServer:
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    server = PostgresServer(open_directory / "outage")
    server.create()
    server.start()
    return server


def test_half_an_hour_without_a_database_loses_nothing(
    server: PostgresServer, tmp_path: Path
) -> None:
    clock = ManualClock()
    limits = JournalLimits(segment_bytes=256 * 1024, total_bytes=8 * 1024 * 1024)
    journal = Journal(tmp_path / "journal", limits)
    try:
        with closing(open_postgres(server.url, clock)) as database:
            admission = Admission(clock)
            meter = Meter(admission, journal)
            meter.recover(database.ledger.snapshot())
            shipper = Shipper(journal, database.ledger, admission)
            use(meter, clock, first=0, count=100)
            shipper.drain()
            server.kill()
            sequence = use(meter, clock, first=100, count=outage_s * requests_per_s)
            journal.wait_durable(sequence, wait_s)
            with pytest.raises(Unavailable):
                shipper.ship_once()
            assert journal.status().total_bytes <= limits.total_bytes
            held = admission.available_nanousd("ten_a")
            server.start()
            shipper.drain()
            expected = 100 + outage_s * requests_per_s
            assert database.ledger.settlement_count() == expected
            assert database.ledger.balances() == {"ten_a": -15 * expected}
            assert admission.available_nanousd("ten_a") == held
            assert database.ledger.check() == []
            assert journal.status().total_bytes <= 3 * limits.segment_bytes
    finally:
        journal.close()
        server.stop()


def use(meter: Meter, clock: ManualClock, *, first: int, count: int) -> int:
    """So many requests of 15 tokens; where the last one stands in the journal."""
    sequence = 0
    for number in range(first, first + count):
        clock.advance(1 / requests_per_s)
        held = meter.reserve(
            request_id=f"r{number}",
            tenant_id="ten_a",
            project_id="prj_a",
            key_id="key_a",
            model="m",
            price=price,
            credit_floor_nanousd=None,
            prompt_tokens_max=100,
            output_tokens_max=100,
        )
        sequence = meter.settle(held, TokenUsage(10, 0, 5), Outcome.FINISHED)
        if number % 500 == 0:
            meter._journal.wait_durable(sequence, wait_s)  # as slow as a gateway's own requests
    return sequence

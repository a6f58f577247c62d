"""A price, a way to write reservations, and journals that close themselves."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.ledger.disk import Disk
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.reservation import Reservation
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import Database

OpenJournal = Callable[..., Journal]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def price() -> PriceVersion:
    """10 nano-dollars an input token, 1 a cached one, 30 an output token."""
    return PriceVersion(
        "prb_1",
        Price(
            input_nanousd_per_million=10_000_000,
            cached_input_nanousd_per_million=1_000_000,
            output_nanousd_per_million=30_000_000,
        ),
    )


@pytest.fixture
def reservation(price: PriceVersion) -> Callable[..., Reservation]:
    template = Reservation(
        request_id="",
        tenant_id="ten_a",
        project_id="prj_a",
        key_id="key_a",
        model="small",
        price=price,
        prompt_tokens_max=10,
        output_tokens_max=10,
        amount_nanousd=401,
        reserve_time=1_800_000_000.0,
    )

    def make(request_id: str, **changes: object) -> Reservation:
        return msgspec.structs.replace(template, request_id=request_id, **changes)

    return make


@pytest.fixture
def open_journal(tmp_path: Path, clock: ManualClock) -> Iterator[OpenJournal]:
    """Open `tmp_path/journal`; small limits, so that rotation and repair happen in a test."""
    opened: list[Journal] = []

    small = JournalLimits(segment_bytes=2_000, emergency_bytes=4_000, retry_s=0.001)

    def make(disk: Disk | None = None, limits: JournalLimits = small) -> Journal:
        journal = Journal(tmp_path / "journal", limits, disk, clock)
        opened.append(journal)
        return journal

    yield make
    for journal in opened:
        journal.close()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    opened = open_sqlite_copy(tmp_path / "headrace.db", clock)
    yield opened
    opened.close()

"""A fresh database, and settlements to book in it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.sim.clock import ManualClock
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.storage import Database, open_sqlite


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_sqlite(tmp_path / "headrace.db", ManualClock())
    yield opened
    opened.close()


@pytest.fixture
def settlement() -> Callable[..., Settlement]:
    template = Settlement(
        request_id="",
        tenant_id="ten_a",
        project_id="prj_a",
        key_id="key_a",
        model="small",
        usage=TokenUsage(10, 4, 6),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb_a",
        charge=Charge(input_nanousd=60, cached_input_nanousd=4, output_nanousd=36),
        settle_time=1_800_000_000.0,
    )

    def make(request_id: str, **changes: object) -> Settlement:
        return msgspec.structs.replace(template, request_id=request_id, **changes)

    return make

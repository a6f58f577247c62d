"""A report an hour, also of the hours that nobody led; no token between two of them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.control.hourly_reconciliation import (
    HourlyReconciliation,
    decode_rows,
    hour_s,
    kept_hours,
    made_up_hours_max,
    settle_delay_s,
)
from headrace.control.metrics import ControlMetrics
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Replica, ReplicaState
from headrace.spec.settlements import Outcome, Settlement, TokenUsage, UsageSource
from headrace.storage import Database
from headrace.storage.engine_samples import EngineSample

start_s = 1_800_000_000.0 // hour_s * hour_s


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.advance(start_s - clock.wall_s())
    return clock


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with closing(open_sqlite_copy(tmp_path / "headrace.db", clock)) as opened:
        opened.store.create(
            Replica(
                id="rep_1",
                name="r",
                create_time=0.0,
                state=ReplicaState.ACTIVE,
                engine="vllm",
                model_name="small",
            )
        )
        yield opened


@pytest.fixture
def live(database: Database, clock: ManualClock) -> Callable[..., None]:
    """Let minutes pass in each of which the replica takes one prompt token, billed or not."""
    counted = [0]

    def pass_minutes(minutes: int, *, bills: bool = True) -> None:
        for _ in range(minutes):
            clock.advance(30.0)
            counted[0] += 1
            if bills:
                database.ledger.post([settlement(f"req_{counted[0]}", clock.wall_s())])
            clock.advance(30.0)
            database.engine_samples.add(
                [
                    EngineSample(
                        replica_id="rep_1",
                        sample_time=clock.wall_s(),
                        generation="1",
                        prompt_tokens=counted[0],
                        completion_tokens=0,
                        running_requests=0,
                    )
                ]
            )

    return pass_minutes


def settlement(request_id: str, at: float) -> Settlement:
    return Settlement(
        request_id=request_id,
        tenant_id="ten_1",
        project_id="prj_1",
        key_id="key_1",
        model="small",
        usage=TokenUsage(1),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id=None,
        charge=None,
        settle_time=at,
        replica_id="rep_1",
    )


def test_an_hour_is_reported_once_its_settlements_had_time(
    database: Database, clock: ManualClock, live: Callable[..., None]
) -> None:
    hourly = HourlyReconciliation(database, clock)
    live(64)
    assert hourly.make_due() == 1  # of the hour before, when nothing was there
    live(1)
    clock.advance(settle_delay_s)
    assert hourly.make_due() == 1
    assert hourly.make_due() == 0
    (newest, _) = database.reconciliations.newest(10)
    assert (newest.begin_time, newest.end_time) == (start_s, start_s + hour_s)
    assert (newest.difference_tokens, newest.unexplained_tokens) == (0, 0)
    whole = database.reconciliations.covering(start_s + 1.0)
    assert whole is not None
    (row,) = decode_rows(whole.body)
    assert (row.engine, row.model, row.compared.requests) == ("vllm", "small", 59)


def test_no_token_is_between_two_reports(
    database: Database, clock: ManualClock, live: Callable[..., None]
) -> None:
    live(1)
    hourly = HourlyReconciliation(database, clock)
    hourly.make_due()
    live(4 * 60)
    clock.advance(settle_delay_s)
    hourly.make_due()
    rows = [
        decode_rows(report.body)[0].compared
        for n in range(4)
        if (report := database.reconciliations.covering(start_s + n * hour_s)) is not None
    ]
    assert [row.engine_prompt_tokens for row in rows] == [59, 60, 60, 60]
    assert [row.until for row in rows[:-1]] == [row.since for row in rows[1:]]
    assert [row.difference_tokens for row in rows] == [0] * 4


def test_a_difference_is_named_and_made_again_until_it_is_explained(
    database: Database, clock: ManualClock, live: Callable[..., None]
) -> None:
    hourly = HourlyReconciliation(database, clock)
    metrics = ControlMetrics(database, clock, lambda: True)
    live(30)
    hourly.make_due()
    unbilled_s = clock.wall_s() + 30.0
    live(1, bills=False)
    live(34)
    clock.advance(settle_delay_s)
    hourly.make_due()
    newest = database.reconciliations.newest(1)[0]
    assert (newest.difference_tokens, newest.unexplained_tokens) == (1, 1)
    assert b"headrace_control_reconciliation_unexplained_tokens 1" in metrics.text()
    database.ledger.post([settlement("req_late", unbilled_s)])  # by a gateway that was away
    live(60)
    assert hourly.make_due() == 2
    assert [each.unexplained_tokens for each in database.reconciliations.newest(3)] == [0, 0, 0]
    assert b"headrace_control_reconciliation_unexplained_tokens 0" in metrics.text()


def test_hours_without_a_leader_are_made_up_for_and_old_ones_forgotten(
    database: Database, clock: ManualClock
) -> None:
    hourly = HourlyReconciliation(database, clock)
    metrics = ControlMetrics(database, clock, lambda: True)
    hourly.make_due()
    clock.advance(5 * hour_s)
    assert f"reconciliation_age_seconds {6 * hour_s:.0f}".encode() in metrics.text()
    assert hourly.make_due() == 5
    assert f"reconciliation_age_seconds {hour_s:.0f}".encode() in metrics.text()
    clock.advance(100 * hour_s)
    assert hourly.make_due() == made_up_hours_max
    assert len(database.reconciliations.newest(1000)) == 6 + made_up_hours_max
    clock.advance(kept_hours * hour_s)
    hourly.make_due()
    assert len(database.reconciliations.newest(1000)) == made_up_hours_max

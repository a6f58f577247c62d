"""Events are kept once, deliveries until they are over, and both within a bound."""

import msgspec
import pytest

from headrace.spec.events import DeliveryState, Event, EventType
from headrace.storage import Database
from headrace.storage import events as events_module


def event(number: int, occasion: str = "") -> Event:
    return Event(
        id=f"evt_{number}",
        type=EventType.BUDGET_THRESHOLD,
        tenant_id="ten_1",
        occasion=occasion or f"occasion {number}",
        create_time=float(number),
        data={"threshold_percent": 50},
    )


def test_an_occasion_is_one_event(database: Database) -> None:
    assert database.events.add(event(1, "half"), ["whk_1", "whk_2"])
    assert not database.events.add(event(2, "half"), ["whk_1"])
    assert database.events.known_occasions(["half", "full"]) == {"half"}
    assert [d.event.id for d in database.events.due(9.0, 9)] == ["evt_1", "evt_1"]


def test_a_repeated_occasion_leaves_the_rest_of_its_transaction(database: Database) -> None:
    database.events.add(event(1, "half"), [])
    with database.transaction():
        assert not database.events.add(event(2, "half"), ["whk_1"])
        assert database.events.add(event(3), ["whk_1"])
    assert [d.event for d in database.events.due(9.0, 9)] == [event(3)]


def test_deliveries_come_due_and_are_saved(database: Database) -> None:
    database.events.add(event(5), ["whk_1"])
    assert database.events.due(4.0, 9) == []
    (due,) = database.events.due(5.0, 9)
    assert (due.event, due.state, due.attempts) == (event(5), DeliveryState.PENDING, 0)
    later = msgspec.structs.replace(due, attempts=1, next_attempt_time=50.0, last_status=500)
    database.events.save(later)
    assert database.events.due(49.0, 9) == []
    assert database.events.due(50.0, 9) == [later]
    assert database.events.pending_count("whk_1") == 1
    done = msgspec.structs.replace(later, state=DeliveryState.DELIVERED, last_error="x")
    database.events.save(done)
    assert database.events.due(99.0, 9) == []
    assert database.events.deliveries("whk_1", 9) == [done]
    assert database.events.pending_count("whk_1") == 0
    database.events.drop_webhook("whk_1")
    assert database.events.deliveries("whk_1", 9) == []


def test_the_oldest_that_wait_for_nothing_are_forgotten(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "events_max", 2)
    monkeypatch.setattr(events_module, "trim_interval_events", 3)
    database.events.add(event(1), ["whk_1"])
    for number in (2, 3, 4):
        database.events.add(event(number), [])
    names = [f"occasion {number}" for number in (1, 2, 3, 4)]
    assert database.events.known_occasions(names) == {"occasion 1", "occasion 4"}


def test_events_are_counted_once_in_many(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "trim_interval_events", 5)
    looks: list[object] = []
    monkeypatch.setattr(events_module, "_forget_oldest", looks.append)
    for number in range(11):
        database.events.add(event(number), [])
    assert len(looks) == 3  # the first, the sixth, the eleventh


def test_what_is_forgotten_at_once_is_bounded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        database.events.add(event(number), [])
    monkeypatch.setattr(events_module, "events_max", 1)
    monkeypatch.setattr(events_module, "trim_interval_events", 1)
    monkeypatch.setattr(events_module, "trimmed_events_max", 4)
    database.events.add(event(6), [])
    names = [f"occasion {number}" for number in range(7)]
    assert database.events.known_occasions(names) == set(names[4:])


def test_more_occasions_than_one_question_may_name(database: Database) -> None:
    assert database.events.add(event(1, "o-69999"), [])
    asked = [f"o-{number}" for number in range(70_000)]
    assert database.events.known_occasions(asked) == {"o-69999"}

"""A name is looked at once however often it was woken."""

from headrace.control.work_queue import WorkQueue


def test_many_wake_ups_are_one_look_at_the_earliest_time() -> None:
    queue = WorkQueue()
    for due_s in (5.0, 2.0, 9.0):
        queue.add("a", due_s)
    assert queue.next_due_s() == 2.0
    assert queue.take(1.9) is None
    assert queue.take(2.0) == "a"
    assert queue.take(100.0) is None
    assert len(queue) == 0


def test_a_name_woken_while_it_is_worked_on_is_due_again() -> None:
    queue = WorkQueue()
    queue.add("a", 0.0)
    assert queue.take(0.0) == "a"
    queue.add("a", 1.0)
    assert queue.take(1.0) == "a"


def test_names_come_in_the_order_of_their_times() -> None:
    queue = WorkQueue()
    queue.add("late", 3.0)
    queue.add("early", 1.0)
    assert [queue.take(10.0), queue.take(10.0), queue.take(10.0)] == ["early", "late", None]

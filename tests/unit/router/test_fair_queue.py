"""Who goes next: classes, tenants, age; and who must go when the queue is full."""

from headrace.router.fair_queue import FairQueue, Ticket, passed_over_max, quantum_tokens
from headrace.spec.priority import Priority

interactive, standard, batch = Priority


def ticket(
    name: str, tenant_id: str = "a", priority: Priority = standard, tokens: int = 100
) -> Ticket[str]:
    return Ticket(tenant_id, priority, tokens, name)


def filled(*tickets: Ticket[str], requests_max: int = 100) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue(requests_max)
    for item in tickets:
        assert queue.push(item) is None
    return queue


def start(queue: FairQueue[str]) -> Ticket[str]:
    following = queue.next()
    assert following is not None
    assert queue.next() is following  # asking changes nothing
    queue.start(following)
    return following


def order(queue: FairQueue[str]) -> list[str]:
    return [start(queue).item for _ in range(len(queue))]


def test_an_empty_queue_names_nobody() -> None:
    assert filled().next() is None


def test_one_tenants_requests_go_by_age() -> None:
    assert order(filled(*(ticket(name) for name in "xyz"))) == ["x", "y", "z"]


def test_a_higher_class_goes_first() -> None:
    queue = filled(ticket("b", priority=batch), ticket("s"), ticket("i", "c", priority=interactive))
    assert order(queue) == ["i", "s", "b"]


def test_tenants_take_turns_by_tokens_not_by_requests() -> None:
    big = [ticket(f"big{n}", "big", tokens=quantum_tokens) for n in range(4)]
    small = [ticket(f"small{n}", "small", tokens=quantum_tokens // 4) for n in range(16)]
    names = order(filled(*big, *small))
    for turn in range(4):
        started = names[turn * 5 : turn * 5 + 5]
        assert sum(name.startswith("big") for name in started) == 1


def test_a_request_beyond_many_quanta_gets_its_turn() -> None:
    queue = filled(ticket("huge", "a", tokens=50 * quantum_tokens))
    for number in range(200):
        queue.push(ticket(f"n{number}", "b", tokens=quantum_tokens))
    names = order(queue)
    assert 45 <= names.index("huge") <= 55


def test_what_a_request_was_charged_and_did_not_use_counts_for_its_tenants_next() -> None:
    """`boastful` declares four quanta and uses one: in the long run it gets what `plain` gets."""
    queue = filled(*(ticket(f"{n}", "plain", tokens=quantum_tokens) for n in range(64)))
    for number in range(64):
        queue.push(ticket(f"{number}", "boastful", tokens=4 * quantum_tokens))
    started = []
    for _ in range(64):
        following = start(queue)
        started.append(following.tenant_id)
        queue.give_back(following.tenant_id, standard, following.tokens - quantum_tokens)
    assert 28 <= started.count("boastful") <= 32


def test_what_was_used_beyond_its_charge_is_owed() -> None:
    queue = filled(*(ticket(f"{n}", "modest", tokens=quantum_tokens) for n in range(64)))
    for number in range(64):
        queue.push(ticket(f"{number}", "sly", tokens=quantum_tokens))
    started = []
    for _ in range(40):
        following = start(queue)
        started.append(following.tenant_id)
        if following.tenant_id == "sly":
            queue.give_back("sly", standard, -3 * quantum_tokens)
    assert started.count("sly") in (8, 9)


def test_who_has_left_the_queue_has_no_account() -> None:
    queue = filled(ticket("x"))
    start(queue)
    queue.give_back("a", standard, 50 * quantum_tokens)
    queue.push(ticket("y", "b", tokens=quantum_tokens))
    for number in range(4):
        queue.push(ticket(f"a{number}", "a", tokens=quantum_tokens))
    assert order(queue)[:3] != ["a0", "a1", "a2"]


def test_a_class_that_is_passed_over_long_enough_goes_next() -> None:
    queue = filled(ticket("batch", priority=batch))
    for number in range(50):
        queue.push(ticket(f"i{number}", "b", interactive))
    assert order(queue).index("batch") == passed_over_max


def test_the_age_of_a_class_begins_when_it_begins_to_wait() -> None:
    queue = filled(*(ticket(f"i{n}", "b", interactive) for n in range(60)))
    first = ticket("gone", priority=batch)
    queue.push(first)
    for _ in range(passed_over_max):
        start(queue)
    queue.discard(first)
    queue.push(ticket("late", priority=batch))
    assert start(queue).item != "late"


def test_a_discarded_request_is_never_named_and_may_be_discarded_again() -> None:
    gone, kept = ticket("gone"), ticket("kept")
    queue = filled(gone, kept)
    queue.discard(gone)
    queue.discard(gone)
    assert (len(queue), queue.waiting_tokens) == (1, kept.tokens)
    assert order(queue) == ["kept"]


def test_a_full_queue_displaces_the_youngest_of_the_lowest_class() -> None:
    old, young = ticket("old", priority=batch), ticket("young", "c", batch)
    queue = filled(ticket("x"), old, young, requests_max=3)
    queue.push(ticket("more of c", "c", batch))
    assert queue.push(ticket("y", "d")) in (old, young)
    assert len(queue) == 3


def test_a_full_queue_displaces_the_youngest_of_whoever_floods() -> None:
    flood = [ticket(f"f{n}", "flooder") for n in range(4)]
    queue = filled(*flood, requests_max=4)
    newcomer = ticket("new", "other")
    assert queue.push(newcomer) is flood[-1]
    assert order(queue) == ["f0", "f1", "f2", "new"]  # one quantum pays for three small ones


def test_a_full_queue_refuses_the_flooder_itself() -> None:
    queue = filled(*(ticket(f"f{n}", "flooder") for n in range(4)), requests_max=4)
    own = ticket("one more", "flooder")
    assert queue.push(own) is own
    assert len(queue) == 4


def test_a_full_queue_refuses_a_lower_class() -> None:
    queue = filled(*(ticket(f"i{n}", "a", interactive) for n in range(4)), requests_max=4)
    lower = ticket("batch", "b", batch)
    assert queue.push(lower) is lower

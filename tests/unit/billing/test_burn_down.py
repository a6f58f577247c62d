"""Grants are used in their order, and never beyond what they are."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.billing.burn_down import left_of
from headrace.spec.grants import Grant

Uses = list[tuple[float, int]]  # time and nano-dollars


def grant(
    name: str, amount: int, start: float = 0, expire: float | None = None, priority: int = 50
) -> Grant:
    return Grant(
        id=name,
        name=name,
        parent_id="ten",
        create_time=start,
        amount_nanousd=amount,
        start_time=start,
        expire_time=expire,
        priority=priority,
    )


def left(grants: Sequence[Grant], uses: Uses, until: float) -> dict[str, int]:
    def used(since_s: float, until_s: float) -> int:
        return sum(amount for time, amount in uses if since_s <= time < until_s)

    return left_of(grants, used, until)


def test_priority_then_expiry_then_age() -> None:
    grants = [
        grant("plain", 10),
        grant("soon", 10, expire=50),
        grant("later", 10, expire=90),
        grant("first", 10, priority=1),
    ]
    assert left(grants, [(1, 25)], 10) == {"first": 0, "soon": 0, "later": 5, "plain": 10}


def test_what_is_used_after_an_expiry_is_not_taken_from_it() -> None:
    grants = [grant("soon", 10, expire=50), grant("plain", 10)]
    assert left(grants, [(49.9, 4), (50, 3)], 60) == {"soon": 6, "plain": 7}


def test_use_before_a_grant_is_not_its_own() -> None:
    assert left([grant("new", 10, start=5)], [(4, 8), (5, 3)], 9) == {"new": 7}
    assert left([grant("new", 10, start=5)], [], 4) == {}


def slow(grants: Sequence[Grant], uses: Uses, until: float) -> dict[str, int]:
    """One use at a time, each from the best grant of its moment."""
    left_by_id = {each.id: each.amount_nanousd for each in grants if each.start_time <= until}
    for time, amount in sorted(uses):
        if time >= until:
            continue
        for _ in range(amount):
            held = [
                each
                for each in grants
                if each.start_time <= time
                and (each.expire_time is None or time < each.expire_time)
                and left_by_id[each.id]
            ]
            if held:
                best = min(
                    held,
                    key=lambda each: (
                        each.priority,
                        each.expire_time if each.expire_time is not None else 1e18,
                        each.start_time,
                        each.id,
                    ),
                )
                left_by_id[best.id] -= 1
    return left_by_id


moments = st.integers(0, 20)
some_grants = st.lists(
    st.tuples(st.integers(1, 12), moments, st.none() | st.integers(1, 10), st.integers(0, 2)),
    max_size=5,
)


@given(some_grants, st.lists(st.tuples(moments, st.integers(0, 9)), max_size=8), moments)
def test_it_equals_taking_one_nano_dollar_at_a_time(
    terms: list[tuple[int, int, int | None, int]], uses: list[tuple[int, int]], until: int
) -> None:
    grants = [
        grant(f"g{index}", amount, start, None if life is None else start + life, priority)
        for index, (amount, start, life, priority) in enumerate(terms)
    ]
    exact: Uses = [(float(time), amount) for time, amount in uses]
    assert left(grants, exact, until) == slow(grants, exact, until)

"""Ids are unique, name their kind and sort by time."""

import re

from headrace.base.ids import alphabet, body_length, new_id
from headrace.sim.clock import ManualClock


def test_an_id_names_its_kind_and_has_a_fixed_shape() -> None:
    assert re.fullmatch(rf"req_[{alphabet}]{{{body_length}}}", new_id("req", ManualClock()))


def test_later_ids_sort_behind_earlier_ones() -> None:
    clock = ManualClock()
    ids = []
    for _ in range(50):
        ids.append(new_id("req", clock))
        clock.advance(0.001)
    assert ids == sorted(ids)


def test_ids_of_one_moment_differ() -> None:
    clock = ManualClock()
    assert len({new_id("req", clock) for _ in range(1000)}) == 1000

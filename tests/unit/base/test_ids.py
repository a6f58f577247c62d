"""Ids are unique, name their kind and sort by time."""

import multiprocessing
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import alphabet, body_length, new_id, random_length
from headrace.sim.clock import ManualClock

ids_each = 2000  # several draws of random halves


def make_many(count: int) -> list[str]:
    clock = ManualClock()
    return [new_id("req", clock) for _ in range(count)]


def test_an_id_names_its_kind_and_has_a_fixed_shape() -> None:
    assert re.fullmatch(rf"req_[{alphabet}]{{{body_length}}}", new_id("req", ManualClock()))


@given(ms=st.integers(0, 2**48 - 1))
def test_the_first_half_is_the_time_in_base_32(ms: int) -> None:
    clock = ManualClock(wall_s=ms / 1000)
    text = new_id("req", clock).removeprefix("req_")[:-random_length]
    value = 0
    for letter in text:
        value = value * 32 + alphabet.index(letter)
    assert value == int(clock.wall_s() * 1000)


def test_later_ids_sort_behind_earlier_ones() -> None:
    clock = ManualClock()
    ids = []
    for _ in range(50):
        ids.append(new_id("req", clock))
        clock.advance(0.001)
    assert ids == sorted(ids)


def test_ids_of_one_moment_differ() -> None:
    assert len(set(make_many(ids_each))) == ids_each


def test_ids_of_many_threads_differ() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [name for ids in pool.map(make_many, [ids_each] * 8) for name in ids]
    assert len(set(made)) == 8 * ids_each


def test_a_forked_process_makes_other_ids() -> None:
    make_many(1)  # so that there are random halves left that the child could inherit
    with multiprocessing.get_context("fork").Pool(1) as pool:
        theirs = pool.apply(make_many, (100,))
    assert not {name[-random_length:] for name in theirs} & {
        name[-random_length:] for name in make_many(ids_each)
    }


def test_every_letter_is_about_as_likely() -> None:
    counts = Counter("".join(name[-random_length:] for name in make_many(ids_each)))
    expected = ids_each * random_length / len(alphabet)  # 1,000, so 6 sigma are 190
    assert set(counts) == set(alphabet)
    assert all(abs(count - expected) < 190 for count in counts.values())

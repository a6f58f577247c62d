"""Frames: what was written is read, and what was damaged is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ledger.frames import (
    Damage,
    encode_frame,
    header,
    magic,
    payload_bytes_max,
    read_frame,
    scan,
)

payloads = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8)


def written(contents: list[bytes]) -> list[bytes]:
    return [encode_frame(number, content) for number, content in enumerate(contents, 1)]


@given(payloads, st.integers(0, 50))
def test_frames_are_read_back_in_order_with_or_without_a_blank_tail(
    contents: list[bytes], blank_bytes: int
) -> None:
    data = b"".join(written(contents))
    found = scan(data + bytes(blank_bytes))
    assert [(frame.sequence, frame.payload) for frame in found.frames] == list(
        enumerate(contents, 1)
    )
    assert (found.damages, found.end, found.torn) == ([], len(data), False)


@given(payloads, st.data())
def test_a_cut_anywhere_leaves_the_whole_frames_before_it(
    contents: list[bytes], data: st.DataObject
) -> None:
    frames = written(contents)
    cut = data.draw(st.integers(0, sum(map(len, frames))))
    found = scan(b"".join(frames)[:cut])
    ends = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    assert len(found.frames) == sum(end <= cut for end in ends)
    assert found.damages == []
    assert found.torn == (cut not in [0, *ends])


@given(payloads, st.data())
def test_a_flipped_bit_costs_one_frame_and_no_other(
    contents: list[bytes], data: st.DataObject
) -> None:
    frames = written(contents)
    victim = data.draw(st.integers(0, len(frames) - 1))
    offset = data.draw(st.integers(0, len(frames[victim]) - 1))
    damaged = bytearray(frames[victim])
    damaged[offset] ^= 1 << data.draw(st.integers(0, 7))
    stream = b"".join([*frames[:victim], bytes(damaged), *frames[victim + 1 :]])
    sequences = [frame.sequence for frame in scan(stream).frames]
    assert sequences == [number for number in range(1, len(frames) + 1) if number != victim + 1]


def test_damage_in_the_middle_is_located() -> None:
    first, second, third = written([b"a", b"b", b"c"])
    found = scan(first + b"\xff" * len(second) + third)
    assert [frame.sequence for frame in found.frames] == [1, 3]
    assert found.damages == [Damage(len(first), len(first) + len(second))]


def test_a_payload_that_looks_like_a_frame_is_no_frame() -> None:
    inner = encode_frame(9, b"inner")
    outer = encode_frame(1, magic + inner)
    assert [frame.sequence for frame in scan(outer).frames] == [1]


@pytest.mark.parametrize("size", [0, payload_bytes_max + 1])
def test_payloads_out_of_bounds_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a journal record has"):
        encode_frame(1, bytes(size))


def test_a_length_beyond_the_bound_is_not_believed() -> None:
    data = header.pack(magic, payload_bytes_max + 1, 1, 0) + bytes(payload_bytes_max + 1)
    assert read_frame(data, 0) is None

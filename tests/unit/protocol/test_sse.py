from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.sse import (
    EventTooLarge,
    SseDecoder,
    SseEvent,
    encode_event,
    heartbeat,
)

stream = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b"data: one\r\n\r\n"
    b"event: error\rdata: two\rdata: more\r\r"
    b"id: 7\nretry: 1\ndata:three\n\n"
    b"\n\n"
    b"data\n\n"
    b"event: nothing\n\n"
    b"data: caf\xc3\xa9\n\ndata: unfinished"
)
expected = [
    SseEvent(b"one"),
    SseEvent(b"two\nmore", "error"),
    SseEvent(b"three"),
    SseEvent(b""),
    SseEvent("café".encode()),
]


def decode(pieces: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@given(st.lists(st.integers(0, len(stream)), max_size=8))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert decode(pieces) == expected


def test_events_arrive_byte_by_byte() -> None:
    assert decode([bytes([byte]) for byte in stream]) == expected


@given(st.binary(max_size=40), st.sampled_from(["", "error"]))
def test_what_is_encoded_is_decoded(data: bytes, name: str) -> None:
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decode([encode_event(data, name)]) == [SseEvent(lines, name)]


def test_an_empty_piece_inside_a_line_end_changes_nothing() -> None:
    assert decode([b"data: a\r", b"", b"\ndata: b\r\n", b"\r\n"]) == [SseEvent(b"a\nb")]


def test_a_heartbeat_is_no_event() -> None:
    assert decode([heartbeat, encode_event(b"x")]) == [SseEvent(b"x")]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 20, b"data: 1234567\n" * 3, b":" + b"c" * 30])
def test_an_event_over_the_bound_is_refused(piece: bytes) -> None:
    with pytest.raises(EventTooLarge):
        SseDecoder(event_bytes_max=16).feed(piece)


def test_many_events_under_the_bound_pass() -> None:
    decoder = SseDecoder(event_bytes_max=16)
    assert len(decoder.feed(encode_event(b"12345") * 100)) == 100

"""Forms in any cut of bytes; what is no form is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequest
from headrace.gateway.multipart import (
    MultipartReader,
    PartBegun,
    PartData,
    boundary_of,
    header_bytes_max,
)

boundary = b"xyz"


def form(content: bytes) -> bytes:
    return (
        b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
        b"Content-Type: text/plain\r\n\r\n" + content + b"\r\n--xyz--\r\n"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r\n", b"--", b"--xy", b"\r\n--xy", b"a", b"\0"])).map(b"".join),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_any_cut_gives_the_same_parts(content: bytes, cuts: list[int]) -> None:
    data, reader = form(content), MultipartReader(boundary)
    parts: list[tuple[PartBegun, bytes]] = []
    at = number = 0
    while at < len(data):
        size = cuts[number % len(cuts)]
        for event in reader.feed(data[at : at + size]):
            if isinstance(event, PartBegun):
                parts.append((event, b""))
            else:
                assert isinstance(event, PartData)
                begun, so_far = parts.pop()
                parts.append((begun, so_far + event.data))
        at, number = at + size, number + 1
    assert reader.is_over
    assert parts == [
        (PartBegun("purpose", None), b"batch"),
        (PartBegun("file", "a.jsonl", "text/plain"), content),
    ]


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "multipart/form-data", "multipart/form-data; boundary="],
)
def test_what_is_no_form_is_refused(content_type: str | None) -> None:
    with pytest.raises(InvalidRequest):
        boundary_of(content_type)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"\r\n--xyz", b"\r\n--xyz--", b"\r\n\r\n", b"--", b"a: b", b"x" * 3000])
    ),
    st.integers(1, 5000),
)
def test_what_is_held_is_bounded_whatever_comes(kinds: list[bytes], size: int) -> None:
    """Also before the first part and behind the end."""
    reader, data = MultipartReader(boundary), b"".join(kinds) + b"\r\n--xyz--" + b"y" * 50_000
    try:
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
            assert len(reader._buffer) <= header_bytes_max + len(b"\r\n--xyz") + 2 * size
    except InvalidRequest:
        return  # no form
    assert reader.is_over


def test_headers_without_an_end_are_refused() -> None:
    reader = MultipartReader(boundary)
    with pytest.raises(InvalidRequest, match="too large"):
        reader.feed(b"--xyz\r\n" + b"a" * 10_000)

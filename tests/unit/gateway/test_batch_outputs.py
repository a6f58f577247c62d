"""What a batch has written is read again wherever a crash cut it, but for what is torn."""

import errno
from typing import BinaryIO, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway.batch_values import LineResponse, OutputLine, done_ids
from headrace.gateway.batch_work import write_whole


def line(number: int) -> bytes:
    response = LineResponse(200, f"batch.{number}", msgspec.Raw(b'{"text":"\\u00e9"}'))
    return msgspec.json.encode(OutputLine(f"r{number}", f"id {number}", response)) + b"\n"


lines = [line(number) for number in range(4)]
whole = b"".join(lines)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, len(whole)),
    st.sampled_from([b"", b"\0" * 40, b"\0" * 40 + b"\n", b"\xff\n", b"[]\n", b"\n", b'{"a":1}\n']),
)
def test_whole_lines_are_kept_and_the_rest_is_cut(
    tmp_path_factory: pytest.TempPathFactory, end: int, garbage: bytes
) -> None:
    path = tmp_path_factory.mktemp("batch") / "output"
    path.write_bytes(whole[:end] + garbage)
    is_completed = garbage == b"\n" == whole[end : end + 1]  # it was the end of a line
    kept = whole[:end].count(b"\n") + is_completed
    assert done_ids(path) == {f"id {number}" for number in range(kept)}
    assert path.read_bytes() == b"".join(lines[:kept])
    with path.open("ab", buffering=0) as file:
        for each in lines[kept:]:
            write_whole(cast(BinaryIO, file), each)
    assert path.read_bytes() == whole


class NearlyFullDisk:
    """A file for which there is so much room, as the system's own: writes are short at its end."""

    def __init__(self, room: int) -> None:
        self.data = b""
        self._room = room

    def write(self, data: memoryview) -> int:
        taken = bytes(data[: self._room - len(self.data)])
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += taken
        return len(taken)


def test_a_line_that_has_no_room_is_an_error_and_not_half_of_an_answer() -> None:
    file = NearlyFullDisk(len(lines[0]) + 10)
    write_whole(cast(BinaryIO, file), lines[0])
    with pytest.raises(OSError, match="No space"):
        write_whole(cast(BinaryIO, file), lines[1])
    assert file.data == (lines[0] + lines[1])[: len(lines[0]) + 10]

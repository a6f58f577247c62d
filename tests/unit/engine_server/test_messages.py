import struct
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine_server import messages
from headrace.engine_server.messages import BrokenFrame, FrameBuffer, encode_frame

submit = messages.Submit("r", [1, 2], 0.5, 0, 1.0, 0.0, 2**64 - 1, 5, 0, [7], "salt")
to_engine: list[Any] = [
    messages.EngineConfig("m.gguf", 4096, 8, 128, 100, "m", threads=2),
    submit,
    messages.Abort("r"),
    messages.AskStats(),
]
from_engine: list[Any] = [
    messages.Loading("weights", 0.5),
    messages.Ready(2048, 49152, "avx2", 256, 16),
    messages.Failed("bad file"),
    messages.Rejected("r", "invalid_request", "no", "prompt", None, {"prompt_tokens": 3}),
    messages.Outputs([messages.Output("r", [5], "stop", 3, 0, 1)]),
    messages.Stats(running_requests=2, step_seconds_total=0.5),
]


@given(st.lists(st.integers(0, 500), max_size=6))
def test_frames_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = b"".join(map(encode_frame, to_engine))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    buffer = FrameBuffer()
    bodies = [body for start, end in pairwise(edges) for body in buffer.feed(stream[start:end])]
    decode = msgspec.msgpack.Decoder(messages.ToEngine).decode
    assert [decode(body) for body in bodies] == to_engine


def test_every_message_of_the_engine_survives_the_wire() -> None:
    decode = msgspec.msgpack.Decoder(messages.FromEngine).decode
    bodies = FrameBuffer().feed(b"".join(map(encode_frame, from_engine)))
    assert [decode(body) for body in bodies] == from_engine


def test_a_frame_over_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(BrokenFrame):
        FrameBuffer().feed(struct.pack(">I", messages.frame_bytes_max + 1))


def test_a_message_over_the_bound_is_not_sent() -> None:
    with pytest.raises(BrokenFrame):
        encode_frame(messages.Loading("x" * (messages.frame_bytes_max + 1), 0.0))

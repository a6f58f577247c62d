"""Chunks keep their meaning, whatever the engine and however the bytes are cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.registry import find_adapter
from headrace.base.errors import UpstreamFailed
from headrace.gateway.rewriter import StreamRewriter, rewrite_whole
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.responses import Usage
from headrace.protocol.sse import SseDecoder, done_event
from headrace.spec.settlements import TokenUsage

texts = ["Grüße", ' "quoted"\n', " 🚆", ""]


def engine_stream() -> bytes:
    """Our engine's stream of `texts`, with every usage that can be asked for."""
    chunks = ChunkWriter("chat", "chatcmpl-1", 7, "internal-name", usage_chunk=True)
    stream = chunks.opening(Usage.of(5, 2, 0))
    for count, text in enumerate(texts, start=1):
        stream += chunks.text(text, Usage.of(5, 2, count))
    usage = Usage.of(5, 2, len(texts))
    return stream + chunks.finish("stop", usage) + chunks.usage(usage) + done_event


def make(*, usage_chunk: bool = False, every: bool = False) -> StreamRewriter:
    adapter = find_adapter("headrace")
    return StreamRewriter("logical", adapter, usage_chunk=usage_chunk, usage_in_every_chunk=every)


def decoded(data: bytes) -> list[Any]:
    return [json.loads(event.data) for event in SseDecoder().feed(data)]


def test_only_the_name_and_the_usage_change() -> None:
    sent = decoded(make().feed(engine_stream()))
    original = decoded(engine_stream().removesuffix(done_event))[:-1]
    for chunk in original:
        del chunk["usage"]
        chunk["model"] = "logical"
    assert sent == original


@given(st.lists(st.integers(0, len(engine_stream())), max_size=6), st.booleans(), st.booleans())
def test_where_the_bytes_are_cut_changes_nothing(
    cuts: list[int], usage_chunk: bool, every: bool
) -> None:
    stream = engine_stream()
    whole = make(usage_chunk=usage_chunk, every=every).feed(stream)
    rewriter = make(usage_chunk=usage_chunk, every=every)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [rewriter.feed(stream[start:end]) for start, end in pairwise(edges)]
    assert b"".join(pieces) == whole
    assert all(piece.endswith(b"\n\n") for piece in pieces if piece)  # whole events only
    assert rewriter.is_done
    assert rewriter.usage == TokenUsage(5, 2, len(texts))


def test_usage_is_null_before_the_last_chunk_when_only_that_was_asked_for() -> None:
    *chunks, last = decoded(make(usage_chunk=True).feed(engine_stream()))
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_comments_and_unknown_fields_of_other_engines_pass() -> None:
    data = b': ping\n\ndata: {"choices":[{"delta":{}}],"model":"x","vendor":{"a":[1]}}\n\n'
    (chunk,) = decoded(make().feed(data))
    assert chunk == {"choices": [{"delta": {}}], "model": "logical", "vendor": {"a": [1]}}


@pytest.mark.parametrize(
    "reported", ["null", '{"prompt_tokens":3,"completion_tokens":null,"total_tokens":3}', "{}"]
)
def test_odd_usage_of_other_engines_is_read(reported: str) -> None:
    rewriter = make()
    rewriter.feed(b'data: {"choices":[{}],"usage":' + reported.encode() + b"}\n\n")
    assert rewriter.usage in (None, TokenUsage(3, 0, 0), TokenUsage())


def test_more_cached_than_prompt_tokens_are_cut() -> None:
    body = (
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,'
        b'"prompt_tokens_details":{"cached_tokens":9}}}'
    )
    assert rewrite_whole(body, "logical").usage == TokenUsage(3, 3, 1)


def test_an_error_stops_the_stream_and_is_not_passed_on_raw() -> None:
    rewriter = make()
    sent = rewriter.feed(
        b'data: {"error":{"message":"/secret/path"}}\n\ndata: {"choices":[{}]}\n\n'
    )
    assert sent == b""
    assert rewriter.error_body is not None


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b'data: "x"\n\n'])
def test_malformed_chunks_are_the_engines_fault(data: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        make().feed(data)


def test_a_malformed_answer_is_the_engines_fault() -> None:
    with pytest.raises(UpstreamFailed):
        rewrite_whole(b"<html>", "logical")


def test_what_only_the_running_counts_tell_stays_known_behind_the_last_usage() -> None:
    adapter = find_adapter("llama_cpp")
    rewriter = StreamRewriter("logical", adapter, usage_chunk=True, usage_in_every_chunk=False)
    rewriter.feed(
        b'data: {"choices":[{}],"timings":{"prompt_n":3,"predicted_n":4,"draft_n":9,'
        b'"draft_n_accepted":3}}\n\n'
    )
    assert rewriter.usage == TokenUsage(3, 0, 4, draft_tokens=6)
    rewriter.feed(b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n')
    assert rewriter.usage == TokenUsage(3, 0, 5, draft_tokens=6)


def test_the_usage_that_a_client_is_owed_names_refused_drafts() -> None:
    adapter = find_adapter("llama_cpp")
    rewriter = StreamRewriter("logical", adapter, usage_chunk=True, usage_in_every_chunk=False)
    sent = rewriter.feed(
        b'data: {"choices":[{}],"timings":{"prompt_n":3,"predicted_n":4,"draft_n":9,'
        b'"draft_n_accepted":3}}\n\n' + done_event
    )
    owed = decoded(sent.removesuffix(done_event))[-1]
    assert owed["choices"] == []
    assert owed["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 6


def test_nobody_counted_is_none_and_stays_so() -> None:
    rewriter = make()
    rewriter.feed(b'data: {"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n')
    usage = rewriter.usage
    assert usage is not None
    assert (usage.reasoning_tokens, usage.draft_tokens, usage.image_tokens) == (None, None, None)

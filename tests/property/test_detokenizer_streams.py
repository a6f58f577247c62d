"""Streamed text is unstreamed text, for every cutting of any tokens, valid or not."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.tokenizer.detokenizer import IncrementalDetokenizer


class Bytes:
    """Token n is the bytes number n of a list."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens

    def text_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ordered = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[ordered[i] : ordered[i + 1]] for i in range(len(ordered) - 1)]


places = st.lists(st.integers(0, 10_000), max_size=30)


@given(text=st.text(), places=places)
def test_any_cutting_of_valid_text_gives_the_text_and_never_half_a_character(
    text: str, places: list[int]
) -> None:
    pieces = cut(text.encode(), places)
    detokenizer = IncrementalDetokenizer(Bytes(pieces))
    emitted = ""
    for index in range(len(pieces)):
        emitted += detokenizer.push([index])
        assert text.startswith(emitted)
        complete = b"".join(pieces[: index + 1]).decode(errors="ignore")
        assert emitted == complete  # and nothing complete is held back
    assert detokenizer.finish() == ""
    assert emitted == text


@given(data=st.binary(), places=places, grouping=places)
def test_any_cutting_of_any_bytes_gives_what_decoding_them_at_once_gives(
    data: bytes, places: list[int], grouping: list[int]
) -> None:
    pieces = cut(data, places)
    detokenizer = IncrementalDetokenizer(Bytes(pieces))
    ids = list(range(len(pieces)))
    bounds = [0, *sorted(place % (len(ids) + 1) for place in grouping), len(ids)]
    emitted = "".join(
        detokenizer.push(ids[bounds[i] : bounds[i + 1]]) for i in range(len(bounds) - 1)
    )
    assert emitted + detokenizer.finish() == data.decode(errors="replace")

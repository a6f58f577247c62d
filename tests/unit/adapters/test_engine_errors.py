import pytest

from headrace.adapters.engine_errors import ContextPattern, ErrorWords, read_words
from headrace.adapters.openai_errors import error_of
from headrace.base.errors import ContextLengthExceeded, InvalidRequest


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"m","code":400,"type":"t"}}', ErrorWords("m", 400, "t")),
        (b'{"error":"m","error_type":"validation"}', ErrorWords("m", type="validation")),
        (b'{"object":"error","message":"m","param":"p"}', ErrorWords("m", param="p")),
        (b'{"detail":"m"}', ErrorWords("m")),
        (b'{"detail":[{"msg":"a"},{"msg":"b"}]}', ErrorWords("a; b")),
        (b'[{"error":{"message":"m"}}]', ErrorWords("m")),
        (b'{"error":{"n_prompt_tokens":5,"n_ctx":4}}', ErrorWords("", None, None, None, 5, 4)),
        (b'{"error":{"n_ctx":true,"code":[],"message":7}}', ErrorWords()),
        (b"<html>", ErrorWords()),
        (b"", ErrorWords()),
    ],
)
def test_every_shape_is_read(body: bytes, expected: ErrorWords) -> None:
    assert read_words(body) == expected


def test_long_words_are_cut() -> None:
    assert len(read_words(b'{"detail":"' + b"x" * 10_000 + b'"}').message) == 500


def test_a_pattern_makes_a_context_error_with_the_numbers_that_it_found() -> None:
    pattern = ContextPattern.of(r"(?P<prompt>\d+) of (?P<context>\d+)")
    error = error_of(400, b'{"error":{"message":"TOO LONG: 9 of 8"}}', [pattern])
    other = error_of(400, b'{"error":{"message":"no"}}', [pattern])

    assert type(error) is ContextLengthExceeded
    assert error.fields == {"prompt_tokens": 9, "max_model_len": 8}
    assert type(other) is InvalidRequest


def test_numbers_of_fields_go_before_those_in_words() -> None:
    pattern = ContextPattern.of(r"(?P<prompt>\d+) of (?P<context>\d+)")
    error = error_of(400, b'{"error":{"message":"9 of 8","n_prompt_tokens":10}}', [pattern])

    assert error.fields == {"prompt_tokens": 10, "max_model_len": 8}

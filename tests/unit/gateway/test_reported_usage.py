"""Usage of every kind of engine in our own terms; a class that is not named is None, not 0."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.metering import Metering
from headrace.gateway.reported_usage import ReportedUsage
from headrace.spec.settlements import TokenUsage


def read(**fields: object) -> TokenUsage:
    return msgspec.json.decode(json.dumps(fields), type=ReportedUsage).tokens()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 7}, TokenUsage(5, 0, 7)),
        ({"total_tokens": 9}, TokenUsage(9)),
        ({"prompt_tokens": 5, "completion_tokens": None, "total_tokens": 5}, TokenUsage(5)),
        (
            {
                "prompt_tokens": 50,
                "completion_tokens": 20,
                "prompt_tokens_details": {"cached_tokens": 8, "image_tokens": 30},
                "completion_tokens_details": {
                    "reasoning_tokens": 6,
                    "accepted_prediction_tokens": 3,
                    "rejected_prediction_tokens": 2,
                },
            },
            TokenUsage(50, 8, 20, reasoning_tokens=6, draft_tokens=2, image_tokens=30),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 7,
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            TokenUsage(5, 0, 7, reasoning_tokens=0),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 7, "reasoning_tokens": 4},
            TokenUsage(5, 0, 7, reasoning_tokens=4),
        ),
        (
            {
                "input_tokens": 40,
                "output_tokens": 1000,
                "total_tokens": 1040,
                "input_tokens_details": {"image_tokens": 32, "text_tokens": 8},
            },
            TokenUsage(40, 0, 1000, image_tokens=32),
        ),
        (
            {
                "type": "tokens",
                "input_tokens": 14,
                "output_tokens": 3,
                "input_token_details": {"audio_tokens": 14, "text_tokens": 0},
            },
            TokenUsage(14, 0, 3),
        ),
    ],
)
def test_every_shape_is_read(fields: dict[str, object], expected: TokenUsage) -> None:
    assert read(**fields) == expected


def test_seconds_are_no_tokens() -> None:
    reported = msgspec.json.decode(b'{"type":"duration","seconds":12}', type=ReportedUsage)
    assert not reported.is_counted


counts = st.none() | st.integers(-(2**60), 2**60)


@given(st.tuples(counts, counts, counts, counts, counts, counts, counts))
def test_no_numbers_break_the_value(numbers: tuple[int | None, ...]) -> None:
    prompt, completion, total, cached, image, reasoning, refused = numbers
    usage = read(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total,
        prompt_tokens_details={"cached_tokens": cached, "image_tokens": image},
        completion_tokens_details={
            "reasoning_tokens": reasoning,
            "rejected_prediction_tokens": refused,
        },
    )
    assert (usage.image_tokens is None) == (image is None)
    assert (usage.reasoning_tokens is None) == (reasoning is None)
    assert (usage.draft_tokens is None) == (refused is None)
    for metering in Metering:
        assert metering.of(usage).prompt_tokens in (usage.prompt_tokens, 0)

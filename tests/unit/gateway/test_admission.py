"""What is reserved is never less than what an engine can use."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.admission import completion_tokens_default, prompt_bound, token_bounds
from headrace.ledger.rating import worst_case_nanousd
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.spec.prices import Price, PriceVersion

price = PriceVersion(
    "prb_1",
    Price(
        input_nanousd_per_million=1_000_000_000,
        cached_input_nanousd_per_million=100_000_000,
        output_nanousd_per_million=3_000_000_000,
    ),
)


def chat(text: str = "hello", **fields: object) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return parse_chat_request(msgspec.json.encode(body))


def completion(prompt: object, **fields: object) -> CompletionRequest:
    return parse_completion_request(msgspec.json.encode({"model": "m", "prompt": prompt, **fields}))


@given(st.text(max_size=200))
def test_the_prompt_bound_covers_a_token_for_every_byte(text: str) -> None:
    assert prompt_bound(chat(text)) >= len(text.encode(errors="surrogatepass"))
    assert prompt_bound(completion(text)) > len(text.encode(errors="surrogatepass"))


def test_what_is_after_a_gap_is_counted_too() -> None:
    assert prompt_bound(completion("abc", suffix="é")) == prompt_bound(completion("abc")) + 3 + 2


def test_token_ids_are_counted_as_they_are() -> None:
    assert prompt_bound(completion([1, 2, 3])) == 4


def test_an_asked_limit_is_reserved_and_left_as_it_came() -> None:
    for request in (
        chat(max_tokens=7),
        chat(max_completion_tokens=7),
        completion("x", max_tokens=7),
    ):
        bounds = token_bounds(request, context_length=100, price=price, spendable_nanousd=None)
        assert (bounds.output_tokens_max, bounds.output_limit_sent) == (7, None)


def test_without_a_limit_the_context_is_reserved() -> None:
    bounds = token_bounds(chat(), context_length=2048, price=price, spendable_nanousd=None)
    assert bounds == (517 + 64, 2048, None)


def test_a_prompt_is_never_reserved_beyond_the_context() -> None:
    bounds = token_bounds(chat("x" * 9000), context_length=2048, price=None, spendable_nanousd=None)
    assert bounds.prompt_tokens_max == 2048


def test_a_text_completion_without_a_limit_gets_openais_default_explicitly() -> None:
    bounds = token_bounds(completion("x"), context_length=2048, price=price, spendable_nanousd=None)
    assert bounds.output_limit_sent == bounds.output_tokens_max == completion_tokens_default


@given(st.integers(0, 20_000_000))
def test_a_cap_by_credit_is_covered_by_it_or_refused_later(spendable_nanousd: int) -> None:
    bounds = token_bounds(
        chat(), context_length=4096, price=price, spendable_nanousd=spendable_nanousd
    )
    worst = worst_case_nanousd(price.price, bounds.prompt_tokens_max, bounds.output_tokens_max)
    if bounds.output_limit_sent is not None and bounds.output_limit_sent > 1:
        assert worst <= spendable_nanousd
        assert bounds.prompt_tokens_max + bounds.output_limit_sent <= 4096


@pytest.mark.parametrize("free_output", [True, False])
def test_credit_does_not_cap_what_is_free_or_postpaid(free_output: bool) -> None:
    free = msgspec.structs.replace(price.price, output_nanousd_per_million=0)
    bounds = token_bounds(
        chat(),
        context_length=4096,
        price=PriceVersion("prb_1", free) if free_output else price,
        spendable_nanousd=0 if free_output else None,
    )
    assert bounds.output_limit_sent is None

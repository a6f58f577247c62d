"""What is reserved is never less than what an engine can use."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.gateway.admission import (
    completion_tokens_default,
    expected_output_of,
    prompt_bound,
    token_bounds,
)
from headrace.gateway.context_room import Context
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
        bounds = token_bounds(request, context=Context(100), price=price, spendable_nanousd=None)
        assert (bounds.output_tokens_max, bounds.output_limit_sent) == (7, None)


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (chat(max_tokens=7, min_tokens=8), "7;"),
        (completion("x", min_tokens=17), "16, as max_tokens is not given;"),
    ],
)
def test_more_tokens_at_least_than_at_most_are_refused(
    request_: ChatRequest | CompletionRequest, limit: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"may have {limit}") as refused:
        token_bounds(request_, price=price, spendable_nanousd=None)
    assert refused.value.param == "min_tokens"


def test_without_a_limit_the_context_is_reserved() -> None:
    bounds = token_bounds(chat(), context=Context(2048), price=price, spendable_nanousd=None)
    assert bounds == (517 + 64, 2048, None)


def test_a_prompt_is_never_reserved_beyond_the_context() -> None:
    bounds = token_bounds(
        chat("x" * 9000), context=Context(2048), price=None, spendable_nanousd=None
    )
    assert bounds.prompt_tokens_max == 2048


def test_a_text_completion_without_a_limit_gets_openais_default_explicitly() -> None:
    bounds = token_bounds(
        completion("x"), context=Context(2048), price=price, spendable_nanousd=None
    )
    assert bounds.output_limit_sent == bounds.output_tokens_max == completion_tokens_default


@given(st.integers(0, 20_000_000))
def test_a_cap_by_credit_is_covered_by_it_or_refused_later(spendable_nanousd: int) -> None:
    bounds = token_bounds(
        chat(), context=Context(4096), price=price, spendable_nanousd=spendable_nanousd
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
        context=Context(4096),
        price=PriceVersion("prb_1", free) if free_output else price,
        spendable_nanousd=0 if free_output else None,
    )
    assert bounds.output_limit_sent is None


@pytest.mark.parametrize(
    ("request_of", "length"),
    [
        (lambda: chat(max_tokens=100), 100),  # the prompt has a token at least
        (lambda: completion([1, 2, 3], max_tokens=98), 100),
        (lambda: completion([[1], [1, 2, 3]], max_tokens=98), 100),
        (lambda: chat(max_completion_tokens=100), 100),
    ],
)
def test_a_limit_beyond_the_context_is_refused_with_its_numbers(
    request_of: Callable[[], ChatRequest | CompletionRequest], length: int
) -> None:
    with pytest.raises(ContextLengthExceeded, match=f"holds {length} tokens") as refused:
        token_bounds(request_of(), context=Context(length), price=None, spendable_nanousd=None)
    assert refused.value.fields["max_model_len"] == length


def test_what_may_fit_is_left_to_the_engine() -> None:
    for request in (chat("x" * 9000, max_tokens=99), completion([1, 2, 3], max_tokens=97)):
        bounds = token_bounds(request, context=Context(100), price=None, spendable_nanousd=None)
        assert bounds.output_limit_sent is None


@pytest.mark.parametrize(("asked", "length"), [({}, 50), ({"max_tokens": 51}, 100)])
def test_an_exact_count_refuses_what_does_not_fit(asked: dict[str, Any], length: int) -> None:
    with pytest.raises(ContextLengthExceeded, match="The prompt has 50 and"):
        token_bounds(
            chat(**asked),
            context=Context(length),
            price=None,
            spendable_nanousd=None,
            prompt_tokens=50,
        )


def test_a_prompt_that_may_be_cut_counts_for_what_is_kept() -> None:
    request = completion([1] * 200, max_tokens=60, truncate_prompt_tokens=40)
    bounds = token_bounds(request, context=Context(100), price=None, spendable_nanousd=None)
    assert bounds.output_limit_sent is None


@given(st.integers(1, 9000), st.one_of(st.none(), st.integers(1, 8000)))
def test_an_engine_that_does_not_check_is_sent_what_the_prompt_leaves(
    characters: int, asked: int | None
) -> None:
    length = 8192
    limit: dict[str, Any] = {} if asked is None else {"max_tokens": asked}
    request = chat("x" * characters, **limit)
    bounds = token_bounds(
        request, context=Context(length, is_checked=False), price=None, spendable_nanousd=None
    )
    bound = prompt_bound(request)
    likely = bound if 2 * bound <= length else bound // 4
    effective = bounds.output_limit_sent or asked
    assert effective is not None
    assert effective == min(asked or length, length - likely)
    assert bounds.output_tokens_max == effective


def test_an_engine_that_does_not_check_never_sees_a_prompt_that_fills_its_context() -> None:
    unchecked = Context(1000, is_checked=False)
    with pytest.raises(ContextLengthExceeded, match="about"):
        token_bounds(chat("x" * 4000), context=unchecked, price=None, spendable_nanousd=None)


def test_a_limit_of_zero_is_a_limit() -> None:
    assert expected_output_of(None, 0) == 0
    assert expected_output_of(0, 9) == 0
    assert expected_output_of(None, 9) == 9
    assert expected_output_of(None, None) == expected_output_of(10**9) == 256

"""KV that goes from one engine to another: a split request has the tokens of a whole one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.engine.kv_cache import KvCache
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.request import Adapter, EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence

Make = Callable[..., Any]
fingerprint = b"f" * 32
prompt = tuple(range(100, 119))  # 19 tokens, 4 blocks of 4 and a tail of 2 before the last one


def make_pair(make_engine: Make, **fields: Any) -> tuple[Any, Any]:
    fields = {"num_blocks": 20, "max_model_len": 60, "kv_fingerprint": fingerprint, **fields}
    return make_engine(**fields), make_engine(**fields)


def prefill(engine: Any, prompt: tuple[int, ...] = prompt, **fields: Any) -> KvParcel:
    name = f"p{len(engine.requests)}"
    engine.submit(name, prompt, max_tokens=1, hands_over=True, **fields)
    engine.run()
    parcel: KvParcel | None = engine.last[name].parcel
    assert parcel is not None
    return parcel


def decode(engine: Any, parcel: KvParcel, prompt: tuple[int, ...] = prompt, **fields: Any) -> None:
    engine.submit("d", prompt, parcel=parcel, **fields)
    engine.run()


def test_only_the_last_token_is_computed_again(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine)
    decode(theirs, prefill(ours))
    assert theirs.tokens["d"] == theirs.expected("d")
    assert theirs.row_counts[0] == [1]
    assert theirs.core.stats().imported_tokens_total == 18
    assert theirs.core.stats().kv_transfers == {"imported": 1}
    assert ours.core.stats().kv_transfers == {"exported": 1}


def test_what_came_is_found_by_later_prompts(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine)
    decode(theirs, prefill(ours))
    theirs.submit("later", (*prompt, 7))
    theirs.run()
    assert theirs.last["later"].usage.cached_tokens == 16


def test_the_prompt_is_counted_as_its_maker_computed_it(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine)
    prefill(ours, prompt[:9])
    parcel = prefill(ours)
    decode(theirs, parcel)
    assert parcel.cached_tokens == 8
    usage = theirs.last["d"].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (19, 8, 8)
    assert theirs.core.stats().cached_tokens_total == 8


@pytest.mark.parametrize("length", [2, 4, 5, 8, 9, 17])
def test_prompts_that_end_anywhere_in_a_block(make_engine: Make, length: int) -> None:
    ours, theirs = make_pair(make_engine)
    decode(theirs, prefill(ours, prompt[:length]), prompt[:length])
    assert theirs.tokens["d"] == theirs.expected("d")
    assert theirs.core.stats().imported_tokens_total == length - 1


def test_all_choices_of_a_prompt_begin_with_what_came(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine)
    sampling = SamplingParams(seed=5, max_tokens=6)
    decode(theirs, prefill(ours), sampling=sampling, choice_count=3)
    for name in ("d", "d#1", "d#2"):
        assert theirs.tokens[name] == theirs.expected(name)
    assert theirs.row_counts[0] == [1, 1, 1]


def test_a_prompt_of_one_token_has_nothing_to_hand_over(make_engine: Make) -> None:
    ours, _ = make_pair(make_engine)
    ours.submit("p", (7,), max_tokens=1, hands_over=True)
    ours.run()
    assert ours.last["p"].parcel is None


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"fingerprint": b"g" * 32}, "fingerprint"),
        ({"token_count": 19}, "content"),
        ({"names": ()}, "content"),
        ({"names": (bytes(16),) * 5}, "content"),
        ({"blocks": [b"\0"] * 5}, "layout"),
        ({"blocks": []}, "content"),
    ],
)
def test_what_is_not_this_prompts_kv_is_computed_here(
    make_engine: Make, change: dict[str, Any], result: str
) -> None:
    ours, theirs = make_pair(make_engine)
    decode(theirs, replace(prefill(ours), **change))
    assert theirs.tokens["d"] == theirs.expected("d")
    assert theirs.core.stats().kv_transfers == {result: 1}
    assert theirs.last["d"].usage.cached_tokens == 0


@pytest.mark.parametrize("other", [{"salt": "another tenant"}, {"prompt": (*prompt[:17], 3, 4)}])
def test_another_tenants_or_prompts_kv_is_refused(make_engine: Make, other: dict[str, Any]) -> None:
    ours, theirs = make_pair(make_engine)
    decode(theirs, prefill(ours), **{"prompt": prompt, **other})
    assert theirs.core.stats().kv_transfers == {"content": 1}


@pytest.mark.parametrize("length", [3, 19])
def test_names_tell_tenants_and_adapters_apart(length: int) -> None:
    def names(salt: str, adapter: Adapter | None) -> tuple[bytes, ...]:
        request = EngineRequest("r", prompt, SamplingParams(), 0, salt, adapter=adapter)
        return KvCache(8, 4, b"k" * 32, "").names(Sequence(request, 0, 0.0, 1), length)

    adapters = (None, Adapter(0, "one"), Adapter(0, "two"))
    seen = [names(salt, adapter) for salt in ("", "a", "b") for adapter in adapters]
    assert len({each[-1] for each in seen}) == len(seen)
    assert all(len(each) == -(-length // 4) for each in seen)


def test_an_engine_of_another_namespace_refuses(make_engine: Make) -> None:
    ours, _ = make_pair(make_engine, cache_namespace="one")
    _, theirs = make_pair(make_engine, cache_namespace="two")
    decode(theirs, prefill(ours))
    assert theirs.core.stats().kv_transfers == {"content": 1}


def test_prompt_logprobs_are_computed_with_the_kv_and_so_want_none(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine)
    sampling = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0)
    decode(theirs, prefill(ours), sampling=sampling)
    assert theirs.core.stats().kv_transfers == {"unwanted": 1}
    assert len(theirs.last["d"].prompt_logprobs) in (0, 18)


def test_without_a_fingerprint_nothing_leaves_or_comes_in(make_engine: Make) -> None:
    ours, _ = make_pair(make_engine)
    parcel = prefill(ours)
    shut, _ = make_pair(make_engine, kv_fingerprint=None)
    decode(shut, parcel)
    assert shut.core.stats().kv_transfers == {"unwanted": 1}
    shut.submit("p", prompt, max_tokens=1, hands_over=True)
    shut.run()
    assert shut.last["p"].parcel is None


def test_an_aborted_request_keeps_nothing_of_what_came(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine, num_blocks=6, max_model_len=24)
    theirs.submit("busy", 20, max_tokens=4)
    theirs.step()
    theirs.submit("d", prompt, parcel=prefill(ours), max_tokens=2)
    theirs.step()
    theirs.core.abort("d")
    theirs.run()
    assert theirs.core.stats().host_blocks == 0
    assert theirs.core.stats().imported_tokens_total == 0
    assert theirs.core.stats().kv_blocks_used == 0


def test_what_was_preempted_after_it_came_has_the_same_tokens(make_engine: Make) -> None:
    ours, theirs = make_pair(make_engine, num_blocks=10, max_model_len=40, running_max=4)
    parcels = [prefill(ours, tuple(range(s, s + 9))) for s in (200, 300, 400)]
    for index, parcel in enumerate(parcels):
        start = 200 + 100 * index
        theirs.submit(f"d{index}", tuple(range(start, start + 9)), parcel=parcel, max_tokens=20)
    theirs.run()
    assert theirs.core.stats().preemptions_total > 0
    for index in range(3):
        assert theirs.tokens[f"d{index}"] == theirs.expected(f"d{index}")

"""The load generator's parts: scanning, percentiles, arrivals."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.cli.loadgen.client import words_for_tokens
from headrace.cli.loadgen.stream import StreamScanner, tail_bytes
from headrace.cli.loadgen.summary import percentile
from headrace.cli.loadgen.workload import Workload, arrival_times_s

role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
token = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
done = b"data: [DONE]\n\n"


def test_the_first_token_is_the_first_text_and_not_the_role() -> None:
    scanner = StreamScanner()
    for now_s, data in enumerate((role, token, token, usage, done)):
        scanner.push(data, float(now_s))
    assert (scanner.first_text_s, scanner.last_text_s) == (1.0, 2.0)
    assert list(scanner.gaps_s) == [1.0]
    end = scanner.finish()
    assert end.complete
    assert end.usage is not None
    assert end.usage.completion_tokens == 2


@given(st.lists(st.integers(1, 40), max_size=40))
@example([1] * 150)
def test_reads_may_cut_events_anywhere(sizes: list[int]) -> None:
    whole = role + token + token + usage + done
    scanner = StreamScanner()
    position = 0
    for size in [*sizes, len(whole)]:
        part = whole[position : position + size]
        position += size
        if part:
            scanner.push(part, 1.0)
    end = scanner.finish()
    assert scanner.first_text_s == 1.0
    assert end.complete
    assert end.usage is not None
    assert end.usage.prompt_tokens == 3


def test_memory_does_not_grow_with_the_answer() -> None:
    scanner = StreamScanner()
    for _ in range(5000):
        scanner.push(token, 0.0)
    assert sum(len(part) for part in scanner._tail) < tail_bytes + 2 * len(token)


def test_spaces_and_completions_are_text_too() -> None:
    scanner = StreamScanner()
    scanner.push(b'data: {"choices": [{"text": "\\"quoted"}]}\n\n', 1.0)
    assert scanner.first_text_s == 1.0


def test_percentiles_are_observed_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, p) for p in (50, 90, 99)] == [50.0, 90.0, 99.0]
    assert percentile([7.0], 99) == 7.0


def test_arrivals_are_random_with_the_wanted_rate_and_repeatable() -> None:
    times_s = arrival_times_s(100.0, 1, 10_000)
    assert times_s == arrival_times_s(100.0, 1, 10_000)
    assert times_s == sorted(times_s)
    assert times_s[-1] == pytest.approx(100.0, rel=0.05)


def test_words_for_tokens_takes_the_template_off() -> None:
    assert words_for_tokens(210, 2.0, 10.0) == 100
    assert words_for_tokens(5, 2.0, 10.0) == 1


def test_prompts_share_exactly_the_prefix() -> None:
    workload = Workload("m", prompt_words=20, shared_prefix_words=8, output_tokens=1)
    first, second = (workload.body("s", index) for index in range(2))
    assert first != second
    assert workload.body("s", 0) == first

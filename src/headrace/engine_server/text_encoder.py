"""A served embedding model as the routes use it: tokens are made here, vectors by the engine."""

from headrace.base.errors import Unavailable
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.engine_status import loading_retry_after_s
from headrace.tokenizer.encoder_tokenizer import EncoderTokenizer

texts_per_call = 64  # so that a long list does not keep others waiting


class ServedEncoder:
    """One embedding model."""

    def __init__(self, engine: EngineClient, tokenizer: EncoderTokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer

    @property
    def context_length(self) -> int:
        """Tokens of one text; Unavailable while the model loads."""
        ready = self._engine.ready
        if ready is None:
            raise Unavailable(
                "The model is still loading; try again.", retry_after_s=loading_retry_after_s
            )
        return ready.context_length

    def encode_text(self, text: str) -> list[int]:
        """A text's tokens, with those that the model wants around it."""
        return self._tokenizer.encode(text)

    async def embed(self, token_ids: list[list[int]]) -> list[list[float]]:
        """The unit vector of each text."""
        vectors: list[list[float]] = []
        for start in range(0, len(token_ids), texts_per_call):
            vectors += await self._engine.embed(token_ids[start : start + texts_per_call])
        return vectors

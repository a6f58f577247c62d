"""Embedding models: token ids to one vector a text, by a BERT-shaped encoder on the CPU.

The texts of a call are packed into steps of whole texts, because every token sees its whole text.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError, ContextLengthExceeded, InvalidRequest
from headrace.engine.cpu_runner import TensorSource, load_transformer
from headrace.engine.ranks import RankPlace, alone, check_ranks
from headrace.kernels import block_size_tokens, default_thread_count
from headrace.weights.architecture import ArchitectureSpec

sequences_max = 64  # texts of one step


class Pooling(StrEnum):
    """How the tokens' vectors become the text's."""

    MEAN = "mean"
    FIRST = "first"  # the vector of the token that begins a text, "CLS"


class Encoder:
    """Holds an encoder's packed weights in this process; one call at a time.

    Of several ranks, the first is asked and the others `serve`."""

    def __init__(
        self,
        file: TensorSource,
        spec: ArchitectureSpec,
        *,
        pooling: Pooling = Pooling.MEAN,
        normalize: bool = True,
        threads: int | None = None,
        place: RankPlace = alone,
    ) -> None:
        if not spec.encoder:
            raise ConfigurationError(
                f"a {spec.family} model generates text; embeddings need an encoder such as MiniLM "
                "or BGE"
            )
        check_ranks(spec, place.ranks)
        self._spec = spec
        self._pooling = pooling
        self._normalize = normalize
        self._rows_max = spec.context_length
        blocks_max = self._rows_max // block_size_tokens + sequences_max
        self._transformer = load_transformer(
            file,
            spec,
            num_blocks=blocks_max,
            rows_max=self._rows_max,
            sequences_max=sequences_max,
            threads=default_thread_count() if threads is None else threads,
            kv_cache_dtype="f16",
            place=place,
        )

    @property
    def dimensions(self) -> int:
        """Numbers of one vector."""
        return self._spec.hidden_size

    @property
    def context_length(self) -> int:
        """Tokens that one text may have."""
        return self._rows_max

    def serve(self) -> None:
        """Do this rank's part of what rank 0 is asked, until that is closed."""
        self._transformer.serve()

    def embed(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector for each text's token ids (the model's special tokens included).

        InvalidRequest if a text is empty, ContextLengthExceeded if it is too long."""
        for index, text in enumerate(texts):
            self._check(index, text)
        return [vector.tolist() for step in self._steps(texts) for vector in self._run(step)]

    def _check(self, index: int, text: Sequence[int]) -> None:
        if not text:
            raise InvalidRequest(f"input {index} has no tokens", param="input")
        if len(text) > self._rows_max:
            raise ContextLengthExceeded(
                f"input {index} has {len(text)} tokens; the model takes {self._rows_max}",
                param="input",
            )
        if not all(0 <= token_id < self._spec.vocab_size for token_id in text):
            raise InvalidRequest(f"input {index} has a token that does not exist", param="input")

    def _steps(self, texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """The texts in order, as many a step as fit."""
        step: list[Sequence[int]] = []
        rows = 0
        for text in texts:
            if step and (rows + len(text) > self._rows_max or len(step) == sequences_max):
                yield step
                step, rows = [], 0
            step.append(text)
            rows += len(text)
        if step:
            yield step

    def _run(self, texts: list[Sequence[int]]) -> Iterator[NDArray[np.float32]]:
        lengths = [len(text) for text in texts]
        blocks = [-(-length // block_size_tokens) for length in lengths]
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        hidden = np.empty((int(starts[-1]), self._spec.hidden_size), np.float32)
        none, no_floats = np.empty(0, np.int32), np.empty(0, np.float32)
        self._transformer.execute(
            np.concatenate([np.asarray(text, np.int32) for text in texts]),
            starts,
            np.array(lengths, np.int32),
            np.arange(sum(blocks), dtype=np.int32),
            np.cumsum([0, *blocks]).astype(np.int32),
            none,
            no_floats,
            none,
            no_floats,
            no_floats,
            np.empty(0, np.uint64),
            np.empty(0, np.int64),
            none.copy(),
            no_floats.copy(),
            out_hidden=hidden,
        )
        for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            yield self._pooled(hidden[first:end])

    def _pooled(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        vector = rows[0] if self._pooling is Pooling.FIRST else rows.mean(axis=0, dtype=np.float64)
        if self._normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return np.asarray(vector, np.float32)

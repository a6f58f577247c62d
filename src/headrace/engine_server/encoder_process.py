"""The engine process of an embedding model: texts' tokens in, vectors out, one call at a time."""

from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.base.errors import ConfigurationError, HeadraceError, InvalidRequest, ModelFileError
from headrace.engine.load_probe import not_finite_text
from headrace.engine.ranks import RankPlace
from headrace.engine_server import messages
from headrace.engine_server.loading import ReportLoading, settle, with_ranks
from headrace.engine_server.messages import EngineConfig

if TYPE_CHECKING:
    from headrace.engine.encoder import Encoder

warm_up_text = (0,)
pooling_mean, pooling_first = 1, 2  # GGUF's numbers


class TextEncoder(Protocol):
    """What makes vectors."""

    @property
    def dimensions(self) -> int:
        """Numbers of one vector."""
        ...

    @property
    def context_length(self) -> int:
        """Tokens that one text may have."""
        ...

    def embed(self, texts: list[list[int]]) -> list[list[float]]:
        """One unit vector for each text's tokens; InvalidRequest if one cannot be embedded."""
        ...


class EncoderLoop:
    """Answers `Embed` by `Embedded`, or by `Rejected`; the number of texts is the callers' bound.

    The HTTP process keeps no more than `waiting_max` calls open, so the queue is bounded there."""

    def __init__(self, encoder: TextEncoder, send: Callable[[messages.FromEngine], None]) -> None:
        self._encoder = encoder
        self._send = send
        self._calls: SimpleQueue[messages.Embed] = SimpleQueue()
        self._steps = 0

    def start(self) -> None:
        """Embed something, and say that calls may come.

        ModelFileError if what comes of it is no number."""
        [vector] = self._encoder.embed([list(warm_up_text)])
        if not np.isfinite(vector).all():
            raise ModelFileError(not_finite_text, field="weights")
        self._send(
            messages.Ready(
                context_length=self._encoder.context_length,
                vocab_size=0,
                kernel_name="",
                kv_blocks=0,
                block_size_tokens=0,
                dimensions=self._encoder.dimensions,
            )
        )

    def handle(self, message: messages.ToEngine) -> None:
        """Take in a message; called from the thread that reads."""
        if isinstance(message, messages.Embed):
            self._calls.put(message)
        elif isinstance(message, messages.AdapterCall):
            refusal = InvalidRequest("This model makes embeddings; it takes no LoRA adapters.")
            self._send(messages.rejection(message.call_id, refusal))
        elif isinstance(message, messages.DiscardKv):
            self._send(messages.Done(message.call_id, []))
        elif isinstance(message, messages.AskStats):
            waiting = self._calls.qsize()
            self._send(messages.Stats(waiting_requests=waiting, steps_total=self._steps))

    def run(self) -> None:
        """Embed, for as long as the process lives."""
        while True:
            call = self._calls.get()
            try:
                vectors = self._encoder.embed(call.token_ids)
            except HeadraceError as error:
                self._send(
                    messages.Rejected(
                        call.call_id, error.code, error.message, error.param, None, {}
                    )
                )
            else:
                packed = [np.asarray(vector, np.float32).tobytes() for vector in vectors]
                self._send(messages.Embedded(call.call_id, packed))
            self._steps += 1


def load_encoder(config: EngineConfig, report: ReportLoading) -> TextEncoder | None:
    """The model as an encoder, with other ranks if there are to be; None if it generates text."""
    if not is_encoder(config):
        return None
    return with_ranks(config, report, lambda place: open_encoder(config, report, place))


def is_encoder(config: EngineConfig) -> bool:
    """Whether the model makes embeddings. Cost: its header is read."""
    # The import is a slow part of the start, which a test of messages does not need.
    from headrace.weights.architecture_reader import read_architecture  # noqa: PLC0415
    from headrace.weights.model_file import open_model  # noqa: PLC0415

    with open_model(Path(config.model_path)) as file:
        return read_architecture(file).encoder


def open_encoder(config: EngineConfig, report: ReportLoading, place: RankPlace) -> "Encoder":
    """One rank's part of an encoder, or with a single rank all of it, in this process."""
    # These imports are the slow part of the start; they belong to the progress that is reported.
    from headrace.engine.encoder import Encoder, Pooling  # noqa: PLC0415
    from headrace.weights.architecture_reader import read_architecture  # noqa: PLC0415
    from headrace.weights.model_file import open_model  # noqa: PLC0415

    report("reading the model file", 0.05)
    path = Path(config.model_path)
    with open_model(path) as file:
        spec = read_architecture(file)
        if config.adapters:
            raise ConfigurationError("--lora is for models that generate text; leave it out.")
        if config.context_length is not None:
            raise ConfigurationError(
                f"--context-length is for models that generate text; this one embeds texts of up "
                f"to {spec.context_length} tokens. Leave it out."
            )
        _, threads = settle(config, spec, place)
        report("loading weights", 0.1)
        pooling = Pooling.FIRST if takes_first_token(file.metadata) else Pooling.MEAN
        return Encoder(file, spec, pooling=pooling, threads=threads, place=place)


def takes_first_token(metadata: Mapping[str, object]) -> bool:
    """Whether a text's vector is its first token's, by a model's metadata; else the mean."""
    key = f"{metadata.get('general.architecture')}.pooling_type"
    number = metadata.get(key, pooling_mean)
    if number not in (pooling_mean, pooling_first):
        raise ModelFileError(
            f"{key}: {number!r} is not supported; headrace has the mean of all tokens "
            f"({pooling_mean}), and the first one ({pooling_first}).",
            field=key,
        )
    return number == pooling_first

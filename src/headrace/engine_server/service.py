"""One served model: its tokenizer here, its engine in a process; HTTP and terminal both use it."""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import InvalidRequest, NotFound, Unavailable
from headrace.base.prefix_hash import public_token_count
from headrace.engine_server.dialect import Dialect, ShownTokens, read_dialect
from headrace.engine_server.dry_breakers import BreakerTokens
from headrace.engine_server.engine_child import engine_command
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.engine_status import EngineState, loading_retry_after_s
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.model_facts import ModelFacts, read_facts
from headrace.engine_server.prompts import Prompt, PromptReader
from headrace.engine_server.public_prompts import encode_public_prompts, public_prompts
from headrace.engine_server.stop_strings import vocabulary_of
from headrace.engine_server.submission import submission
from headrace.engine_server.template_file import with_template
from headrace.engine_server.text_encoder import ServedEncoder
from headrace.engine_server.text_stream import TextStream
from headrace.engine_server.usage_log import UsageLog
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.tokenizer.encoder_tokenizer import EncoderTokenizer
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.families import families
from headrace.weights.model_file import open_model

encoder_families = frozenset(name for name, family in families.items() if family.encoder)


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What to serve, and as what."""

    model_path: Path
    served_name: str
    engine: EngineConfig
    tool_parser: str | None = None  # None: as the chat template tells
    reasoning_parser: str | None = None  # the same
    planned_bytes: Mapping[str, int] = field(default_factory=dict)  # of memory, by what it is for


class ModelService:
    """Starts loading at once, and answers requests as text when it is ready."""

    def __init__(
        self, config: ServiceConfig, clock: Clock, *, command: Sequence[str] = engine_command
    ) -> None:
        self.config = config
        self.clock = clock
        self.created_wall_s = clock.wall_s()
        self.usage = UsageLog()
        self.engine = EngineClient(config.engine, clock, on_end=self.usage.end, command=command)
        self._prompts = PromptReader()
        self._tokenizer: Tokenizer | None = None
        self._dialect: Dialect | None = None
        self._is_started = False
        self._encoder: ServedEncoder | None = None  # of an embedding model
        self._breakers: BreakerTokens | None = None  # once a request asks for DRY
        self._facts: ModelFacts | None = None
        self._public_prompts: list[array[int]] = []

    async def start(self) -> None:
        """Start the engine process, and read the tokenizer while it loads.

        Raises ModelFileError, ... if the file's tokenizer cannot be used."""
        self.engine.start()
        self._is_started = True
        tokenizer = await asyncio.to_thread(_read_tokenizer, self.config)
        if isinstance(tokenizer, EncoderTokenizer):
            self._encoder = ServedEncoder(self.engine, tokenizer)
            return
        config = self.config
        self._dialect = read_dialect(tokenizer, config.tool_parser, config.reasoning_parser)
        if config.engine.public_prompts is not None:
            self._public_prompts = await asyncio.to_thread(_read_public, config.engine, tokenizer)
        vocabulary = await asyncio.to_thread(vocabulary_of, tokenizer)
        if vocabulary is not None:
            self.engine.teach(vocabulary)
        self._tokenizer = tokenizer

    async def close(self) -> None:
        """End the engine process."""
        self._prompts.close()
        await self.engine.close()

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now is answered without waiting for a start."""
        has_tokenizer = self._tokenizer is not None or self._encoder is not None
        return has_tokenizer and self.engine.status.state is EngineState.READY

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; there is one whenever a request was opened."""
        assert self._tokenizer is not None, "no request is opened before the tokenizer is read"
        return self._tokenizer

    async def open(
        self, request: ChatRequest | CompletionRequest, request_id: str, cache_salt: str = ""
    ) -> TextStream:
        """Send a request to the engine; its usage is in `usage` from now until long after it.

        Raises Conflict for an id that is live, InvalidRequest, Unavailable while loading."""
        self.usage.begin(request_id)
        try:
            self.engine.check_available()
            tokenizer, context_length = self._parts()
            prompts = await self._prompts.read(request, tokenizer, self.dialect, context_length)
            shown_ids = self._shown_ids(request)
            submit = submission(
                request,
                prompts,
                request_id=request_id,
                tokenizer=tokenizer,
                dialect=self.dialect,
                context_length=context_length,
                vocab_size=self._vocab_size,
                find_breakers=self._find_breakers,
                cache_salt=cache_salt,
                adapter=self.adapter_of(request.model),
                shown_ids=shown_ids,
            )
            return TextStream(
                self.engine,
                ShownTokens(tokenizer, shown_ids),
                submit,
                request.stop_strings,
                shows_stop=bool(request.include_stop_str_in_output),
                prompts=prompts,
            )
        except BaseException:
            self.usage.forget(request_id)
            raise

    async def prompts_of(self, request: ChatRequest | CompletionRequest) -> list[Prompt]:
        """A request's prompts as token ids, without asking the engine for anything.

        Raises InvalidRequest, Unavailable while loading."""
        tokenizer, context_length = self._parts()
        return await self._prompts.read(request, tokenizer, self.dialect, context_length)

    def public_token_count(self, token_ids: Sequence[int]) -> int | None:
        """How many tokens of a prompt are public; None where no prompt is marked so."""
        if not self._public_prompts:
            return None
        return public_token_count(array("i", token_ids), self._public_prompts)

    @property
    def dialect(self) -> Dialect:
        """How the model writes calls and thoughts; known once the tokenizer is."""
        assert self._dialect is not None, "no request is opened before the tokenizer is read"
        return self._dialect

    async def facts(self) -> ModelFacts:
        """What the model's file says of the model."""
        if self._facts is None:
            self._facts = await asyncio.to_thread(read_facts, self.config.model_path)
        return self._facts

    def encoder(self) -> ServedEncoder | None:
        """What makes vectors; None of a model that generates. Unavailable until that is known."""
        if self._is_started and self._tokenizer is None and self._encoder is None:
            raise _still_loading()
        return self._encoder

    def check_name(self, name: str | None) -> None:
        """Raise NotFound if a request names another model; None names the one there is."""
        self.adapter_of(name)

    def adapter_of(self, name: str | None) -> str | None:
        """The LoRA adapter that a request's model names; None: the model without one.

        It is `model:adapter`, or the adapter's name alone. NotFound if nothing has that name."""
        served, adapters = self.config.served_name, self.engine.adapter_names
        if name is None or name == served:
            return None
        adapter = name.removeprefix(f"{served}:")
        if adapter in adapters:
            return adapter
        others = "".join(f", {served}:{other}" for other in adapters)
        raise NotFound(
            f"This server has no model {name!r}; it serves {served}{others}.", param="model"
        )

    @property
    def fills_gaps(self) -> bool:
        """Whether the model can fill in the middle, which `suffix` asks for."""
        return self._tokenizer is not None and self._tokenizer.fill is not None

    def check_tokenizer(self) -> None:
        """Raise Unavailable until the tokenizer is read."""
        self._parts()

    @property
    def known_dialect(self) -> Dialect | None:
        """The dialect, if the tokenizer is read already."""
        return self._dialect

    def _shown_ids(self, request: ChatRequest | CompletionRequest) -> frozenset[int] | None:
        """The control tokens that the answer's text has: those that its parsers need, or all."""
        if request.skip_special_tokens is False:
            return None
        return self.dialect.shown_ids if isinstance(request, ChatRequest) else frozenset()

    def _find_breakers(self, texts: Sequence[str]) -> tuple[int, ...]:
        if self._breakers is None:
            self._breakers = BreakerTokens(self.tokenizer)
        return self._breakers.find(texts)

    @property
    def _vocab_size(self) -> int:
        ready = self.engine.ready
        assert ready is not None, "no request is opened before the engine was ready"
        return ready.vocab_size

    def _parts(self) -> tuple[Tokenizer, int]:
        ready = self.engine.ready
        if self._encoder is not None:
            raise InvalidRequest(
                f"The model {self.config.served_name!r} makes embeddings and generates no text; "
                "ask /v1/embeddings, /v1/rerank or /v1/score.",
                param="model",
            )
        if self._tokenizer is None or ready is None:
            raise _still_loading()
        return self._tokenizer, ready.context_length


def _still_loading() -> Unavailable:
    return Unavailable(
        "The model is still loading (reading the tokenizer); try again.",
        retry_after_s=loading_retry_after_s,
    )


def _read_public(config: EngineConfig, tokenizer: Tokenizer) -> "list[array[int]]":
    prompts = public_prompts(config.public_prompts)
    return [array("i", ids) for ids in encode_public_prompts(prompts, tokenizer)]


def _read_tokenizer(config: ServiceConfig) -> Tokenizer | EncoderTokenizer:
    path = config.model_path
    with open_model(path) as file:
        if file.metadata.get("general.architecture") in encoder_families:
            return EncoderTokenizer.of_model(path, file.metadata)
        metadata = with_template(file.metadata, config.engine.chat_template_path)
        return Tokenizer.from_gguf_metadata(metadata)

"""What clients get in one piece: completions, usage, the list of models."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.protocol.kv_transfer import KvTransferParams
from headrace.protocol.tools import ToolCall


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How the prompt tokens were had."""

    cached_tokens: int = 0
    image_tokens: int | UnsetType = UNSET


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """What the output tokens were."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int | UnsetType = UNSET  # of a draft, and part of the completion
    rejected_prediction_tokens: int | UnsetType = UNSET  # of a draft, and part of nothing


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request, from the engine's own token ids."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # where any is known

    @classmethod
    def of(cls, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> "Usage":
        """The usage with its total."""
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens),
        )


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that could have stood at this place."""

    token: str  # with U+FFFD for bytes that are no whole character
    logprob: float
    bytes: list[int]  # the token's own


class TokenLogprob(msgspec.Struct, frozen=True):
    """An output token with the likeliest ones at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a chat's output tokens, in order."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a text completion's tokens, as columns."""

    text_offset: list[int]  # characters of the answer before the token
    token_logprobs: Sequence[float | None]  # None for the first of an echoed prompt
    tokens: list[str]
    top_logprobs: Sequence[dict[str, float] | None] | None


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token that stands, or could have stood, at a place of the prompt."""

    logprob: float
    rank: int | None  # 1 is the likeliest; None if it is not among those listed
    decoded_token: str


# For each token of the prompt, by token id; None for the first, which follows nothing.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer's message."""

    content: str | None  # None beside calls
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET  # the same, by the other name that clients read


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer to a conversation."""

    message: AssistantMessage
    finish_reason: str  # stop, length, tool_calls
    index: int = 0
    logprobs: ChatLogprobs | None = None
    stop_reason: str | UnsetType = UNSET  # the stop string that ended it
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True):
    """The answer of POST /v1/chat/completions without streaming."""

    id: str
    created: int  # seconds since the epoch
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: KvTransferParams | UnsetType = UNSET  # where the prompt's KV waits


class TextChoice(msgspec.Struct, frozen=True):
    """One continuation of a prompt."""

    text: str
    finish_reason: str  # stop, length
    index: int = 0
    logprobs: TextLogprobs | None = None
    stop_reason: str | UnsetType = UNSET  # the stop string that ended it
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextCompletion(msgspec.Struct, frozen=True):
    """The answer of POST /v1/completions without streaming."""

    id: str
    created: int  # seconds since the epoch
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"
    kv_transfer_params: KvTransferParams | UnsetType = UNSET  # where the prompt's KV waits


class ModelCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of GET /v1/models."""

    id: str
    created: int  # seconds since the epoch
    object: str
    owned_by: str
    max_model_len: int | None = None  # tokens of prompt and output together
    root: str | None = None  # the model that this one is, or builds on
    parent: str | None = None  # of a LoRA adapter: the model that it changes
    adapter_version: str | None = None  # of a LoRA adapter: the digest of its content
    modalities: list[str] | None = None  # what goes in and comes out
    quantization: str | None = None  # the type that most of the weights have
    supported_parameters: list[str] | None = None  # of generating requests
    tool_parser: str | None = None  # how calls of tools are read
    reasoning_parser: str | None = None  # how thoughts are told from answers


class ModelList(msgspec.Struct, frozen=True):
    """The answer of GET /v1/models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


class EndedRequest(msgspec.Struct, frozen=True):
    """The answer of GET /internal/usage/{request_id}: what a request that ended used, exactly."""

    request_id: str
    usage: Usage
    finish_reason: str  # stop, length, abort, error

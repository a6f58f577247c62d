"""What clients send: the chat and the text completion request, with every field's bounds.

A field that stands here works. A field of OpenAI's or of another engine's API that does not work
yet stands in `unsupported_fields` of `parsing`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.protocol.kv_transfer import KvTransferParams
from headrace.protocol.structural_tags import Format, LegacyTag, Triggers, tags_max
from headrace.protocol.tools import (
    Tool,
    ToolCall,
    ToolChoice,
    is_forced,
    tool_calls_max,
    tools_max,
)

token_id_max = 2**31 - 1
stop_strings_max = 1024
stop_string_length_max = 1024  # characters
stop_token_ids_max = 256
logit_bias_max = 1024  # tokens
allowed_token_ids_max = 65_536
bad_words_max = 256
dry_breakers_max = 16
dry_breaker_length_max = 40  # characters
choices_max = 1024  # of guided_choice
answers_max = 128  # that one request may ask for, over all its prompts
prompts_max = 128
grammar_length_max = 128 * 1024  # characters
top_logprobs_max = 20  # of chat; text completions list as many
prompt_tokens_max = 4_000_000  # far above any context; bounds the work of a hostile list

TokenCount = Annotated[int, Meta(ge=1, le=token_id_max)]
TokenId = Annotated[int, Meta(ge=0, le=token_id_max)]
StopString = Annotated[str, Meta(min_length=1, max_length=stop_string_length_max)]
Breaker = Annotated[str, Meta(min_length=1, max_length=dry_breaker_length_max)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Name = Annotated[str, Meta(max_length=512)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Extras of a stream."""

    include_usage: bool | None = None  # one more chunk at the end, with the usage
    continuous_usage_stats: bool | None = None  # the usage so far in every chunk
    include_obfuscation: bool | None = None  # padding against traffic analysis; none is ever added


Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """A piece of a message's text."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image: a data URL, or where it is to be fetched."""

    url: Annotated[str, Meta(min_length=1)]
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"
):
    """An image of a message, for models that take them."""

    image_url: ImageUrl


ContentPart = TextPart | ImagePart


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation. The fields that only take null are what answers carry."""

    role: Role
    content: str | list[ContentPart] | None = None  # None only beside tool calls
    name: Name | None = None
    tool_call_id: Name | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=tool_calls_max)] | None = None
    annotations: Annotated[list[None], Meta(max_length=0)] | None = None
    reasoning_content: str | None = None  # what the model thought in an earlier turn
    reasoning: str | None = None  # the same by its other name

    @property
    def text(self) -> str:
        """The content with its parts joined."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def image_count(self) -> int:
        """How many images it has."""
        if not isinstance(self.content, list):
            return 0
        return sum(isinstance(part, ImagePart) for part in self.content)

    @property
    def size_characters(self) -> int:
        """All the text that a template may write of this message."""
        calls = self.tool_calls or ()
        called = sum(len(call.function.name) + len(call.function.arguments) for call in calls)
        thought = self.reasoning_content or self.reasoning or ""
        return len(self.text) + called + len(thought) + len(self.name or "")


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema that an answer must fit."""

    name: Annotated[str, Meta(max_length=64)] = "answer"
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None  # every schema is kept strictly
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer's text must be."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: Format | None = None  # of a structural_tag; or, as it was before, the next two
    structures: Annotated[list[LegacyTag], Meta(min_length=1, max_length=tags_max)] | None = None
    triggers: Triggers | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's name for what an answer must look like; one of them."""

    json: dict[str, Any] | str | None = None  # a schema
    regex: Annotated[str, Meta(min_length=1, max_length=grammar_length_max)] | None = None
    grammar: Annotated[str, Meta(min_length=1, max_length=grammar_length_max)] | None = None
    choice: Annotated[list[StopString], Meta(min_length=1, max_length=choices_max)] | None = None
    json_object: bool | None = None
    # A response_format of that type, as JSON in a text.
    structural_tag: Annotated[str, Meta(min_length=1, max_length=grammar_length_max)] | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chat and text completion share."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    max_tokens: Annotated[int, Meta(ge=0, le=token_id_max)] | None = None  # 0 only with echo
    min_tokens: Annotated[int, Meta(ge=0, le=token_id_max)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=token_id_max)] | None = None  # 0 and -1 are off
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None  # 1 is off
    xtc_threshold: Annotated[float, Meta(gt=0, le=1)] | None = None  # of a top choice
    xtc_probability: Annotated[float, Meta(ge=0, le=1)] | None = None  # 0 is off
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=stop_strings_max)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=stop_token_ids_max)] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None  # 0 is off
    dry_base: Annotated[float, Meta(ge=1, le=10)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1, le=50)] | None = None  # tokens
    dry_sequence_breakers: Annotated[list[Breaker], Meta(max_length=dry_breakers_max)] | None = None
    logit_bias: dict[str, Bias] | None = None  # by token id; JSON's keys are strings
    allowed_token_ids: (
        Annotated[list[TokenId], Meta(min_length=1, max_length=allowed_token_ids_max)] | None
    ) = None
    bad_words: Annotated[list[StopString], Meta(max_length=bad_words_max)] | None = None
    n: Annotated[int, Meta(ge=1, le=answers_max)] | None = None  # answers to each prompt
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None  # a schema
    guided_regex: Annotated[str, Meta(min_length=1, max_length=grammar_length_max)] | None = None
    guided_grammar: Annotated[str, Meta(min_length=1, max_length=grammar_length_max)] | None = None
    guided_choice: (
        Annotated[list[StopString], Meta(min_length=1, max_length=choices_max)] | None
    ) = None
    structured_outputs: StructuredOutputs | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None  # false shows control tokens in the answer
    truncate_prompt_tokens: Annotated[int, Meta(ge=1, le=token_id_max)] | None = None  # the last
    return_token_ids: bool | None = None  # the prompt's and the answer's
    prompt_logprobs: Annotated[int, Meta(ge=0, le=top_logprobs_max)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None  # of trusted callers; 0 first
    deadline_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None  # for the whole answer
    kv_transfer_params: KvTransferParams | None = None  # of trusted callers
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # this and the next ones are for the caller's records only
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def answers_count(self) -> int:
        """Answers that are sent for each prompt."""
        return self.n or 1

    @property
    def sequences_count(self) -> int:
        """Answers that are generated, over all prompts; each may use the whole output limit."""
        return self.answers_count

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form was sent."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def output_limit(self) -> int | None:
        """The most output tokens the caller asked for, or None."""
        return self.max_tokens

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_usage_in_every_chunk(self) -> bool:
        """Whether each chunk carries the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: TokenCount | None = None  # newer name of `max_tokens`
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=top_logprobs_max)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=tools_max)] | None = None
    tool_choice: ToolChoice | None = None  # auto where there are tools
    parallel_tool_calls: bool | None = None  # false: one call at most
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    reasoning_budget: Annotated[int, Meta(ge=0, le=token_id_max)] | None = None  # tokens
    include_reasoning: bool | None = None  # false leaves the reasoning out of the answer
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the model's template

    @property
    def offered_tools(self) -> list[Tool]:
        """The functions that the model may call; none if the choice is none."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return is_forced(self.tool_choice)

    @property
    def top_logprobs_count(self) -> int | None:
        """Likeliest tokens to list for each output token; None reports no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def output_limit(self) -> int | None:
        """The most output tokens the caller asked for, by either name, or None."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/completions: one or several prompts, each as text or as token ids."""

    prompt: (
        str
        | Annotated[
            list[str | TokenId | Annotated[list[TokenId], Meta(max_length=prompt_tokens_max)]],
            Meta(min_length=1, max_length=prompt_tokens_max),
        ]
    )

    logprobs: Annotated[int, Meta(ge=0, le=top_logprobs_max)] | None = None
    suffix: str | None = None  # what comes after the answer, which fills the gap before it
    echo: bool | None = None  # the prompt's text before the answer's
    # Answers that are made, of which the `n` with the likeliest tokens on average are sent.
    best_of: Annotated[int, Meta(ge=1, le=answers_max)] | None = None

    @property
    def top_logprobs_count(self) -> int | None:
        """Likeliest tokens to list for each output token; None reports no log-probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]

    @property
    def sequences_count(self) -> int:
        """Answers that are generated, over all prompts; each may use the whole output limit."""
        return len(self.prompts) * max(self.answers_count, self.best_of or 1)

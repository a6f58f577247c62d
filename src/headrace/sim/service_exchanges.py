"""What services answer that somebody else runs; see `engine_exchanges`."""

from headrace.base.errors import InvalidRequest
from headrace.sim.engine_wire import (
    EngineExchanges,
    ErrorExchange,
    anthropic_error,
    listed,
    message_stream,
    nested,
    stream_with_usage_at_end,
    too_long,
)

service_exchanges = (
    EngineExchanges(
        engine="managed",
        ready=(200, listed()),
        unready=None,
        errors=(
            too_long(
                400,
                nested(
                    "This model's maximum context length is 4096 tokens. However, your messages "
                    "resulted in 5000 tokens. Please reduce the length of the messages.",
                    type="invalid_request_error",
                    param="messages",
                    code="context_length_exceeded",
                ),
                5000,
                4096,
            ),
            too_long(
                400,
                b'[{"error":{"code":400,"message":"The input token count (5000) exceeds the '
                b'maximum number of tokens allowed (4096).","status":"INVALID_ARGUMENT"}}]',
                5000,
                4096,
            ),
            too_long(
                400,
                nested("prompt is too long: 5000 tokens > 4096 maximum"),
                5000,
                4096,
            ),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(context_length=4096),
        context_length=4096,
        calls_come_whole=True,
    ),
    EngineExchanges(
        engine="openai",
        ready=(200, listed()),
        unready=None,
        errors=(
            ErrorExchange(
                400,
                nested(
                    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                    "'max_completion_tokens' instead.",
                    type="invalid_request_error",
                    param="max_tokens",
                    code="unsupported_parameter",
                ),
                InvalidRequest,
            ),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(owned_by="openai"),
    ),
    EngineExchanges(
        engine="anthropic",
        ready=(200, listed(type="model", display_name="A model")),
        unready=None,
        errors=(
            too_long(
                400,
                anthropic_error("prompt is too long: 5000 tokens > 4096 maximum"),
                5000,
                4096,
            ),
            ErrorExchange(400, anthropic_error("messages: at least one"), InvalidRequest),
        ),
        stream=message_stream(),
        models=listed(type="model", display_name="A model"),
    ),
)

"""The error body in OpenAI's shape; the error's own fields stand beside the four fixed ones."""

import msgspec

from headrace.base.errors import HeadraceError
from headrace.protocol.sse import encode_event

_encoder = msgspec.json.Encoder(enc_hook=str)


def error_body(error: HeadraceError) -> bytes:
    """`{"error": {"message", "type", "param", "code", ...numbers that programs need}}`."""
    return _encoder.encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
                **error.fields,
            }
        }
    )


def error_event(error: HeadraceError) -> bytes:
    """The same as an event of a stream that has begun; the stream ends after it."""
    return encode_event(error_body(error))

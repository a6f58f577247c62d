"""Requests about tokens: what a text or conversation is made of, and back."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.protocol.parsing import decode_request
from headrace.protocol.requests import TokenId, prompt_tokens_max


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize of a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None  # unless false, as completions do
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=prompt_tokens_max)]


_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)
_any = msgspec.json.Decoder(dict[str, Any])


def parse_tokenize_request(body: bytes) -> TokenizeRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    return decode_request(body, _tokenize, TokenizeRequest, {})


def parse_detokenize_request(body: bytes) -> DetokenizeRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    return decode_request(body, _detokenize, DetokenizeRequest, {})


def asks_for_chat(body: bytes) -> bool:
    """Whether a question about tokens is of a conversation."""
    try:
        return "messages" in _any.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False

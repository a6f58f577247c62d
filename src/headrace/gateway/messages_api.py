"""Anthropic's Messages API over every engine: a chat there, and its answer as a message here."""

from headrace.base.errors import HeadraceError
from headrace.gateway.admission import PromptRequest
from headrace.gateway.asked import Asked, Asking, GeneratingApi, chat_asked
from headrace.gateway.metering import Metering
from headrace.http.asgi import Send
from headrace.http.translated import translated_send
from headrace.protocol.anthropic import (
    chat_of_messages,
    parse_count_request,
    parse_messages_request,
)
from headrace.protocol.anthropic_answers import MessagesTranslator
from headrace.protocol.errors import error_body
from headrace.protocol.translation import TranslatedAnswer


async def read_messages(asking: Asking) -> Asked:
    """The chat that asks for the same."""
    request = parse_messages_request(asking.body)
    chat = chat_of_messages(request, usage_in_every_chunk=True)

    def translated(send: Send) -> Send:
        message_id = "msg_" + asking.request_id.removeprefix("req_")
        answer = TranslatedAnswer(MessagesTranslator(message_id, request.model))
        return translated_send(send, answer, [(b"request-id", asking.request_id.encode())])

    return chat_asked(chat, translated)


async def read_count(asking: Asking) -> Asked:
    """The same question for the engine, which has the model's tokenizer and template."""
    request = parse_count_request(asking.body)
    path = "/v1/messages/count_tokens"
    return Asked(path, asking.body, PromptRequest(request.model, 0), metering=Metering.NOTHING)


def messages_error_body(error: HeadraceError) -> bytes:
    """An error as Anthropic's clients expect it."""
    return MessagesTranslator("", "").error(error.http_status, error_body(error))


messages_apis = (
    GeneratingApi("/v1/messages", read_messages, messages_error_body),
    GeneratingApi("/v1/messages/count_tokens", read_count, messages_error_body),
)

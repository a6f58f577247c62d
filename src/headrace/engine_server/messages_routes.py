"""Anthropic's routes: a message is a chat in other words."""

import msgspec

from headrace.base.errors import HeadraceError
from headrace.engine_server.generating import Generating
from headrace.engine_server.routes import Call, Route
from headrace.http.asgi import send_json
from headrace.http.translated import translated_send
from headrace.protocol.anthropic import (
    CountRequest,
    MessagesRequest,
    chat_of_count,
    chat_of_messages,
    parse_count_request,
    parse_messages_request,
)
from headrace.protocol.anthropic_answers import MessagesTranslator, error_fields
from headrace.protocol.errors import error_body
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.translation import TranslatedAnswer

_encode = msgspec.json.Encoder().encode


class MessagesRoutes:
    """`/v1/messages` and what belongs to it."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route(
                "POST",
                "/v1/messages",
                self._create,
                error_body=anthropic_error,
                summary="Anthropic's Messages API",
                request=MessagesRequest,
            ),
            Route(
                "POST",
                "/v1/messages/count_tokens",
                self._count,
                error_body=anthropic_error,
                summary="How many tokens a message's prompt has",
                request=CountRequest,
            ),
        ]

    async def _create(self, call: Call) -> None:
        self._generating.check_accepting()
        request = parse_messages_request(await call.body())
        chat = parse_chat_request(chat_of_messages(request, usage_in_every_chunk=True))
        caller = self._generating.caller(call.scope)
        message_id = f"msg_{caller.request_id.removeprefix('req_')}"
        answer = TranslatedAnswer(MessagesTranslator(message_id, request.model))
        extra = [(b"request-id", caller.request_id.encode())]
        send = translated_send(call.send, answer, extra)
        await self._generating.answer(chat, caller, call.receive, send)

    async def _count(self, call: Call) -> None:
        request = parse_count_request(await call.body())
        service = self._generating.service
        service.check_name(request.model)
        (prompt,) = await service.prompts_of(parse_chat_request(chat_of_count(request)))
        await send_json(call.send, 200, _encode({"input_tokens": len(prompt.token_ids)}))


def anthropic_error(error: HeadraceError) -> bytes:
    """An error as Anthropic's clients expect it."""
    return _encode(error_fields(error.http_status, error_body(error)))

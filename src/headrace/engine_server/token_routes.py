"""Routes about tokens: tokenize, detokenize, and the prompt that a conversation becomes."""

import asyncio

import msgspec

from headrace.engine_server.generating import Generating
from headrace.engine_server.routes import Call, Route
from headrace.http.asgi import send_json
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.tokens import (
    DetokenizeRequest,
    TokenizeRequest,
    asks_for_chat,
    parse_detokenize_request,
    parse_tokenize_request,
)

_encode = msgspec.json.Encoder().encode


class TokenRoutes:
    """`/tokenize` and its siblings."""

    def __init__(self, generating: Generating) -> None:
        self._service = generating.service

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route(
                "POST",
                "/tokenize",
                self._tokenize,
                summary="A text's tokens, or a chat's with `messages`",
                request=TokenizeRequest,
            ),
            Route(
                "POST",
                "/detokenize",
                self._detokenize,
                summary="The text of tokens",
                request=DetokenizeRequest,
            ),
            Route(
                "POST",
                "/apply-template",
                self._apply_template,
                summary="The prompt that a chat becomes",
                request=ChatRequest,
            ),
        ]

    async def _tokenize(self, call: Call) -> None:
        body = await call.body()
        shows_texts = False
        if asks_for_chat(body):
            token_ids = await self._chat_tokens(parse_chat_request(body))
        else:
            request = parse_tokenize_request(body)
            self._service.check_name(request.model)
            shows_texts = bool(request.return_token_strs)
            token_ids = await self._text_tokens(
                request.prompt, special=request.add_special_tokens is not False
            )
        ready = self._service.engine.ready
        answer: dict[str, object] = {
            "tokens": token_ids,
            "count": len(token_ids),
            "max_model_len": None if ready is None else ready.context_length,
        }
        public_count = self._service.public_token_count(token_ids)
        if public_count is not None:
            answer["public_count"] = public_count
        if shows_texts:
            answer["token_strs"] = [self._text_of(token_id) for token_id in token_ids]
        await send_json(call.send, 200, _encode(answer))

    async def _detokenize(self, call: Call) -> None:
        request = parse_detokenize_request(await call.body())
        self._service.check_name(request.model)
        self._service.check_tokenizer()
        data = await asyncio.to_thread(self._bytes_of, request.tokens)
        await send_json(call.send, 200, _encode({"prompt": data.decode(errors="replace")}))

    async def _apply_template(self, call: Call) -> None:
        token_ids = await self._chat_tokens(parse_chat_request(await call.body()))
        data = await asyncio.to_thread(self._bytes_of, token_ids)
        await send_json(call.send, 200, _encode({"prompt": data.decode(errors="replace")}))

    async def _chat_tokens(self, request: ChatRequest) -> list[int]:
        self._service.check_name(request.model)
        (prompt,) = await self._service.prompts_of(request)
        return prompt.token_ids

    async def _text_tokens(self, text: str, *, special: bool) -> list[int]:
        if special:
            request = CompletionRequest(model=self._service.config.served_name, prompt=text)
            (prompt,) = await self._service.prompts_of(request)
            return prompt.token_ids
        self._service.check_tokenizer()
        return await asyncio.to_thread(self._service.tokenizer.encode, text)

    def _text_of(self, token_id: int) -> str:
        return self._service.tokenizer.token_bytes(token_id).decode(errors="replace")

    def _bytes_of(self, token_ids: list[int]) -> bytes:
        token_bytes = self._service.tokenizer.token_bytes
        return b"".join([token_bytes(token_id) for token_id in token_ids])

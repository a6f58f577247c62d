"""OpenAI's Responses API: answers that are kept, chained, asked for later and cancelled."""

import asyncio
import contextlib
import logging

import msgspec

from headrace.base.errors import HeadraceError, InvalidRequest, NotFound, RateLimited
from headrace.base.ids import new_id
from headrace.engine_server.answers import Caller
from headrace.engine_server.generating import Generating
from headrace.engine_server.response_store import ResponseStore
from headrace.engine_server.routes import Call, Route
from headrace.http.asgi import Message, send_json
from headrace.http.pages import page_of
from headrace.http.translated import translated_send
from headrace.protocol.errors import error_body
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.requests import ChatRequest
from headrace.protocol.responses_answers import ResponsesTranslator
from headrace.protocol.responses_api import (
    Item,
    ResponsesRequest,
    chat_of_responses,
    input_items,
    listed_items,
    parse_responses_request,
)
from headrace.protocol.translation import TranslatedAnswer

background_max = 64  # responses that are made while nobody waits
background_retry_after_s = 5.0
over = frozenset({"completed", "incomplete", "failed", "cancelled"})

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class ResponseRoutes:
    """`/v1/responses` and what belongs to it."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating
        self._store = ResponseStore()
        self._background: dict[str, asyncio.Task[None]] = {}

    def routes(self) -> list[Route]:
        """The routes."""
        one = "/v1/responses/{response_id}"
        return [
            Route(
                "POST",
                "/v1/responses",
                self._create,
                summary="OpenAI's Responses API",
                request=ResponsesRequest,
            ),
            Route("GET", one, self._get, summary="A stored response"),
            Route("DELETE", one, self._delete, summary="Forget a stored response"),
            Route("POST", f"{one}/cancel", self._cancel, summary="End a background response"),
            Route("GET", f"{one}/input_items", self._items, summary="What a response answers"),
        ]

    async def _create(self, call: Call) -> None:
        self._generating.check_accepting()
        request = parse_responses_request(await call.body())
        earlier = self._earlier(request)
        chat = parse_chat_request(chat_of_responses(request, earlier))
        items = [*earlier, *input_items(request)]
        clock = self._generating.service.clock
        translator = ResponsesTranslator(request, new_id("resp", clock), int(clock.wall_s()))
        if request.background:
            await self._start(translator, chat, items, call)
            return
        send = translated_send(call.send, TranslatedAnswer(translator))
        caller = self._generating.caller(call.scope)
        await self._generating.answer(chat, caller, call.receive, send)
        if request.store is not False and translator.response["status"] in over:
            self._store.put(translator.response, items)

    def _earlier(self, request: ResponsesRequest) -> list[Item]:
        if request.previous_response_id is None:
            return []
        try:
            return self._store.get(request.previous_response_id).conversation
        except NotFound as error:
            raise NotFound(error.message, param="previous_response_id") from None

    async def _start(
        self, translator: ResponsesTranslator, chat: ChatRequest, items: list[Item], call: Call
    ) -> None:
        """Begin a response that is asked for later."""
        if len(self._background) >= background_max:
            raise RateLimited(
                f"{background_max} background responses are being made; try again later.",
                retry_after_s=background_retry_after_s,
            )
        self._generating.service.check_name(chat.model)
        response_id = str(translator.response["id"])
        self._store.put(translator.response, items)
        caller = self._generating.caller(call.scope)
        task = asyncio.create_task(self._make(chat, items, caller, translator))
        self._background[response_id] = task
        task.add_done_callback(lambda _: self._background.pop(response_id, None))
        await send_json(call.send, 200, self._store.get(response_id).body)

    async def _make(
        self, chat: ChatRequest, items: list[Item], caller: Caller, translator: ResponsesTranslator
    ) -> None:
        """Make a background response to its end, whatever that is."""
        response = translator.response
        send = translated_send(_drop, TranslatedAnswer(translator))
        try:
            await self._generating.answer(chat, caller, _never, send)
        except HeadraceError as error:
            translator.fail(error_body(error))
        except asyncio.CancelledError:
            response["status"] = "cancelled"
        except Exception:
            log.exception("the background response %s failed", response["id"])
            unexpected = HeadraceError("The server failed on this request; its log says why.")
            translator.fail(error_body(unexpected))
        with contextlib.suppress(NotFound):  # it may be deleted already
            self._store.get(str(response["id"]))
            self._store.put(response, items)

    async def _get(self, call: Call) -> None:
        await send_json(call.send, 200, self._store.get(call.values["response_id"]).body)

    async def _delete(self, call: Call) -> None:
        response_id = call.values["response_id"]
        self._store.get(response_id)
        self._store.discard(response_id)
        await self._end(response_id)
        body = {"id": response_id, "object": "response", "deleted": True}
        await send_json(call.send, 200, _encode(body))

    async def _cancel(self, call: Call) -> None:
        response_id = call.values["response_id"]
        stored = msgspec.json.decode(self._store.get(response_id).body)
        if not stored["background"]:
            raise InvalidRequest(
                "Only a background response can be cancelled; close the connection of another."
            )
        await self._end(response_id)
        stored = self._store.get(response_id)
        response = msgspec.json.decode(stored.body)
        if response["status"] not in over:  # it was cancelled before it began
            self._store.put({**response, "status": "cancelled"}, list(stored.items))
        await send_json(call.send, 200, self._store.get(response_id).body)

    async def _end(self, response_id: str) -> None:
        """Stop making a background response, if it is still made."""
        task = self._background.get(response_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _items(self, call: Call) -> None:
        response_id = call.values["response_id"]
        page = page_of(call.scope, listed_items(response_id, self._store.get(response_id).items))
        body = {**msgspec.to_builtins(page), "data": [item.fields for item in page.data]}
        await send_json(call.send, 200, _encode(body))


async def _drop(message: Message) -> None:
    """A `send` whose answer nobody waits for; the translator has kept it."""


async def _never() -> Message:
    """A `receive` of a client that does not leave."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}

"""OpenAI's Responses API over every engine: a chat there, a response here, kept if it may be.

A later request names an earlier response; what was said until then is read from what is kept.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, InvalidRequest, NotFound
from headrace.base.ids import new_id
from headrace.base.repeated_warning import RepeatedWarning
from headrace.gateway.asked import Asked, Asking, GeneratingApi, chat_asked
from headrace.gateway.content_store import ContentStore
from headrace.gateway.files import Deleted
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.route_table import Call, Route
from headrace.http.asgi import Message, Send
from headrace.http.pages import page_of
from headrace.http.translated import translated_send
from headrace.protocol.responses_answers import ResponsesTranslator
from headrace.protocol.responses_api import (
    Item,
    chat_of_responses,
    input_items,
    items_of_output,
    listed_items,
    parse_responses_request,
)
from headrace.protocol.translation import TranslatedAnswer

logger = logging.getLogger(__name__)

items_max = 1_000  # of one conversation
responses_per_project_max = 10_000  # the oldest are forgotten
unkept_ids_max = 10_000  # remembered, so that who asks for one learns why it is not there


class KeptResponse(msgspec.Struct, frozen=True):
    """A response, and what it answered."""

    response: msgspec.Raw
    items: msgspec.Raw  # all that was said up to it; it stands alone when others are deleted
    output: msgspec.Raw


class ResponsesApi:
    """Reads requests, keeps responses, and gives them again."""

    def __init__(self, directory: Path, clock: Clock, counters: GatewayCounters) -> None:
        self._store = ContentStore(directory, "responses")
        self._clock = clock
        self._counters = counters
        self._unkept_ids: dict[tuple[str, str], None] = {}  # by project and id, the oldest first
        self._unkept = RepeatedWarning(logger, clock)
        self.api = GeneratingApi("/v1/responses", self._read)

    @property
    def routes(self) -> tuple[Route, ...]:
        """What can be asked of kept responses."""
        return (
            Route("/v1/responses/{response}", "GET", self._one),
            Route("/v1/responses/{response}", "DELETE", self._delete),
            Route("/v1/responses/{response}/input_items", "GET", self._input),
        )

    async def _read(self, asking: Asking) -> Asked:
        request = parse_responses_request(asking.body)
        if request.background:
            raise InvalidRequest(
                "Background responses are not offered; use a batch, or leave background out.",
                param="background",
            )
        project_id = asking.principal.project.id
        earlier: list[Item] = []
        if request.previous_response_id is not None:
            earlier = await asyncio.to_thread(
                self._conversation, project_id, request.previous_response_id
            )
        chat = chat_of_responses(request, earlier)
        response_id = new_id("resp", self._clock)

        items = [*earlier, *input_items(request)]

        def translated(send: Send) -> Send:
            created_s = int(self._clock.wall_s())
            translator = ResponsesTranslator(request, response_id, created_s)
            kept_send = send
            if request.store is not False:
                kept_send = self._keeping(send, project_id, items, translator)
            return translated_send(kept_send, TranslatedAnswer(translator))

        return chat_asked(chat, translated)

    def _conversation(self, project_id: str, response_id: str) -> list[Item]:
        """Everything that was said up to the end of a kept response."""
        try:
            kept = self._store.get(project_id, response_id, KeptResponse)
        except NotFound as error:
            message = error.message
            if (project_id, response_id) in self._unkept_ids:
                message = (
                    f"{response_id!r} was answered, but could not be stored; send the whole "
                    "conversation as input instead."
                )
            raise NotFound(message, param="previous_response_id") from None
        items = msgspec.json.decode(kept.items, type=list[Item])
        items += items_of_output(msgspec.json.decode(kept.output))
        if len(items) > items_max:
            raise InvalidRequest(
                f"The conversation has more than {items_max} items; begin another one.",
                param="previous_response_id",
            )
        return items

    def _keeping(
        self,
        send: Send,
        project_id: str,
        items: list[Item],
        translator: ResponsesTranslator,
    ) -> Send:
        """Send on; the response is kept before its end goes out, which goes out kept or not."""
        is_kept = False

        async def keep_and_send(message: Message) -> None:
            nonlocal is_kept
            response = translator.response
            if not is_kept and response["status"] in ("completed", "incomplete"):
                is_kept = True
                try:
                    await asyncio.to_thread(self._keep, project_id, items, response)
                except (OSError, HeadraceError) as error:  # the answer was made, and is paid for
                    self._note_unkept(project_id, str(response["id"]), error)
            await send(message)

        return keep_and_send

    def _note_unkept(self, project_id: str, response_id: str, error: Exception) -> None:
        self._counters.unkept_responses += 1
        self._unkept.note(f"the response {response_id} was sent and not stored", error)
        self._unkept_ids[project_id, response_id] = None
        if len(self._unkept_ids) > unkept_ids_max:
            del self._unkept_ids[next(iter(self._unkept_ids))]

    def _keep(self, project_id: str, items: list[Item], response: dict[str, object]) -> None:
        encode = msgspec.json.encode
        kept = KeptResponse(
            response=msgspec.Raw(encode(response)),
            items=msgspec.Raw(encode(items)),
            output=msgspec.Raw(encode(response["output"])),
        )
        self._store.put(project_id, str(response["id"]), kept)
        for old in self._store.ids(project_id)[responses_per_project_max:]:
            with contextlib.suppress(NotFound):  # another request forgot it meanwhile
                self._store.delete(project_id, old)

    async def _one(self, call: Call) -> None:
        kept = await self._kept(call)
        await call.answer(200, bytes(kept.response))

    async def _delete(self, call: Call) -> None:
        project_id = call.principal.project.id
        await asyncio.to_thread(self._store.delete, project_id, call.parameter)
        await call.answer_value(Deleted(call.parameter, "response"))

    async def _input(self, call: Call) -> None:
        kept = await self._kept(call)
        items = msgspec.json.decode(kept.items, type=list[Item])
        page = page_of(call.scope, listed_items(call.parameter, items))
        values = [item.fields for item in page.data]
        await call.answer_value({**msgspec.to_builtins(page), "data": values})

    async def _kept(self, call: Call) -> KeptResponse:
        project_id = call.principal.project.id
        return await asyncio.to_thread(self._store.get, project_id, call.parameter, KeptResponse)

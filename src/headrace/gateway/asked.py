"""What a caller asked, in the words that engines know; each API of the gateway reads into this."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from headrace.gateway.admission import GeneratingRequest
from headrace.gateway.context_room import bytes_per_token
from headrace.gateway.media_form import MediaForm
from headrace.gateway.metering import Metering
from headrace.gateway.route_table import ErrorBody
from headrace.gateway.snapshot import Principal
from headrace.http.asgi import Send
from headrace.protocol.errors import error_body
from headrace.protocol.images import PlacedImage, checked_images
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.requests import ChatRequest
from headrace.spec.settlements import UnitCounts, one_request

image_tokens_typical = 1024  # estimates load, never money


def unchanged(send: Send) -> Send:
    """The answer goes out as the engine's API has it."""
    return send


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for an engine."""

    path: str  # the engine's route
    body: bytes  # for it
    request: GeneratingRequest  # the same, read
    translated: Callable[[Send], Send] = unchanged  # puts the answer into the caller's API
    metering: Metering = Metering.GENERATES
    images: tuple[PlacedImage, ...] = ()
    form: MediaForm | None = None  # in place of a body
    units: UnitCounts = one_request  # what it is charged for besides tokens; None: its engine tells
    units_max: UnitCounts = one_request  # the most that its engine can tell
    tells_units: bool = True  # its answer has a place for them

    def held(self) -> AbstractContextManager[None]:
        """Keep what lies on disk of it."""
        return nullcontext() if self.form is None else self.form.held()


@dataclass(frozen=True, slots=True)
class Asking:
    """A request as it came."""

    body: bytes
    request_id: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class GeneratingApi:
    """One route that costs tokens."""

    path: str
    read: Callable[[Asking], Awaitable[Asked]]  # InvalidRequest names what is wrong
    error_body: ErrorBody = error_body


async def read_chat(asking: Asking) -> Asked:
    """OpenAI's chat completions, which every engine has."""
    return chat_asked(asking.body)


def chat_asked(body: bytes, translated: Callable[[Send], Send] = unchanged) -> Asked:
    """What a chat request asks."""
    request = parse_chat_request(body)
    images = checked_images(request)
    return Asked("/v1/chat/completions", body, request, translated, images=images)


async def read_completion(asking: Asking) -> Asked:
    """OpenAI's text completions."""
    return Asked("/v1/completions", asking.body, parse_completion_request(asking.body))


openai_apis = (
    GeneratingApi("/v1/chat/completions", read_chat),
    GeneratingApi("/v1/completions", read_completion),
)


def prefill_tokens_of(asked: Asked) -> int:
    """An estimate of the prompt's tokens; the bytes of an image say nothing of what it costs."""
    if not asked.images or not isinstance(asked.request, ChatRequest):
        return len(asked.body) // bytes_per_token
    characters = sum(message.size_characters for message in asked.request.messages)
    return characters // bytes_per_token + image_tokens_typical * len(asked.images)

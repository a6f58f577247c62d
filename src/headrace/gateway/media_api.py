"""Audio and images: passed through to the engines that have these routes, admitted and metered as
all that costs.

    /v1/audio/transcriptions, /translations    a form with a sound; text comes back
    /v1/audio/speech                           JSON; a sound comes back, as it is made
    /v1/images/generations                     JSON; images come back
    /v1/images/edits, /variations              a form with images; images come back

What an engine reports of its use is charged. What it does not report and the request does not tell
either is unrated, and never 0, unless other units are all that its price asks for (`media_units`).
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple

import msgspec

from headrace.base.errors import ClientClosed, HeadraceError, InvalidRequest
from headrace.gateway import idempotency
from headrace.gateway.admission import PromptRequest, image_tokens_max
from headrace.gateway.asked import Asked
from headrace.gateway.files import pieces
from headrace.gateway.generating_routes import Take, Taken, body_bytes_max
from headrace.gateway.media_form import MediaForm
from headrace.gateway.media_units import Units, heard_units, made_units, spoken_units
from headrace.gateway.metering import Metering
from headrace.gateway.passed_fields import check_body, check_fields, check_files
from headrace.gateway.prompt_api import decode_fields
from headrace.gateway.route_table import Call
from headrace.http.asgi import discarded_bytes_max, header, read_body

bytes_per_heard_token = 16  # 50 tokens a second, of sound of 6.4 kbit/s or more
bytes_per_written_token = 100  # and 8 tokens of text from each
spoken_tokens_per_byte = 25  # twelve letters a second, of 300 tokens a second at most
images_max = 10  # of one request, as OpenAI's
spare_tokens = 1024  # what a template or a short text may add
model_length_max = 512

_text = msgspec.json.Decoder(str)


class Bounds(NamedTuple):
    """What a request can cost at most, and what is known of it besides tokens."""

    tokens_read: int
    tokens_written: int
    units: Units


class MediaFields(msgspec.Struct):
    """The fields of a JSON body that decide who makes it and what it may cost."""

    model: str
    n: int | None = None
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b'""'))


_fields = msgspec.json.Decoder(MediaFields)


def speech_bounds(body: bytes, fields: MediaFields) -> Bounds:
    """Of a text that is read aloud."""
    try:
        text = _text.decode(fields.input)
    except msgspec.DecodeError:
        raise InvalidRequest("input is the text to read aloud.", param="input") from None
    written = spoken_tokens_per_byte * len(body) + spare_tokens
    return Bounds(len(body), written, spoken_units(len(text)))


def generation_bounds(body: bytes, fields: MediaFields) -> Bounds:
    """Of images from a text."""
    count = images_of(fields.n)
    return Bounds(len(body), image_tokens_max * count, made_units(count))


def sound_bounds(form: MediaForm) -> Bounds:
    """Of a sound that is written down."""
    sound = form.file_bytes
    read = sound // bytes_per_heard_token + text_bytes(form)
    written = sound // bytes_per_written_token + spare_tokens
    return Bounds(read + spare_tokens, written, heard_units(form))


def image_bounds(form: MediaForm) -> Bounds:
    """Of images from images."""
    count = form.field("n")
    if count is not None and not count.isdecimal():
        raise InvalidRequest("n is a number of images.", param="n")
    made = images_of(None if count is None else int(count[:6]))
    read = image_tokens_max * form.files + text_bytes(form) + spare_tokens
    return Bounds(read, image_tokens_max * made, made_units(made))


def text_bytes(form: MediaForm) -> int:
    """The length of what a form says to the model."""
    return len((form.field("prompt") or "").encode())


def images_of(count: int | None) -> int:
    """How many images are asked for; InvalidRequest for what is no such number."""
    if count is None:
        return 1
    if not 0 < count <= images_max:
        raise InvalidRequest(f"n is a number from 1 to {images_max}.", param="n")
    return count


def take_json(path: str, bounds_of: Callable[[bytes, MediaFields], Bounds]) -> Take:
    """How a request in JSON is taken."""

    async def take(call: Call) -> Taken:
        body = await read_body(call.receive, body_bytes_max)
        fields = decode_fields(body, _fields)
        check_body(path, body)
        asked = asked_of(path, fields.model, bounds_of(body, fields), body=body)
        return Taken(asked, lambda: idempotency.fingerprint_of(path, body), body)

    return take


def take_form(path: str, bounds_of: Callable[[MediaForm], Bounds]) -> Take:
    """How a form is taken: onto disk, where it is large."""

    async def take(call: Call) -> Taken:
        form = MediaForm()
        body = pieces(call.receive)
        try:
            await form.read(header(call.scope, b"content-type"), body)
            check_fields(path, form.field_names)
            check_files(form.file_names)
            model = form.field("model")
            if not model or len(model) > model_length_max:
                raise InvalidRequest("The form has no model.", param="model")
            if not form.files:
                raise InvalidRequest("The form has no file.", param="file")
            asked = asked_of(path, model, bounds_of(form), form=form)
        except HeadraceError as error:
            form.close()
            if not isinstance(error, ClientClosed):
                await discard(body)
            raise
        except BaseException:
            form.close()
            raise
        return Taken(asked, lambda: idempotency.fingerprint_of(path, form.fingerprint))

    return take


async def discard(body: AsyncIterator[bytes]) -> None:
    """Read what is left of a body that is refused, or its sender never sees why."""
    size_bytes = 0
    async for data in body:
        size_bytes += len(data)
        if size_bytes > discarded_bytes_max:
            return


def asked_of(
    path: str, model: str, bounds: Bounds, *, body: bytes = b"", form: MediaForm | None = None
) -> Asked:
    """What such a request asks of an engine."""
    request = PromptRequest(model, bounds.tokens_read, bounds.tokens_written)
    units = bounds.units
    return Asked(
        path,
        body,
        request,
        metering=Metering.RELAYS,
        form=form,
        units=units.known,
        units_max=units.most,
        tells_units=units.are_told,
    )


sound_paths = ("/v1/audio/transcriptions", "/v1/audio/translations")
image_paths = ("/v1/images/edits", "/v1/images/variations")
media_takes: Mapping[str, Take] = {
    **{path: take_form(path, sound_bounds) for path in sound_paths},
    **{path: take_form(path, image_bounds) for path in image_paths},
    "/v1/audio/speech": take_json("/v1/audio/speech", speech_bounds),
    "/v1/images/generations": take_json("/v1/images/generations", generation_bounds),
}

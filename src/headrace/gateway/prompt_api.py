"""The APIs that read and do not write: embeddings, rerank, score, tokenize.

Their bodies go to the engine as they came, as far as all of their fields pass (`passed_fields`).
What is read here is what a reservation needs: the model, and how many tokens there can be at most.
A body has at least a byte for each token that an engine reads from it, whatever the field: quotes
and commas pay for the tokens that an engine adds to each text.
"""

from typing import TypeVar

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.gateway.admission import PromptRequest
from headrace.gateway.asked import Asked, Asking, GeneratingApi
from headrace.gateway.metering import Metering
from headrace.gateway.passed_fields import check_body
from headrace.spec.settlements import no_units, one_request

pairs_max = 2048  # of texts that one request compares


class ReadFields(msgspec.Struct):
    """The fields of all these APIs that decide what is read how often."""

    model: str
    query: msgspec.Raw = msgspec.Raw(b"")  # read again with each document
    documents: list[msgspec.Raw] | None = None
    text_1: msgspec.Raw = msgspec.Raw(b"")
    text_2: msgspec.Raw = msgspec.Raw(b"")
    stream: bool | None = None


_fields = msgspec.json.Decoder(ReadFields)
_list = msgspec.json.Decoder(list[msgspec.Raw])


Fields = TypeVar("Fields")


def read_fields(body: bytes) -> ReadFields:
    """The fields that count; InvalidRequest for what is no such request."""
    return decode_fields(body, _fields)


def decode_fields(body: bytes, decoder: msgspec.json.Decoder[Fields]) -> Fields:
    """Some fields of a JSON body; InvalidRequest for what is no such request."""
    try:
        body.decode()
        return decoder.decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8; encode it as UTF-8.") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is no such request: {error}.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply; send a flatter one.") from None


def tokens_max(body: bytes, fields: ReadFields) -> int:
    """The most tokens that an engine can read of a body."""
    first, second = items(fields.text_1), items(fields.text_2)
    repeated = [(fields.query, len(fields.documents or ()))]
    if len(first) == 1:
        repeated.append((first[0], len(second)))
    for _, count in repeated:
        if count > pairs_max:
            raise InvalidRequest(f"One request compares at most {pairs_max} pairs of texts.")
    return len(body) + sum(len(bytes(text)) * count for text, count in repeated)


def items(value: msgspec.Raw) -> list[msgspec.Raw]:
    """A list's items, or the one text that stands in its place."""
    if not bytes(value).lstrip().startswith(b"["):
        return [value] if bytes(value) else []
    return _list.decode(value)


def reading_api(path: str, metering: Metering, engine_path: str = "") -> GeneratingApi:
    """A route whose body goes to the engine's route of the same path, or of another."""

    async def read(asking: Asking) -> Asked:
        fields = read_fields(asking.body)
        check_body(engine_path or path, asking.body)
        if fields.stream:
            raise InvalidRequest("This API does not stream; leave stream out.", param="stream")
        bound = 0 if metering is Metering.NOTHING else tokens_max(asking.body, fields)
        request = PromptRequest(fields.model, bound)
        units = no_units if metering is Metering.NOTHING else one_request
        return Asked(
            engine_path or path,
            asking.body,
            request,
            metering=metering,
            units=units,
            units_max=units,
        )

    return GeneratingApi(path, read)


reading_apis = (
    reading_api("/v1/embeddings", Metering.EMBEDS),
    reading_api("/v1/rerank", Metering.READS),
    reading_api("/v1/score", Metering.READS),
    reading_api("/v1/tokenize", Metering.NOTHING, "/tokenize"),
    reading_api("/v1/detokenize", Metering.NOTHING, "/detokenize"),
    reading_api("/tokenize", Metering.NOTHING),
    reading_api("/detokenize", Metering.NOTHING),
)

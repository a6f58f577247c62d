"""Images in a chat: where they stand, what they may be, and a body with others in their places.

https://...                       fetched by a gateway, through the guard of `http.egress`
data:image/png;base64,...         passed on as it is
"""

import binascii
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.protocol.requests import ChatRequest, ImagePart

images_max = 32  # of one request
image_bytes_max = 10 * 1024 * 1024
url_characters_shown = 64
signatures: Mapping[str, tuple[bytes, ...]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
kinds = ", ".join(signatures)
signature_characters = 16  # of base64, which hold every signature
_body = msgspec.json.Decoder(dict[str, Any])


class PlacedImage(NamedTuple):
    """An image and where it stands."""

    message: int
    part: int
    url: str

    @property
    def param(self) -> str:
        """Its place in the request, for errors."""
        return f"messages[{self.message}].content[{self.part}].image_url"

    @property
    def is_remote(self) -> bool:
        """Whether it must be fetched."""
        return not self.url.startswith("data:")


def images_of(request: ChatRequest) -> Iterator[PlacedImage]:
    """The images of a request in their order."""
    for number, message in enumerate(request.messages):
        if isinstance(message.content, list):
            for index, part in enumerate(message.content):
                if isinstance(part, ImagePart):
                    yield PlacedImage(number, index, part.image_url.url)


def checked_images(request: ChatRequest) -> tuple[PlacedImage, ...]:
    """The images of a request; InvalidRequest names the first that can be none."""
    found = tuple(images_of(request))
    if len(found) > images_max:
        raise InvalidRequest(
            f"The request has {len(found)} images; it may have {images_max}.", param="messages"
        )
    for image in found:
        if not image.is_remote:
            check_data_url(image)
        elif not image.url.startswith(("https://", "http://")):
            raise InvalidRequest(
                "An image's url begins with https:// or data:image/...;base64,", param=image.param
            )
    return found


def check_data_url(image: PlacedImage) -> None:
    """InvalidRequest unless it is an image's bytes in base64."""
    head, comma, data = image.url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if not comma or encoding != "base64" or media_type not in signatures:
        raise InvalidRequest(
            f"A data URL of an image is data:TYPE;base64,DATA, where TYPE is one of {kinds}.",
            param=image.param,
        )
    if len(data) * 3 // 4 > image_bytes_max:
        raise too_large(image)
    try:
        beginning = binascii.a2b_base64(data[:signature_characters])
    except ValueError:
        beginning = b""
    if media_type_of(beginning) != media_type:
        raise InvalidRequest(f"The data is no {media_type}.", param=image.param)


def media_type_of(data: bytes) -> str | None:
    """What kind of image bytes are, by how they begin; None: none that engines read."""
    for media_type, beginnings in signatures.items():
        if data.startswith(beginnings):
            return media_type
    return None


def data_url(media_type: str, data: bytes) -> str:
    """Bytes as a data URL."""
    return f"data:{media_type};base64,{binascii.b2a_base64(data, newline=False).decode()}"


def with_images(body: bytes, urls: Mapping[PlacedImage, str]) -> bytes:
    """The same request with other URLs of these images."""
    fields = _body.decode(body)
    for image, url in urls.items():
        fields["messages"][image.message]["content"][image.part]["image_url"]["url"] = url
    return msgspec.json.encode(fields)


def too_large(image: PlacedImage) -> InvalidRequest:
    """The refusal of an image over the bound."""
    return InvalidRequest(
        f"An image may have {image_bytes_max} bytes; send a smaller one.", param=image.param
    )


def refuse_images(request: ChatRequest) -> None:
    """InvalidRequest, naming the first image, if there is one."""
    for image in images_of(request):
        raise InvalidRequest("This model takes no images; send text only.", param=image.param)

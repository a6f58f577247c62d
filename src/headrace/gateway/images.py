"""Images of a request: whether its model takes them, and the bytes of those that lie elsewhere.

Only the gateway fetches, through the guard of `http.egress`: an engine has no way out, and never
learns where an image came from.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.gateway.asked import Asked
from headrace.gateway.snapshot import ServedModel
from headrace.http.egress_client import EgressClient
from headrace.protocol.images import (
    PlacedImage,
    data_url,
    image_bytes_max,
    kinds,
    media_type_of,
    too_large,
    with_images,
)
from headrace.router.endpoint import EndpointSpec

all_images_bytes_max = 32 * 1024 * 1024  # of one request, those that are fetched
fetch_timeout_s = 10.0
fetches_at_once_max = 16  # of one gateway; others wait


class Takers(NamedTuple):
    """The endpoints of a model by whether they take images."""

    able: bool
    unable_ids: frozenset[str]


def takers_of(served: ServedModel, endpoints: Iterable[EndpointSpec]) -> Takers:
    """Who of a model's endpoints takes images; while it has none, anybody may yet."""
    pools = {name for name, weight in served.pools if weight > 0}
    own = [spec for spec in endpoints if spec.pool in pools]
    unable = frozenset(spec.id for spec in own if not spec.takes_images)
    return Takers(len(unable) < len(own) or not own, unable)


def no_images(image: PlacedImage) -> InvalidRequest:
    """The refusal of an image by a model that takes none."""
    return InvalidRequest("This model takes no images; send text only.", param=image.param)


class ImageFetcher:
    """Puts the bytes of images into requests in place of their addresses."""

    def __init__(self, client: EgressClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(fetches_at_once_max)

    async def inlined(self, asked: Asked) -> bytes:
        """The request's body with every image in it; InvalidRequest names one that is not to be
        had."""
        remote = [image for image in asked.images if image.is_remote]
        if not remote:
            return asked.body
        fetches: list[asyncio.Task[bytes]] = []
        try:
            async with asyncio.TaskGroup() as group:
                fetches = [group.create_task(self._fetch(image)) for image in remote]
        except* HeadraceError as errors:
            raise first_of(errors) from None
        found = [fetch.result() for fetch in fetches]
        if sum(map(len, found)) > all_images_bytes_max:
            raise InvalidRequest(
                f"The images of a request may have {all_images_bytes_max} bytes together.",
                param="messages",
            )
        urls: dict[PlacedImage, str] = {}
        for image, data in zip(remote, found, strict=True):
            media_type = media_type_of(data)
            if media_type is None:
                raise InvalidRequest(
                    f"What lies at this address is none of {kinds}.", param=image.param
                )
            urls[image] = data_url(media_type, data)
        return await asyncio.to_thread(with_images, asked.body, urls)

    async def _fetch(self, image: PlacedImage) -> bytes:
        try:
            async with self._slots:
                answer = await self._client.fetch(
                    "GET",
                    image.url,
                    headers={"accept": kinds},
                    timeout_s=fetch_timeout_s,
                    limit_bytes=image_bytes_max + 1,
                )
        except HeadraceError as error:
            raise InvalidRequest(
                f"The image could not be fetched: {error.message}.", param=image.param
            ) from None
        if answer.status != 200:
            raise InvalidRequest(
                f"The image's address answered with status {answer.status}; give one that answers "
                "with the image itself.",
                param=image.param,
            )
        if len(answer.body) > image_bytes_max:
            raise too_large(image)
        return answer.body


def first_of(errors: BaseExceptionGroup[HeadraceError]) -> BaseException:
    """One of several errors."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found

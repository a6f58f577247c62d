"""A generating request that the gateway makes itself, for a caller who is not connected."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from headrace.base.errors import ClientClosed, HeadraceError, InvalidRequest, PermissionDenied
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.asked import Asking, GeneratingApi
from headrace.gateway.generate import Generation
from headrace.gateway.snapshot import Principal
from headrace.gateway.state import GatewayState
from headrace.http.asgi import Message, Receive
from headrace.protocol.errors import error_body
from headrace.spec.priority import Priority


class InsideAnswer(NamedTuple):
    """What came of it."""

    status: int
    body: bytes
    retry_after_s: float | None  # it may go better then; None: it would end the same


class InsideRequests:
    """Runs requests as the routes do, without a connection."""

    def __init__(self, state: GatewayState, apis: Mapping[str, GeneratingApi]) -> None:
        self._state = state
        self._apis = apis

    @property
    def paths(self) -> frozenset[str]:
        """The routes that can be run."""
        return frozenset(self._apis)

    def principal(self, key_id: str, path: str) -> Principal:
        """The key's owner as of now; PermissionDenied if the key may not do this any more."""
        found = self._state.follower.snapshot.principals.get(key_id)
        wall_s = self._state.clock.wall_s()
        if found is None or not found.is_active(wall_s) or not found.may_call(path):
            raise PermissionDenied("The API key that made this batch is not valid any more.")
        return found

    async def run(
        self, path: str, body: bytes, key_id: str, request_id: str, gone: asyncio.Event
    ) -> InsideAnswer:
        """Answer one request at batch priority; an error is an answer too.

        ClientClosed once nobody wants the answer any more, which `gone` says."""
        state = self._state
        record = AccessRecord(time=state.clock.wall_s(), request_id=request_id, route=path)
        started_s = state.clock.monotonic_s()
        collected = Collector()
        try:
            principal = self.principal(key_id, path)
            record.key_id, record.project_id = principal.key.id, principal.project.id
            record.tenant_id = principal.tenant.id
            asked = await self._apis[path].read(Asking(body, request_id, principal))
            if asked.request.stream:
                raise InvalidRequest("Batches do not stream; leave stream out.", param="stream")
            generation = Generation(
                state.services, principal, state.follower.snapshot, record, Priority.BATCH
            )
            await generation.answer(asked, leaving(gone), asked.translated(collected.send))
        except ClientClosed as error:
            record.status, record.error = error.http_status, error.code
            raise
        except HeadraceError as error:
            record.status, record.error = error.http_status, error.code
            retry_after_s = (error.retry_after_s or 1.0) if error.retryable else None
            return InsideAnswer(error.http_status, error_body(error), retry_after_s)
        finally:
            record.duration_ms = round((state.clock.monotonic_s() - started_s) * 1000, 2)
            state.access_log.write(record)
        return InsideAnswer(collected.status, b"".join(collected.pieces), None)


class Collector:
    """Takes an answer in place of a connection."""

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[bytes] = []

    async def send(self, message: Message) -> None:
        """One message of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.pieces.append(message.get("body", b""))


def leaving(gone: asyncio.Event) -> Receive:
    """A `receive` of a caller who leaves when `gone` is set."""

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive

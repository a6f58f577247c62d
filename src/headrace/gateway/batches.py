"""/v1/batches: many requests at once, at half the price, when there is room for them."""

import asyncio
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from headrace.base.clock import Clock
from headrace.base.errors import InvalidRequest, NotFound
from headrace.base.ids import new_id
from headrace.gateway.batch_runner import BatchRunner
from headrace.gateway.batch_values import Batch, BatchRequest, KeptBatch, ended
from headrace.gateway.inside import InsideRequests
from headrace.gateway.route_table import Call, Route
from headrace.http.asgi import read_body
from headrace.http.pages import page_of

window_s = 86_400
body_bytes_max = 64 * 1024
unended_per_project_max = 100
ended_per_project_max = 1_000  # kept; their results are files, and stay
_request = msgspec.json.Decoder(BatchRequest)


class BatchRoutes:
    """The batches of each project."""

    def __init__(self, runner: BatchRunner, inside: InsideRequests, clock: Clock) -> None:
        self._runner = runner
        self._inside = inside
        self._clock = clock

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routes."""
        return (
            Route("/v1/batches", "POST", self._create),
            Route("/v1/batches", "GET", self._list),
            Route("/v1/batches/{batch}", "GET", self._one),
            Route("/v1/batches/{batch}/cancel", "POST", self._cancel),
        )

    async def _create(self, call: Call) -> None:
        request = read_request(await read_body(call.receive, body_bytes_max))
        if request.endpoint not in self._inside.paths:
            known = ", ".join(sorted(self._inside.paths))
            raise InvalidRequest(f"endpoint is one of {known}.", param="endpoint")
        principal = call.principal
        self._inside.principal(principal.key.id, request.endpoint)
        now = int(self._clock.wall_s())
        batch = Batch(
            id=new_id("batch", self._clock),
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + window_s,
            metadata=request.metadata,
        )
        kept = KeptBatch(batch, principal.key.id)
        await asyncio.to_thread(self._add, principal.project.id, kept)
        self._runner.wake()
        await call.answer_value(batch)

    def _add(self, project_id: str, kept: KeptBatch) -> None:
        self._runner.files.get(project_id, kept.batch.input_file_id)
        known = self._all(project_id)
        over = [batch.id for batch in known if batch.status in ended]  # the newest first
        if len(known) - len(over) >= unended_per_project_max:
            raise InvalidRequest(
                f"This project has {unended_per_project_max} batches that have not ended; wait."
            )
        for old in over[ended_per_project_max:]:
            with suppress(NotFound):  # another gateway forgets it, too
                self._runner.store.delete(project_id, old)
        self._runner.store.put(project_id, kept.batch.id, kept)

    def _all(self, project_id: str) -> list[Batch]:
        """The newest first."""
        store = self._runner.store
        found = []
        for each in store.ids(project_id):
            with suppress(NotFound):  # forgotten meanwhile
                found.append(store.get(project_id, each, KeptBatch).batch)
        return found

    async def _list(self, call: Call) -> None:
        batches = await asyncio.to_thread(self._all, call.principal.project.id)
        await call.answer_value(page_of(call.scope, batches))

    async def _one(self, call: Call) -> None:
        store, project_id = self._runner.store, call.principal.project.id
        kept = await asyncio.to_thread(store.get, project_id, call.parameter, KeptBatch)
        await call.answer_value(kept.batch)

    async def _cancel(self, call: Call) -> None:
        project_id = call.principal.project.id
        await call.answer_value(
            await asyncio.to_thread(self._mark_cancelled, project_id, call.parameter)
        )

    def _mark_cancelled(self, project_id: str, batch_id: str) -> Batch:
        now = int(self._clock.wall_s())

        def change(kept: KeptBatch) -> KeptBatch:
            if kept.batch.status in ended or kept.batch.status == "cancelling":
                return kept
            batch = replace(kept.batch, status="cancelling", cancelling_at=now)
            return replace(kept, batch=batch)

        return self._runner.store.update(project_id, batch_id, KeptBatch, change).batch


def read_request(body: bytes) -> BatchRequest:
    """The request in a body; InvalidRequest if it is none."""
    try:
        return _request.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is no batch: {error}.") from None

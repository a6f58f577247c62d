"""A stream of server-sent events that says when to look again; what it is about is asked elsewhere.

    event: change   the store's revision moved: what is wanted or observed is different
    event: tick     time went by: traffic, usage and ages are different

It carries no data, so there is one place that says who may read what. A stream ends after a while,
and its listener comes back with a session that is checked anew.
"""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from headrace.base.errors import RateLimited
from headrace.control.admin.access import for_everyone_signed_in
from headrace.control.admin.context import AdminContext, Context

look_interval_s = 0.5
looks_a_tick = 4
looks_max = 600  # five minutes
streams_max = 64  # at once, of this control plane

router = APIRouter()


class Streams:
    """How many streams are open."""

    def __init__(self) -> None:
        self.count = 0


streams = Streams()


@router.get("/events", response_class=StreamingResponse)
@for_everyone_signed_in
async def stream_events(context: Context) -> StreamingResponse:
    """Say when something changed, as server-sent events, for as long as somebody listens"""
    if streams.count >= streams_max:
        raise RateLimited(
            f"{streams_max} streams of events are open; ask again, or now and then without one",
            retry_after_s=10.0,
        )
    return StreamingResponse(
        events(context), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


async def events(context: AdminContext) -> AsyncIterator[bytes]:
    """The events of one stream, until this control plane drains."""
    streams.count += 1
    try:
        known: int | None = None
        for look in range(looks_max):
            revision = await asyncio.to_thread(context.database.store.revision)
            if revision != known:
                known = revision
                yield f"event: change\ndata: {revision}\n\n".encode()
            elif look % looks_a_tick == 0:
                yield b"event: tick\ndata:\n\n"
            try:
                async with asyncio.timeout(look_interval_s):
                    await context.closing.wait()
            except TimeoutError:
                continue
            return
    finally:
        streams.count -= 1

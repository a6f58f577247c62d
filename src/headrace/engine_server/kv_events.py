"""Routes about the prefix cache: what it holds, for routers; forgetting a tenant's part of it.

docs/concepts/prefix-cache.md says what the hashes are and how to follow the changes.
"""

import secrets
from itertools import groupby
from urllib.parse import parse_qs

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.engine_server.cache_log import CacheLog, LoggedChange
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.routes import Access, Call, Route
from headrace.http.asgi import send_json

wait_s_max = 30.0
events_per_answer_max = 4096

_encode = msgspec.json.Encoder().encode


class KvEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Blocks that became findable, or are no more; `cleared` is all of them."""

    seq: int  # of the last of these changes
    type: str  # stored, removed, cleared
    hashes: list[str] = []


class KvEvents(msgspec.Struct, frozen=True):
    """An answer of `GET /internal/kv_events`."""

    epoch: str  # changes when this server starts anew; then `since` means nothing any more
    next: int  # the next `since`
    block_size_tokens: int
    events: list[KvEvent]
    # Whether the reader must forget what it knew: the events are then the whole content.
    reset: bool = False


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /internal/reset_cache."""

    salt: str | None = None  # a tenant's; without one the whole cache is forgotten


class KvEventRoutes:
    """`/internal/kv_events` and `/internal/reset_cache`."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._epoch = secrets.token_hex(8)

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route(
                "GET",
                "/internal/kv_events",
                self._events,
                Access.OPERATOR,
                summary="What the prefix cache holds: changes since a number, waited for",
            ),
            Route(
                "POST",
                "/internal/reset_cache",
                self._reset,
                Access.OPERATOR,
                summary="Forget the prefix cache, or one tenant's part of it",
                request=ResetRequest,
            ),
        ]

    async def _events(self, call: Call) -> None:
        query = parse_qs(call.scope.get("query_string", b"").decode("latin-1"))
        since = _number(query, "since", 0)
        wait_s = min(_number(query, "wait_s", 0), wait_s_max)
        (epoch,) = query.get("epoch", [self._epoch])[:1]
        log = self._engine.cache_log
        if wait_s and epoch == self._epoch and since == log.last_sequence:
            await log.wait_beyond(since, wait_s)
        await send_json(call.send, 200, _encode(self._answer(log, since, epoch)))

    def _answer(self, log: CacheLog, since: int, epoch: str) -> KvEvents:
        ready = self._engine.ready
        block_size_tokens = 0 if ready is None else ready.block_size_tokens
        changes = log.since(since) if epoch == self._epoch else None
        if changes is None:
            hashes = [content_hash.hex() for content_hash in log.held]
            whole = [KvEvent(log.last_sequence, "stored", hashes)] if hashes else []
            return KvEvents(self._epoch, log.last_sequence, block_size_tokens, whole, reset=True)
        events = _grouped(changes[:events_per_answer_max])
        following = events[-1].seq if events else since
        return KvEvents(self._epoch, following, block_size_tokens, events)

    async def _reset(self, call: Call) -> None:
        body = await call.body()
        try:
            wanted = msgspec.json.decode(body or b"{}", type=ResetRequest)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"The body is not right: {error}.") from None
        self._engine.reset_cache(wanted.salt)
        await send_json(call.send, 200, b"{}")


def _grouped(changes: list[LoggedChange]) -> list[KvEvent]:
    """Changes of the same kind that follow each other, as one event."""
    events: list[KvEvent] = []
    for kind, group in groupby(changes, _kind_of):
        same = list(group)
        hashes = [change.content_hash.hex() for change in same if change.content_hash is not None]
        events.append(KvEvent(same[-1].sequence, kind, hashes))
    return events


def _kind_of(change: LoggedChange) -> str:
    if change.content_hash is None:
        return "cleared"
    return "stored" if change.stored else "removed"


def _number(query: dict[str, list[str]], name: str, default: int) -> int:
    text = query.get(name, [str(default)])[0]
    if not text.isdecimal() or len(text) > 18:
        raise InvalidRequest(f"{name} must be a whole number.", param=name)
    return int(text)

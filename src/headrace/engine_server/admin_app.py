"""The operator's own listener of an engine server: sleep, pause, adapters, the prefix cache.

Routes that vLLM has are named as there, so that what operates it works here too. Everything asks
for the admin key, which is not the key of the API.
"""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.engine_server.dispatch import Dispatcher
from headrace.engine_server.operator import Operator, wait_s_default
from headrace.engine_server.routes import Access, Call, Handler, Route, RouteTable
from headrace.http.asgi import Receive, Scope, Send, send_bytes, send_json
from headrace.protocol.errors import error_body

number_length_max = 18
Body = TypeVar("Body", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


class LoadAdapterRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str  # a GGUF file, or a directory in PEFT's layout, on this machine
    load_inplace: bool = False  # take the place of a loaded one of that name


class UnloadAdapterRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None  # vLLM's clients send it; the name is enough


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /reset_prefix_cache; without a body the whole cache is forgotten."""

    cache_salt: str | None = None  # one tenant's part


class AdminApp:
    """The operator's routes as an ASGI app."""

    def __init__(self, operator: Operator, key: str) -> None:
        self._operator = operator
        self.table = RouteTable(self._routes())
        self._dispatcher = Dispatcher(
            self.table, key, unmatched_error=lambda _: error_body, on_disconnect=lambda: None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        await self._dispatcher.serve(scope, receive, send)

    def _routes(self) -> list[Route]:
        load, unload = LoadAdapterRequest, UnloadAdapterRequest
        made: list[tuple[str, str, Handler, str, type[msgspec.Struct] | None]] = [
            ("GET", "/state", self._state, "Everything below at a glance", None),
            ("POST", "/sleep", self._sleep, "Give memory back: `level` 1 the KV's, 2 all", None),
            ("POST", "/wake_up", self._wake, "Take the memory again; returns when ready", None),
            ("GET", "/is_sleeping", self._is_sleeping, "Whether it sleeps", None),
            ("POST", "/pause", self._pause, "Refuse new requests, let those that run end", None),
            ("POST", "/resume", self._resume, "Take requests again", None),
            ("GET", "/is_paused", self._is_paused, "Whether it is paused", None),
            ("POST", "/drain", self._drain, "Be unready and refuse requests from now on", None),
            ("POST", "/abort/{request_id...}", self._abort, "End a request", None),
            ("POST", "/reset_prefix_cache", self._reset, "Forget the prefix cache", ResetRequest),
            ("POST", "/v1/load_lora_adapter", self._load, "Serve a LoRA adapter", load),
            ("POST", "/v1/unload_lora_adapter", self._unload, "Serve it no more", unload),
        ]
        return [
            Route(method, path, handler, Access.OPERATOR, summary=summary, request=request)
            for method, path, handler, summary, request in made
        ]

    async def _state(self, call: Call) -> None:
        await send_json(call.send, 200, _encode(self._operator.state()))

    async def _sleep(self, call: Call) -> None:
        query = _query(call)
        level = _number(query, "level", 1)
        await self._operator.sleep(int(level), query.get("mode", "wait"), _wait_s(query))
        await self._state(call)

    async def _wake(self, call: Call) -> None:
        await self._operator.wake()
        await self._state(call)

    async def _is_sleeping(self, call: Call) -> None:
        asleep = self._operator.sleep_level > 0
        await send_json(call.send, 200, _encode({"is_sleeping": asleep}))

    async def _pause(self, call: Call) -> None:
        query = _query(call)
        await self._operator.pause(query.get("mode", "wait"), _wait_s(query))
        if query.get("clear_cache", "true") == "true":
            self._operator.reset_cache(None)
        await self._state(call)

    async def _resume(self, call: Call) -> None:
        self._operator.resume()
        await self._state(call)

    async def _is_paused(self, call: Call) -> None:
        await send_json(call.send, 200, _encode({"is_paused": self._operator.is_paused}))

    async def _drain(self, call: Call) -> None:
        self._operator.drain()
        await self._state(call)

    async def _abort(self, call: Call) -> None:
        self._operator.abort(call.values["request_id"])
        await self._state(call)

    async def _reset(self, call: Call) -> None:
        body = await call.body()
        wanted = _parsed(body, ResetRequest) if body else ResetRequest()
        self._operator.reset_cache(wanted.cache_salt)
        await self._state(call)

    async def _load(self, call: Call) -> None:
        wanted = _parsed(await call.body(), LoadAdapterRequest)
        await self._operator.load_adapter(
            wanted.lora_name, wanted.lora_path, replaces=wanted.load_inplace
        )
        text = f"Success: LoRA adapter '{wanted.lora_name}' added successfully."
        await send_bytes(call.send, 200, text.encode(), [(b"content-type", b"text/plain")])

    async def _unload(self, call: Call) -> None:
        wanted = _parsed(await call.body(), UnloadAdapterRequest)
        await self._operator.unload_adapter(wanted.lora_name)
        text = f"Success: LoRA adapter '{wanted.lora_name}' removed successfully."
        await send_bytes(call.send, 200, text.encode(), [(b"content-type", b"text/plain")])


def _query(call: Call) -> Mapping[str, str]:
    found = parse_qs(call.scope.get("query_string", b"").decode("latin-1"))
    return {name: values[-1] for name, values in found.items()}


def _wait_s(query: Mapping[str, str]) -> float:
    return _number(query, "timeout_s", wait_s_default)


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    if not text.replace(".", "", 1).isdecimal() or len(text) > number_length_max:
        raise InvalidRequest(f"{name} must be a number.", param=name)
    return float(text)


def _parsed(data: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not right: {error}.") from None

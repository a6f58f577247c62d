"""The playground's way to the gateway, which is another origin: two paths, streamed, bounded.

    browser -- x-headrace-key --> this -- Authorization: Bearer --> the gateway

Only whoever signed in gets through, and the gateway judges the key that they give; nothing here
knows a key of its own. The upstream address is fixed, so nobody can be led elsewhere.
"""

import re
from collections.abc import Awaitable, Callable

from headrace.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    HeadraceError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from headrace.http.asgi import (
    DisconnectScope,
    Receive,
    Scope,
    Send,
    header,
    json_header,
    read_body,
)
from headrace.http.client import Answer, HttpClient
from headrace.protocol.errors import error_body

prefix = "/admin/v1/playground"  # below the path of the console's session cookie
paths = {"/v1/chat/completions": "POST", "/v1/models": "GET"}
body_bytes_max = 1 << 20
streams_max = 32  # at once, of all people who signed in
first_byte_timeout_s = 600.0  # a deployment may have to wake from zero
chunk_timeout_s = 120.0
key_pattern = re.compile(r"[A-Za-z0-9_-]{1,256}")
passed_headers = ("content-type", "x-request-id", "retry-after")

SignedIn = Callable[[Scope], Awaitable[bool]]


class Playground:
    """An ASGI application below `prefix`."""

    def __init__(self, gateway_url: str, client: HttpClient, signed_in: SignedIn) -> None:
        self._gateway_url = gateway_url.rstrip("/")
        self._client = client
        self._signed_in = signed_in
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on; an error before the first byte is an answer in OpenAI's shape."""
        try:
            path = self._check(scope)
            if not await self._signed_in(scope):
                raise AuthenticationFailed("sign in to the console first")
            await self._pass_on(path, scope, receive, send)
        except ClientClosed:
            return
        except HeadraceError as error:
            await _refuse(send, error)

    def _check(self, scope: Scope) -> str:
        path = str(scope["path"]).removeprefix(prefix)
        if paths.get(path) != scope["method"]:
            raise NotFound(f"the playground has {', '.join(sorted(paths))} and no more")
        if key_pattern.fullmatch(header(scope, b"x-headrace-key") or "") is None:
            raise InvalidRequest("x-headrace-key: give an API key of this platform")
        if self._streams >= streams_max:
            raise Unavailable(f"{streams_max} playground requests are under way; try again soon")
        return path

    async def _pass_on(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams += 1
        try:
            body = await read_body(receive, body_bytes_max) if scope["method"] == "POST" else None
            headers = {"Authorization": f"Bearer {header(scope, b'x-headrace-key')}"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            # Who closes the page ends the request.
            async with DisconnectScope(receive, of_cuts=False):
                answer = await self._client.open(
                    str(scope["method"]),
                    self._gateway_url + path,
                    headers=headers,
                    body=body,
                    timeout_s=first_byte_timeout_s,
                )
                async with answer:
                    await _copy(answer, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._streams -= 1


async def _copy(answer: Answer, send: Send) -> None:
    """Pass the answer on as it comes but for its end; one that breaks ends in an event of it."""
    found = ((name, answer.header(name)) for name in passed_headers)
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
                *((name.encode(), value.encode("latin-1")) for name, value in found if value),
            ],
        }
    )
    try:
        while chunk := await answer.read_chunk(chunk_timeout_s):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except HeadraceError as error:
        event = b"data: " + error_body(error) + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def _refuse(send: Send, error: HeadraceError) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": error.http_status,
            "headers": [json_header, (b"cache-control", b"no-store")],
        }
    )
    await send({"type": "http.response.body", "body": error_body(error)})

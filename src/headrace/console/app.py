"""The console as an ASGI application: a few static files under a strict content policy.

Everything is read once at start, so that a request can name no path of the file system. There is no
secret in any of it; what the pages show comes from the admin API, which authenticates for itself.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.types import ASGIApp, Receive, Scope, Send

content_types = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
content_policy = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
security_headers = (
    (b"content-security-policy", content_policy.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it goes over the wire."""

    body: bytes
    content_type: str
    entity_tag: str


def create_console_app() -> ASGIApp:
    """The console's pages at `/`."""
    return ConsoleApp(load_files())


def load_files() -> dict[str, StaticFile]:
    """Every static file by its URL path; the page itself is `/`."""
    loaded = {}
    for found, entry in files_below(files("headrace.console").joinpath("static"), "/static/"):
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix not in content_types:
            continue
        body = entry.read_bytes()
        path = "/" if found == "/static/index.html" else found
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        loaded[path] = StaticFile(body, content_types[suffix], tag)
    return loaded


def files_below(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Every file in a folder and those in it, with its URL path."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from files_below(entry, f"{path}{entry.name}/")
        else:
            yield path + entry.name, entry


class ConsoleApp:
    """Answers GET and HEAD of known paths, and nothing else."""

    def __init__(self, static_files: dict[str, StaticFile]) -> None:
        self._files = static_files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one file; 304 when the browser has it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        found = self._files.get(scope["path"])
        if found is None:
            await _answer(send, 404, b"not found\n", "text/plain; charset=utf-8")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"", "text/plain; charset=utf-8", (b"allow", b"GET, HEAD"))
        else:
            tag = found.entity_tag.encode()
            known = any(
                name == b"if-none-match" and value == tag for name, value in scope["headers"]
            )
            body = b"" if known or scope["method"] == "HEAD" else found.body
            await _answer(send, 304 if known else 200, body, found.content_type, (b"etag", tag))


async def _answer(
    send: Send, status: int, body: bytes, content_type: str, *headers: tuple[bytes, bytes]
) -> None:
    """Send one whole answer. Browsers ask again each time, so an upgrade shows at once."""
    fixed = ((b"content-type", content_type.encode()), (b"cache-control", b"no-cache"))
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*fixed, *security_headers, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})

"""The console as an ASGI application: a few static files under a strict content policy.

Everything is read and compressed once at start, so that a request can name no path of the file
system. There is no secret in any of it; what the pages show comes from the admin API, which
authenticates for itself.
"""

import gzip
import hashlib
from collections.abc import Iterable, Iterator
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
    entity_tag: bytes
    compressed: bytes
    compressed_tag: bytes

    @classmethod
    def of(cls, body: bytes, content_type: str) -> "StaticFile":
        """Both forms of a file; the tag differs, since the bytes do."""
        digest = hashlib.sha256(body).hexdigest()[:32]
        compressed = gzip.compress(body, mtime=0)
        return cls(
            body, content_type, f'"{digest}"'.encode(), compressed, f'"{digest}-gzip"'.encode()
        )


def create_console_app() -> ASGIApp:
    """The console's pages at `/`."""
    return ConsoleApp(load_files())


def load_files() -> dict[str, StaticFile]:
    """Every static file by its URL path; the page itself is `/`."""
    bodies = {
        path: entry.read_bytes()
        for path, entry in files_below(files("headrace.console").joinpath("static"), "/static/")
        if suffix_of(path) in content_types
    }
    page = bodies.pop("/static/index.html")
    modules = sorted(path for path in bodies if suffix_of(path) == ".js" and "/vendor/" not in path)
    loaded = {
        path: StaticFile.of(body, content_types[suffix_of(path)]) for path, body in bodies.items()
    }
    loaded["/"] = StaticFile.of(with_preloads(page, modules), content_types[".html"])
    return loaded


def with_preloads(page: bytes, modules: Iterable[str]) -> bytes:
    """The page with a hint for each module, so that none waits until another one names it."""
    hints = "".join(f'<link rel="modulepreload" href="{path}">\n  ' for path in modules)
    before, script, after = page.partition(b'<script type="module"')
    return before + hints.encode() + script + after


def suffix_of(path: str) -> str:
    """What kind of file it is, by its name."""
    return path[path.rfind(".") :]


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
            await _send_file(send, found, scope)


async def _send_file(send: Send, found: StaticFile, scope: Scope) -> None:
    """Send a file in a form that the browser takes, or 304 if it has that."""
    asked = dict(scope["headers"])
    is_compressed = b"gzip" in asked.get(b"accept-encoding", b"")
    tag = found.compressed_tag if is_compressed else found.entity_tag
    known = asked.get(b"if-none-match") == tag
    body = found.compressed if is_compressed else found.body
    headers = [(b"etag", tag), (b"vary", b"accept-encoding")]
    if is_compressed:
        headers.append((b"content-encoding", b"gzip"))
    if known or scope["method"] == "HEAD":
        body = b""
    await _answer(send, 304 if known else 200, body, found.content_type, *headers)


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

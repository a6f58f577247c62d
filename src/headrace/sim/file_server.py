"""A loopback server of one file, or of a Hugging Face repository, that behaves as a script says.

It answers ranges, loses connections, refuses and redirects; as the hub it lists a repository's
files and tells digests: large ones by SHA-256, the others by git's.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

served_content = bytes(range(256)) * 4096  # 1 MiB
served_digest = hashlib.sha256(served_content).hexdigest()
hub_commit = "c0ffee0"
large_file_bytes_min = 1000


@dataclass
class ServerScript:
    """How the server behaves, and what it was asked."""

    content: bytes = served_content
    drop_after: list[int] = field(default_factory=list)  # bytes sent by each of the first answers
    statuses: list[int] = field(default_factory=list)  # of the first answers, instead
    honours_range: bool = True
    names_length: bool = True
    etag: str = '"v1"'
    redirect_to: str = ""
    linked_digest: str = served_digest  # what the hub says of its file
    repository: dict[str, bytes] = field(default_factory=dict)  # files of the hub's repository
    requests: list[dict[str, str]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [request["path"] for request in self.requests]


class _Handler(BaseHTTPRequestHandler):
    script: ServerScript

    def do_GET(self) -> None:
        """Send the file, a part of it, or what the script says instead."""
        script = self._note()
        if script.redirect_to and self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", script.redirect_to)
            self.end_headers()
            return
        if script.statuses:
            self.send_error(script.statuses.pop(0))
            return
        if self.path.startswith("/api/models/"):
            self._send(json.dumps(_listing(script.repository)).encode(), 0)
            return
        content = self._content()
        start = self._start()
        if start >= len(content):
            self.send_error(416)
            return
        self._send(content[start:], start)

    def do_HEAD(self) -> None:
        """Redirect, with the headers that tell what the file is."""
        script = self._note()
        if script.statuses:
            self.send_error(script.statuses.pop(0))
            return
        digest = script.linked_digest
        if script.repository:
            digest = hashlib.sha256(self._content()).hexdigest()
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        if not script.repository or len(self._content()) >= large_file_bytes_min:
            self.send_header("X-Linked-Etag", f'"{digest}"')
        self.send_header("X-Repo-Commit", hub_commit)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def _note(self) -> ServerScript:
        self.script.requests.append({"path": self.path, **dict(self.headers.items())})
        return self.script

    def _content(self) -> bytes:
        """The file asked for; the only one where there is no repository."""
        if not self.script.repository:
            return self.script.content
        name = urlsplit(self.path).path.partition("/resolve/")[2].partition("/")[2]
        return self.script.repository.get(name, b"")

    def _start(self) -> int:
        wanted = self.headers.get("Range", "")
        validator = self.headers.get("If-Range", self.script.etag)
        if not self.script.honours_range or not wanted or validator != self.script.etag:
            return 0
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def _send(self, body: bytes, start: int) -> None:
        script = self.script
        self.send_response(206 if start else 200)
        total = start + len(body)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if script.names_length:
            self.send_header("Content-Length", str(len(body)))
        if script.etag:
            self.send_header("ETag", script.etag)
        self.end_headers()
        is_file = not self.path.startswith("/api/")
        sent = body[: script.drop_after.pop(0)] if script.drop_after and is_file else body
        self.wfile.write(sent)


def _listing(files: Mapping[str, bytes]) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for name, content in files.items():
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False)
        entry: dict[str, object] = {"rfilename": name, "size": len(content)}
        entry["blobId"] = git.hexdigest()
        if len(content) >= large_file_bytes_min:
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        siblings.append(entry)
    return {"id": "owner/repo", "sha": hub_commit, "siblings": siblings, "tags": []}


@contextmanager
def serve_files(script: ServerScript) -> Iterator[str]:
    """Run a server; its address without a path."""
    handler = type("ScriptedHandler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

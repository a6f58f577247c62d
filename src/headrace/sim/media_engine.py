"""An engine for sound and images, made from the documents of OpenAI's audio and image routes and of
vLLM's transcriptions: it reads what it is sent with the standard library's own parser, so that a
form that a gateway has written anew is judged by somebody else.
"""

import asyncio
import base64
import email.policy
import json
from dataclasses import dataclass, field
from email.parser import BytesParser
from typing import Any

from headrace.http.asgi import Receive, Scope, Send, header, read_body, send_bytes, send_json

body_bytes_max = 128 * 1024 * 1024
sound = bytes(range(256)) * 40
picture = b"\x89PNG\r\n\x1a\n" + bytes(100)


@dataclass(slots=True)
class SentPart:
    """A part of a form."""

    name: str
    filename: str | None
    content_type: str
    data: bytes


@dataclass(slots=True)
class SentMedia:
    """A request that came."""

    path: str
    headers: dict[str, str]
    parts: list[SentPart] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)  # of a form's texts, or of JSON

    def part(self, name: str) -> SentPart:
        """The first part of this name."""
        return next(part for part in self.parts if part.name == name)


class MediaEngine:
    """The ASGI app; `seen` has every request."""

    def __init__(self, *, counts_tokens: bool = True, seconds: int | None = 3) -> None:
        """Without `counts_tokens` sounds are counted in seconds, as some models' are; it takes
        each to be of so many `seconds`, None: it tells nothing."""
        self._counts_tokens = counts_tokens
        self._seconds = seconds
        self.seen: list[SentMedia] = []
        self.gate: asyncio.Event | None = None  # opened before the second half of a sound
        self.refusal: int | None = None  # a status to answer with
        self.left = asyncio.Event()  # a caller went away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        body = await read_body(receive, body_bytes_max)
        if not path.startswith(("/v1/audio/", "/v1/images/")) or path.endswith("/variations"):
            await send_json(send, 404, b'{"error":{"message":"no such route"}}')
            return
        sent = self._read(scope, body)
        self.seen.append(sent)
        if self.refusal is not None:
            await send_json(send, self.refusal, b'{"error":{"message":"bad sound","code":400}}')
        elif path == "/v1/audio/speech":
            await self._speak(sent, send)
        elif path.startswith("/v1/audio/"):
            await self._write_down(sent, send)
        else:
            await self._draw(sent, send)

    def _read(self, scope: Scope, body: bytes) -> SentMedia:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        sent = SentMedia(scope["path"], headers)
        content_type = header(scope, b"content-type") or ""
        if not content_type.startswith("multipart/form-data"):
            sent.fields = json.loads(body)
            return sent
        head = f"Content-Type: {content_type}\r\n\r\n".encode()
        form = BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
        for part in form.iter_parts():
            data = part.get_payload(decode=True)
            assert isinstance(data, bytes), "a form's part is no form"
            name = str(part.get_param("name", header="content-disposition"))
            sent.parts.append(SentPart(name, part.get_filename(), part.get_content_type(), data))
            if part.get_filename() is None:
                sent.fields[name] = data.decode()
        return sent

    async def _write_down(self, sent: SentMedia, send: Send) -> None:
        usage: dict[str, Any] | None = None
        if self._seconds is not None:
            usage = {"type": "duration", "seconds": self._seconds}
        if self._counts_tokens:
            details = {"audio_tokens": 30, "text_tokens": 0}
            usage = {
                "type": "tokens",
                "input_tokens": 30,
                "input_token_details": details,
                "output_tokens": 5,
                "total_tokens": 35,
            }
        if sent.fields.get("response_format") == "text":
            await send_bytes(send, 200, b"Hello there.\n", [(b"content-type", b"text/plain")])
        elif sent.fields.get("stream") == "true":
            done = {"type": "transcript.text.done", "text": "Hello there.", "usage": usage}
            events = b'data: {"type":"transcript.text.delta","delta":"Hello"}\n\n'
            events += b"data: " + json.dumps(done).encode() + b"\n\n"
            await send_bytes(send, 200, events, [(b"content-type", b"text/event-stream")])
        else:
            answer = {"text": "Hello there.", "usage": usage}
            await send_json(send, 200, json.dumps(answer).encode())

    async def _speak(self, sent: SentMedia, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"audio/mpeg")],
        }
        await send(start)
        half = len(sound) // 2
        await send({"type": "http.response.body", "body": sound[:half], "more_body": True})
        if self.gate is not None:
            await self.gate.wait()
        await send({"type": "http.response.body", "body": sound[half:], "more_body": False})

    async def _draw(self, sent: SentMedia, send: Send) -> None:
        count = int(sent.fields.get("n") or 1)
        image = {"b64_json": base64.b64encode(picture).decode()}
        given = sum(part.filename is not None for part in sent.parts)
        details = {"text_tokens": 8, "image_tokens": 32 * given}
        usage = {
            "input_tokens": 8 + 32 * given,
            "output_tokens": 100 * count,
            "total_tokens": 8 + 32 * given + 100 * count,
            "input_tokens_details": details,
        }
        answer = {"created": 0, "data": [image] * count, "usage": usage}
        await send_json(send, 200, json.dumps(answer).encode())

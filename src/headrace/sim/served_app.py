"""An engine server's app as its clients see it, without a socket.

Bodies are for a model called `bytes`, as the engine server's tests serve one.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.service import ModelService
from headrace.http.asgi import App, Message, Scope
from headrace.protocol.sse import SseDecoder

endless = 30_000  # tokens: more than any test waits for
chat_path = "/v1/chat/completions"
completions_path = "/v1/completions"


@dataclass
class Exchange:
    """One request in flight and what was answered so far."""

    request: list[Message]
    sent: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        """The request; once it is read, nothing until the client is gone."""
        if self.request:
            return self.request.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take in a part of the answer."""
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.answered.set()

    @property
    def status(self) -> int:
        """The HTTP status."""
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """All of the body so far."""
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The body's error."""
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The stream's events; the closing one as the string [DONE]."""
        events = SseDecoder().feed(self.body)
        return ["[DONE]" if event.data == b"[DONE]" else json.loads(event.data) for event in events]


class ServedApp:
    """The app of one model service, and requests to it."""

    def __init__(
        self, app: EngineServerApp, service: ModelService, asked: App | None = None
    ) -> None:
        """Requests go to `asked`, which is the app itself unless the operator's is meant."""
        self.app = app
        self._asked = asked or app
        self.service = service

    def start(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[Exchange, "asyncio.Task[None]"]:
        """Send a request; what comes back, and the task that answers."""
        exchange = Exchange([{"type": "http.request", "body": body, "more_body": False}])
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": raw,
        }
        answer = self._serve(scope, exchange)
        return exchange, asyncio.create_task(answer)

    async def _serve(self, scope: Scope, exchange: Exchange) -> None:
        await self._asked(scope, exchange.receive, exchange.send)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Exchange:
        """The whole answer to a GET."""
        exchange, task = self.start("GET", path, headers=headers)
        await task
        return exchange

    async def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Exchange:
        """The whole answer to a POST."""
        exchange, task = self.start("POST", path, body, headers)
        await task
        return exchange

    async def metric(self, name: str) -> float:
        """The value of one metric without labels."""
        text = (await self.get("/metrics")).body.decode()
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.split()[1])


def chat_body(**fields: Any) -> bytes:
    """A chat request, 40 tokens of a greedy answer unless said otherwise."""
    messages = [{"role": "user", "content": "hello"}]
    defaults = {"model": "bytes", "messages": messages, "temperature": 0, "max_tokens": 40}
    return json.dumps({**defaults, **fields}).encode()


def text_body(**fields: Any) -> bytes:
    """The same as a text completion."""
    defaults = {"model": "bytes", "prompt": "hello", "temperature": 0, "max_tokens": 40}
    return json.dumps({**defaults, **fields}).encode()


def streamed_text(events: list[Any]) -> str:
    """The text that a stream's events add up to."""
    choices = [event["choices"][0] for event in events[:-1] if event["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for choice in choices
    )

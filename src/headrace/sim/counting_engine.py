"""A fake engine as a process of its own, which remembers what each request used: the oracle.

    python -m headrace.sim.counting_engine LISTENING_DESCRIPTOR

`/oracle` tells all it knows: for each request id the tokens of every attempt that reached it, and
which of them asked for the same under one key. A request that ended takes some hundred bytes, so
that a million of them fit.
"""

import socket
import sys
from collections import defaultdict
from dataclasses import dataclass

import msgspec

from headrace.base.errors import NotFound
from headrace.http import server
from headrace.http.asgi import Receive, Scope, Send, header, send_json
from headrace.protocol.errors import error_body
from headrace.protocol.responses import EndedRequest, Usage
from headrace.sim.engine import Behaviour, FakeEngine, FakeRequest, Seen

oracle_path = "/oracle"
_encode = msgspec.json.Encoder().encode

keyed_prompt = "keyed "  # how the prompts begin of requests that are sent under a key


class Oracle(msgspec.Struct):
    """What the engine knows."""

    tokens: dict[str, list[tuple[int, int]]]  # prompt and completion tokens by request id
    keyed: dict[str, str]  # prompts that name a key, by request id


class Said(msgspec.Struct):
    """What matters of a message."""

    content: str = ""


_message = msgspec.json.Decoder(Said).decode


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of an attempt that is over."""

    prompt_tokens: int
    completion_tokens: int
    finish_reason: str


class CountingEngine(FakeEngine):
    """Keeps the counts of every request and nothing else of it."""

    def __init__(self, tokens: int) -> None:
        super().__init__(default=Behaviour(tokens=tokens), remembers=False)
        self._attempts: dict[str, list[Seen | Ended]] = defaultdict(list)
        self._keyed: dict[str, str] = {}
        self._prompt_tokens = self._completion_tokens = 0  # of those that ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] == "http" and scope["path"] == oracle_path:
            tokens = {
                request_id: [(seen.prompt_tokens, seen.completion_tokens) for seen in attempts]
                for request_id, attempts in self._attempts.items()
            }
            known = Oracle(tokens, self._keyed)
            await send_json(send, 200, _encode(known))
        else:
            await super().__call__(scope, receive, send)

    async def _note(self, scope: Scope, body: bytes, request: FakeRequest) -> Seen:
        seen = await super()._note(scope, b"", request)
        request_id = header(scope, b"x-request-id") or ""
        self._attempts[request_id].append(seen)
        said = _message(request.messages[-1]).content if request.messages else ""
        if said.startswith(keyed_prompt):
            self._keyed[request_id] = said
        return seen

    async def _generate(self, scope: Scope, receive: Receive, send: Send, *, is_chat: bool) -> None:
        try:
            await super()._generate(scope, receive, send, is_chat=is_chat)
        finally:
            self._shorten(self._attempts.get(header(scope, b"x-request-id") or "", []))

    def _shorten(self, attempts: list[Seen | Ended]) -> None:
        """Keep no more than the numbers of those that ended."""
        for at, one in enumerate(attempts):
            if isinstance(one, Seen) and one.ended.is_set():
                attempts[at] = Ended(one.prompt_tokens, one.completion_tokens, one.finish_reason)
                self._prompt_tokens += one.prompt_tokens
                self._completion_tokens += one.completion_tokens

    async def _send_usage(self, request_id: str, send: Send) -> None:
        attempts = self._attempts.get(request_id)
        if not attempts:
            await send_json(send, 404, error_body(NotFound("no such request")))
            return
        last = attempts[-1]
        if isinstance(last, Seen):
            await last.ended.wait()
        usage = Usage.of(last.prompt_tokens, 0, last.completion_tokens)
        await send_json(send, 200, _encode(EndedRequest(request_id, usage, last.finish_reason)))

    def _metrics(self) -> bytes:
        """The load, and the tokens of the attempts that ended."""
        return (
            super()._metrics()
            + (
                f"headrace_engine_prompt_tokens_total {self._prompt_tokens}\n"
                f"headrace_engine_generation_tokens_total {self._completion_tokens}\n"
            ).encode()
        )


def main() -> None:
    """Serve on an inherited socket until SIGTERM."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(False)
    server.run(server.serve(CountingEngine(tokens=8), sock, drain_timeout_s=1.0))


if __name__ == "__main__":
    main()

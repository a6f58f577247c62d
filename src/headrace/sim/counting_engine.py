"""A fake engine as a process of its own, which remembers what each request used: the oracle.

    python -m headrace.sim.counting_engine LISTENING_DESCRIPTOR

`/oracle` tells all it knows: for each request id the tokens of every attempt that reached it.
"""

import socket
import sys
from collections import defaultdict

import msgspec

from headrace.base.errors import NotFound
from headrace.http import server
from headrace.http.asgi import Receive, Scope, Send, header, send_json
from headrace.protocol.errors import error_body
from headrace.protocol.responses import EndedRequest
from headrace.sim.engine import Behaviour, FakeEngine, FakeRequest, Seen

oracle_path = "/oracle"
_encode = msgspec.json.Encoder().encode

Oracle = dict[str, list[tuple[int, int]]]  # prompt and completion tokens by request id


class CountingEngine(FakeEngine):
    """Keeps the counts of every request and nothing else of it."""

    def __init__(self, tokens: int) -> None:
        super().__init__(default=Behaviour(tokens=tokens), remembers=False)
        self._attempts: dict[str, list[Seen]] = defaultdict(list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] == "http" and scope["path"] == oracle_path:
            known: Oracle = {
                request_id: [(seen.prompt_tokens, seen.completion_tokens) for seen in attempts]
                for request_id, attempts in self._attempts.items()
            }
            await send_json(send, 200, _encode(known))
        else:
            await super().__call__(scope, receive, send)

    async def _note(self, scope: Scope, body: bytes, request: FakeRequest) -> Seen:
        seen = await super()._note(scope, b"", request)
        self._attempts[header(scope, b"x-request-id") or ""].append(seen)
        return seen

    async def _send_usage(self, request_id: str, send: Send) -> None:
        attempts = self._attempts.get(request_id)
        if not attempts:
            await send_json(send, 404, error_body(NotFound("no such request")))
            return
        await attempts[-1].ended.wait()
        record = EndedRequest(request_id, attempts[-1].usage, attempts[-1].finish_reason)
        await send_json(send, 200, _encode(record))

    def _metrics(self) -> bytes:
        every = [seen for attempts in self._attempts.values() for seen in attempts]
        return (
            super()._metrics()
            + (
                f"headrace_engine_prompt_tokens_total {sum(one.prompt_tokens for one in every)}\n"
                "headrace_engine_generation_tokens_total "
                f"{sum(one.completion_tokens for one in every)}\n"
            ).encode()
        )


def main() -> None:
    """Serve on an inherited socket until SIGTERM."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(False)
    server.run(server.serve(CountingEngine(tokens=8), sock, drain_timeout_s=1.0))


if __name__ == "__main__":
    main()

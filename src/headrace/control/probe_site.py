"""What a process manager asks of the control plane's port, without a key.

    /livez     it answers
    /readyz    it serves its API; and which loops keep failing, if any do

A loop that keeps failing is no reason to take the API away, by which people find out why.
"""

import json
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from headrace.http.asgi import json_header, send_bytes

live_path, ready_path = "/livez", "/readyz"


class ProbeSite:
    """Both paths as one ASGI application."""

    def __init__(self, complaint: Callable[[], str]) -> None:
        """`complaint` says in words what keeps failing; empty: nothing does."""
        self._complaint = complaint

    def serves(self, scope: Scope) -> bool:
        """Whether a request is for these paths."""
        return scope["path"] in (live_path, ready_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["method"] not in ("GET", "HEAD"):
            await send_bytes(send, 405, b"", [(b"allow", b"GET, HEAD")])
            return
        told: dict[str, object] = {"state": "live"}
        if scope["path"] == ready_path:
            detail = self._complaint()
            told = {
                "state": "degraded" if detail else "ready",
                "progress": 1.0,
                "detail": detail,
            }
        await send_bytes(send, 200, json.dumps(told).encode(), [json_header])

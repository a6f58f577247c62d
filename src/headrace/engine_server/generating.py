"""What all generating routes share: whether requests are taken, who asks, and the answer."""

import re

from headrace.base.errors import InvalidRequest, Unavailable
from headrace.base.ids import new_id
from headrace.engine_server.answers import Answer, Caller, GeneratingRequest
from headrace.engine_server.metrics import Timings
from headrace.engine_server.service import ModelService
from headrace.http.asgi import Receive, Scope, Send, header

draining_retry_after_s = 1.0
paused_retry_after_s = 5.0
request_id_pattern = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
cache_salt_length_max = 128


class Generating:
    """Answers generating requests of any API, once they are chat or text completions."""

    def __init__(self, service: ModelService, timings: Timings, *, trusts_callers: bool) -> None:
        """Callers are trusted where there is a key: whoever has it may be the gateway."""
        self.service = service
        self.timings = timings
        self.trusts_callers = trusts_callers
        self.is_draining = False
        self.is_paused = False

    def check_accepting(self) -> None:
        """Raise Unavailable where new requests are refused."""
        if self.is_draining:
            raise Unavailable(
                "This server shuts down; try again on another one.",
                retry_after_s=draining_retry_after_s,
            )
        if self.is_paused:
            raise Unavailable(
                "This server is paused; try again later.", retry_after_s=paused_retry_after_s
            )

    def caller(self, scope: Scope) -> Caller:
        """The request id and cache salt: the gateway's, which has the key; else made and none."""
        sent_id = header(scope, b"x-request-id")
        if not self.trusts_callers or sent_id is None:
            request_id = new_id("req", self.service.clock)
        elif request_id_pattern.fullmatch(sent_id):
            request_id = sent_id
        else:
            raise InvalidRequest(
                "The request id has 1 to 128 letters, digits and . : _ -", param="X-Request-Id"
            )
        if not self.trusts_callers:
            return Caller(request_id)
        cache_salt = header(scope, b"x-headrace-cache-salt") or ""
        if len(cache_salt) > cache_salt_length_max:
            raise InvalidRequest("The cache salt is too long.", param="X-Headrace-Cache-Salt")
        return Caller(request_id, cache_salt)

    async def answer(
        self, request: GeneratingRequest, caller: Caller, receive: Receive, send: Send
    ) -> None:
        """Answer; raises what failed before the first byte."""
        await Answer(self.service, self.timings, request, caller).send(receive, send)

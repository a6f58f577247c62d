"""What all generating routes share: whether requests are taken, who asks, and the answer."""

import re

from headrace.base.errors import HeadraceError, InvalidRequest, Unavailable
from headrace.base.ids import new_id
from headrace.engine_server.answers import Answer, Caller, GeneratingRequest
from headrace.engine_server.metrics import Timings
from headrace.engine_server.service import ModelService
from headrace.engine_server.traces import end_trace
from headrace.http.asgi import Receive, Scope, Send, header
from headrace.observability.tracing import RequestTrace, Tracer

draining_retry_after_s = 1.0
paused_retry_after_s = 5.0
request_id_pattern = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
cache_salt_length_max = 128


class Generating:
    """Answers generating requests of any API, once they are chat or text completions."""

    def __init__(
        self,
        service: ModelService,
        timings: Timings,
        *,
        trusts_callers: bool,
        tracer: Tracer | None = None,
    ) -> None:
        """Callers are trusted where there is a key: whoever has it may be the gateway."""
        self._tracer = tracer
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
            return Caller(request_id, traceparent=self._traceparent(scope))
        cache_salt = header(scope, b"x-headrace-cache-salt") or ""
        if len(cache_salt) > cache_salt_length_max:
            raise InvalidRequest("The cache salt is too long.", param="X-Headrace-Cache-Salt")
        return Caller(request_id, cache_salt, self._traceparent(scope))

    def begin_trace(self, operation: str, scope: Scope) -> RequestTrace | None:
        """The span of what is no answer, child of the caller's; None where nothing is traced."""
        if self._tracer is None:  # nearly always
            return None
        name = f"{operation} {self.service.config.served_name}"
        return self._tracer.begin(name, header(scope, b"traceparent"), self.service.clock.wall_s())

    def _traceparent(self, scope: Scope) -> str | None:
        return None if self._tracer is None else header(scope, b"traceparent")

    async def answer(
        self, request: GeneratingRequest, caller: Caller, receive: Receive, send: Send
    ) -> None:
        """Answer; raises what failed before the first byte."""
        if self._tracer is None:  # nearly always
            await Answer(self.service, self.timings, request, caller).send(receive, send)
            return
        started_s = self.service.clock.wall_s()
        name = self.service.config.served_name
        trace = self._tracer.begin(f"chat {name}", caller.traceparent, started_s)
        answer = Answer(self.service, self.timings, request, caller, trace_id=trace.exemplar_id)
        code: str | None = None
        try:
            await answer.send(receive, send)
        except HeadraceError as error:
            code = error.code
            raise
        finally:
            end_trace(
                trace,
                answer,
                request_id=caller.request_id,
                model_name=name,
                started_s=started_s,
                error_code=code,
            )

"""What each request used, from the moment it is accepted until a while after it ended.

One place counts tokens: bills (`/internal/usage`), answers and `/metrics` all come from the same
last output of each request, so that they agree to the token, also over engine crashes.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from headrace.base.errors import Conflict, NotFound
from headrace.engine_server.messages import Output
from headrace.observability.metrics import Histogram, token_buckets
from headrace.protocol.responses import CompletionTokensDetails, EndedRequest, Usage

ended_requests_max = 10_000
no_usage = Usage.of(0, 0, 0)


@dataclass(slots=True)
class TokenTotals:
    """Tokens of a set of requests."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, output: Output) -> None:
        """Count one more request by its last output."""
        self.prompt_tokens += output.prompt_tokens
        self.cached_tokens += output.cached_tokens
        self.completion_tokens += output.completion_tokens


def usage_of(output: Output) -> Usage:
    """A request's usage up to and including an output; drafts are named where there were any."""
    usage = Usage.of(output.prompt_tokens, output.cached_tokens, output.completion_tokens)
    accepted, refused = output.accepted_drafts, output.refused_drafts
    if not accepted + refused:
        return usage
    details = CompletionTokensDetails(0, accepted, refused)
    return msgspec.structs.replace(usage, completion_tokens_details=details)


class UsageLog:
    """Live requests by id, and the last ones that ended."""

    def __init__(self) -> None:
        self.totals = TokenTotals()  # of ended requests
        self.input_tokens = Histogram(token_buckets)  # of ended requests, each
        self.output_tokens = Histogram(token_buckets)
        self.queue_s = Histogram()  # of ended requests that were ever computed
        self.ended_counts: dict[str, int] = {}  # by finish reason
        self._live: dict[str, asyncio.Event] = {}
        self._ended: OrderedDict[str, EndedRequest] = OrderedDict()

    def begin(self, request_id: str) -> None:
        """Note that a request was accepted; Conflict if one with this id runs."""
        if request_id in self._live:
            raise Conflict(
                f"Request id {request_id} is in use; send a new id for each request.",
                param="X-Request-Id",
            )
        self._live[request_id] = asyncio.Event()

    def forget(self, request_id: str) -> None:
        """Note that a request was refused before it could use anything."""
        ended = self._live.pop(request_id, None)
        if ended is not None:
            ended.set()

    def end(self, request_id: str, output: Output | None, reason: str) -> None:
        """Note how a request ended; `output` is its last one, None if there was none."""
        if reason == "rejected":
            self.forget(request_id)
            return
        self.ended_counts[reason] = self.ended_counts.get(reason, 0) + 1
        usage = no_usage
        if output is not None:
            self.totals.add(output)
            self.input_tokens.observe(output.prompt_tokens)
            self.output_tokens.observe(output.completion_tokens)
            if output.queue_s is not None:
                self.queue_s.observe(output.queue_s)
            usage = usage_of(output)
        self._ended[request_id] = EndedRequest(request_id, usage, reason)
        if len(self._ended) > ended_requests_max:
            self._ended.popitem(last=False)
        self.forget(request_id)

    async def find(self, request_id: str, timeout_s: float) -> EndedRequest:
        """What a request used, once it has ended; NotFound if it did not end in time."""
        live = self._live.get(request_id)
        if live is not None:
            try:
                await asyncio.wait_for(live.wait(), timeout_s)
            except TimeoutError:
                raise NotFound(f"Request {request_id} still runs; ask again later.") from None
        if request_id not in self._ended:
            raise NotFound(f"No request {request_id} ended here lately.")
        return self._ended[request_id]

"""A request of which two engines do a half each: both are asked at once, and one answers.

    attempt at D begins ── P by `router.split` ──┬──> P   the same request; its answer is not read
                                                 └──> D   waits for P's KV, then answers

So it is with engines whose part is an argument of their start (`EngineFacts.roles_are_fixed`): D
cannot compute a prompt, P cannot answer. If P fails before D has a first byte, D is ended and both
are asked anew, with another P; behind it D has all it needs. Nothing of P reaches the caller, and
D's usage is what is charged.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from headrace.adapters.meeting import meeting_fields, rooms
from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError, NotFound, Unavailable
from headrace.gateway.attempt import Attempt
from headrace.gateway.forwarding import EngineRequest, Forwarding
from headrace.gateway.split import suffix
from headrace.gateway.upstream import (
    conclude,
    engine_headers,
    engine_url,
    refusal,
    small_answer_bytes_max,
)
from headrace.router.lease import Lease

Result = TypeVar("Result")

prefills_max = 3  # endpoints for one attempt's prompt
retry_after_s = 1.0

log = logging.getLogger(__name__)


class OtherHalf:
    """The half of one attempt that computes the prompt."""

    def __init__(self, forwarding: Forwarding, request: EngineRequest) -> None:
        self._forwarding = forwarding
        self._request = request
        self._tried: set[str] = set()
        self._asking: asyncio.Task[None] | None = None
        self.failed = asyncio.Event()
        self.failure: HeadraceError | None = None  # with it

    @property
    def may_go_elsewhere(self) -> bool:
        """Whether another endpoint may be asked than those that failed."""
        return len(self._tried) < prefills_max

    def begin(self, attempt: Attempt) -> Mapping[str, object]:
        """Ask for the prompt; the fields by which the attempt's engine finds its KV.

        Unavailable if nobody is there to compute it, NotFound if nothing is to be generated."""
        forwarding, request = self._forwarding, self._request
        if request.may_split is None:
            raise NotFound(f"The engine of this model does not offer {request.path}.")
        now_s = forwarding.clock.monotonic_s()
        lease = forwarding.splitter.lease(attempt.lease, request.errand.work, now_s, self._tried)
        if lease is None:
            raise Unavailable(
                "No replica that computes prompts can take the request now; try again.",
                retry_after_s=retry_after_s,
            )
        spec = lease.endpoint.spec
        self._tried.add(spec.id)
        fields = meeting_fields(spec.address, spec.peer_port, secrets.randbelow(rooms))
        self._asking = asyncio.create_task(self._ask(lease, attempt, fields))
        attempt.is_split = True
        return fields

    async def _ask(self, lease: Lease, attempt: Attempt, fields: Mapping[str, object]) -> None:
        result = "failed"
        try:
            await self._compute(lease, attempt, fields)
            result = "done"
        except HeadraceError as error:
            self.failure = error
            self.failed.set()
        except Exception:  # whoever waits for the answer would wait in vain
            log.exception("the prompt of request %s was not computed", attempt.request_id)
            self.failure = HeadraceError(
                f"The gateway failed on this request; its log says why, under {attempt.request_id}."
            )
            self.failed.set()
        finally:
            lease.release()
            self._forwarding.counters.splits[result] += 1

    async def _compute(self, lease: Lease, attempt: Attempt, fields: Mapping[str, object]) -> None:
        """Have the prompt computed; what comes back is read and dropped."""
        forwarding, request, spec = self._forwarding, self._request, lease.endpoint.spec
        timeout_s = forwarding.timeouts.first_output_s
        extras = find_adapter(spec.engine).extras(
            stream=request.streams,
            request_id=attempt.request_id + suffix,
            cache_salt=request.cache_salt,
        )
        try:
            answer = await forwarding.client.open(
                "POST",
                engine_url(spec, request.path),
                headers=engine_headers(spec, extras.headers),
                body=request.body_for(spec, {**extras.fields, **fields}),
                timeout_s=timeout_s,
            )
            async with answer:
                if answer.status != 200:
                    said = await answer.read_all(small_answer_bytes_max, timeout_s)
                else:
                    lease.answered()
                    while await answer.read_chunk(timeout_s):
                        pass
        except HeadraceError:
            lease.fail(forwarding.clock.monotonic_s())
            forwarding.counters.ejections += 1
            raise
        now_s = forwarding.clock.monotonic_s()
        if answer.status != 200:
            forwarding.counters.ejections += conclude(lease, answer.status, said, now_s)
            raise refusal(spec, answer.status, said)
        lease.succeed()
        lease.prefilled(now_s)

    async def close(self) -> None:
        """Nobody needs the prompt any more; another try may follow."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self.failed.clear()
        self.failure = None


async def with_other_half(
    run: Callable[[Attempt], Awaitable[Result]], attempt: Attempt, half: OtherHalf
) -> Result:
    """Run an attempt whose prompt is computed beside it; raises what either half failed with."""
    attempt.meet = partial(half.begin, attempt)
    while True:
        try:
            return await _until_half_fails(run, attempt, half)
        except HeadraceError as error:
            is_its_own = error is half.failure
            if not is_its_own or not error.retryable or not half.may_go_elsewhere:
                raise
        finally:
            await half.close()


async def _until_half_fails(
    run: Callable[[Attempt], Awaitable[Result]], attempt: Attempt, half: OtherHalf
) -> Result:
    answering = asyncio.ensure_future(run(attempt))
    failing = asyncio.ensure_future(half.failed.wait())
    try:
        await asyncio.wait((answering, failing), return_when=asyncio.FIRST_COMPLETED)
        if half.failure is not None and not answering.done() and not attempt.has_output:
            attempt.sent_to = None  # it waits for what will not come
            raise half.failure
        return await answering
    finally:
        for task in (answering, failing):
            task.cancel()
        await asyncio.gather(answering, failing, return_exceptions=True)

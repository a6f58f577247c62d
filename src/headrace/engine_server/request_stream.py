"""One request between the HTTP and the engine process: its outputs as they come, and its usage."""

import asyncio

from headrace.base.errors import HeadraceError
from headrace.engine_server.messages import Output, Submit


class RequestStream:
    """One request's outputs as they come."""

    __slots__ = (
        "_error",
        "_last",
        "_open",
        "_outputs",
        "_waiter",
        "abandoned",
        "abort_reason",
        "deadline_s",
        "is_sent",
        "sent_count",
        "submit",
    )

    def __init__(self, submit: Submit, now_s: float) -> None:
        self.submit = submit
        self.deadline_s = None if submit.timeout_s is None else now_s + submit.timeout_s
        self.sent_count = 0  # how often it went to an engine
        self.is_sent = False  # to the engine that runs
        self.abandoned = False  # nobody waits for more of it
        self.abort_reason: HeadraceError | None = None  # what a reader that is there is told
        self._open = set(range(submit.choices))
        self._last: dict[int, Output] = {}
        self._outputs: list[Output] = []
        self._error: HeadraceError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def last(self) -> Output | None:
        """The request's usage up to now, as its last output would say it; None before the first."""
        return _sum_of(list(self._last.values()))

    @property
    def is_open(self) -> bool:
        """Whether a choice has not ended."""
        return bool(self._open)

    async def next(self) -> list[Output]:
        """All outputs since the last call, at least one; raises what ended the request early."""
        if not self._outputs:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            if not self._outputs:
                assert self._error is not None, "a reader is woken by an output or an error"
                raise self._error
        outputs, self._outputs = self._outputs, []
        return outputs

    def push(self, output: Output) -> None:
        """Add an output and wake the reader; what comes of a choice after its end is dropped."""
        if output.index not in self._open:
            return
        self._last[output.index] = output
        if output.finish_reason is not None:
            self._open.remove(output.index)
        self._outputs.append(output)
        self._wake()

    def end_choice(self, output: Output) -> bool:
        """End a choice at this output of it; False if it has ended already."""
        if output.index not in self._open:
            return False
        self._open.remove(output.index)
        self._last[output.index] = output
        return True

    def fail(self, error: HeadraceError) -> None:
        """End the stream with an error, after the outputs that are there."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _sum_of(outputs: list[Output]) -> Output | None:
    """One output with the usage of these, one of each choice."""
    if len(outputs) < 2:
        return outputs[0] if outputs else None
    waits_s = [output.queue_s for output in outputs if output.queue_s is not None]
    return Output(
        outputs[0].request_id,
        [],
        None,
        sum(output.prompt_tokens for output in outputs),
        sum(output.cached_tokens for output in outputs),
        sum(output.completion_tokens for output in outputs),
        queue_s=min(waits_s, default=None),
        accepted_drafts=sum(output.accepted_drafts for output in outputs),
        refused_drafts=sum(output.refused_drafts for output in outputs),
    )

"""One batch's requests: asked a few at a time, their answers written as they come."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.base.errors import ClientClosed
from headrace.gateway.batch_values import (
    InputLine,
    KeptBatch,
    LineResponse,
    OutputLine,
    RequestCounts,
    done_ids,
    parse_line,
    read_lines,
)
from headrace.gateway.inside import InsideAnswer, InsideRequests

requests_at_once_max = 32  # of one batch; the queue before the replicas decides who goes first
tries_max = 30  # of one request while the platform cannot answer it
retry_s_max = 60.0
_encode = msgspec.json.Encoder().encode


class BatchWork:
    """What is left to do of a batch; `outputs` are the files of answers and of errors."""

    def __init__(
        self,
        kept: KeptBatch,
        input_path: Path,
        outputs: tuple[Path, Path],
        inside: InsideRequests,
        places: asyncio.Semaphore,
    ) -> None:
        self._kept = kept
        self._input_path = input_path
        self.outputs = outputs
        self._inside = inside
        self._places = places
        self._done: set[str] = set()
        self._completed = self._failed = 0
        self._files: list[BinaryIO] = []
        self._gone = asyncio.Event()  # nobody wants the answers any more

    def resume(self) -> None:
        """Read what an earlier process wrote, and go on behind it."""
        answered, failed = (done_ids(path) for path in self.outputs)
        self._done = answered | failed
        self._completed, self._failed = len(answered), len(failed)
        self._files = [path.open("ab", buffering=0) for path in self.outputs]

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def abandon(self) -> None:
        """Nobody wants the answers that are not there yet: what runs is aborted, as if its caller
        had left, and nothing else is asked."""
        self._gone.set()

    def counts(self) -> RequestCounts:
        """How far it is."""
        total = self._kept.batch.request_counts.total
        return RequestCounts(total, self._completed, self._failed)

    async def ask_all(self) -> None:
        """Ask what is not done, so many at a time."""
        lines = self._lines_left()
        async with asyncio.TaskGroup() as workers:
            for _ in range(requests_at_once_max):
                workers.create_task(self._ask_each(lines))

    def _lines_left(self) -> Iterator[tuple[int, InputLine]]:
        for number, line in enumerate(read_lines(self._input_path), start=1):
            found = parse_line(line, self._kept.batch.endpoint)
            if found.custom_id not in self._done:
                yield number, found

    async def _ask_each(self, lines: Iterator[tuple[int, InputLine]]) -> None:
        for number, line in lines:
            try:
                await self._ask(number, line)
            except ClientClosed:
                return

    async def _ask(self, number: int, line: InputLine) -> None:
        """Ask until there is an answer that would stay the same; ClientClosed once given up."""
        batch = self._kept.batch
        for attempt in range(tries_max):
            request_id = f"{batch.id}.{number}" + (f".{attempt}" if attempt else "")
            async with self._places:
                if self._gone.is_set():
                    raise ClientClosed("The batch was given up.")
                answer = await self._inside.run(
                    batch.endpoint, bytes(line.body), self._kept.key_id, request_id, self._gone
                )
            if answer.retry_after_s is None:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    min(retry_s_max, answer.retry_after_s * 2 ** min(attempt, 6))
                ):
                    await self._gone.wait()
        self._write(line, request_id, answer)

    def _write(self, line: InputLine, request_id: str, answer: InsideAnswer) -> None:
        response = LineResponse(answer.status, request_id, msgspec.Raw(answer.body))
        output = OutputLine(f"batch_req_{request_id}", line.custom_id, response)
        is_answer = answer.status == 200
        write_whole(self._files[0 if is_answer else 1], _encode(output) + b"\n")
        if is_answer:
            self._completed += 1
        else:
            self._failed += 1
        self._done.add(line.custom_id)


def write_whole(file: BinaryIO, line: bytes) -> None:
    """Write a line to an unbuffered file; OSError if only its beginning has room, which the next
    start cuts off."""
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]

"""The process that posts a gateway's journal to the ledger, and the gateway's hold on it.

    python -m headrace.gateway.posting_process DATABASE JOURNAL

It answers one question at a time over its standard input and output, and ends when they close,
so it never outlives its gateway. It is nicer than the gateway to other work: a settlement may be
booked late, a token may not come late. One that died is started anew at the next question.
"""

import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from headrace.base.errors import HeadraceError, Unavailable
from headrace.ledger.poster import BatchPoster, Posted, Poster
from headrace.storage import open_database

address_variable = "HEADRACE_POSTING_DATABASE_URL"  # from a gateway to its own child
niceness = 5
end_timeout_s = 10.0  # a transaction that runs is let end
answer_timeout_s = 120.0  # of a batch; the first opens the database, which may be migrated then
length = struct.Struct("<I")


class PostQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Post what comes next, up to here."""

    journal_id: str
    durable_sequence: int


class PostAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it, or why nothing did."""

    posted: Posted | None = None
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
_question = msgspec.msgpack.Decoder(PostQuestion)
_answer = msgspec.msgpack.Decoder(PostAnswer)


class PostingProcess:
    """A `Poster` whose work is done by a child; one thread uses it."""

    def __init__(self, database: Path, journal: Path, database_url: str | None = None) -> None:
        """With an address the ledger is there; a child's environment shows no password to `ps`."""
        self._command = (sys.executable, "-m", "headrace.gateway.posting_process")
        self._paths = (str(database), str(journal))
        self._environment = {**os.environ, address_variable: database_url or ""}
        self._process: subprocess.Popen[bytes] | None = None

    def post(self, journal_id: str, durable_sequence: int) -> Posted:
        """As `Poster.post`; Unavailable if the child says why not, ended, or took too long."""
        data, is_late = self._ask(_encode(PostQuestion(journal_id, durable_sequence)))
        if not data:
            self.close()
            why = f"gave no answer for {answer_timeout_s:.0f} s" if is_late else "ended"
            raise Unavailable(f"the process that posts to the ledger {why}; it is started anew")
        try:
            answer = _answer.decode(data)
        except msgspec.DecodeError:  # whatever follows would be read from a wrong place, too
            self.close()
            raise Unavailable(
                "the process that posts to the ledger said what is no answer; it is started anew"
            ) from None
        if answer.posted is None:
            raise Unavailable(answer.error)
        return answer.posted

    def _ask(self, question: bytes) -> tuple[bytes, bool]:
        """The answer, empty if there is none, and whether the child was killed for its slowness."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def end() -> None:  # its pipes close with it, and so the caller goes on
            is_late.set()
            process.kill()

        patience = threading.Timer(answer_timeout_s, end)
        patience.daemon = True
        patience.start()
        try:
            write(process.stdin, question)
            return read(process.stdout), is_late.is_set()
        except OSError:
            return b"", is_late.is_set()
        finally:
            patience.cancel()

    def close(self) -> None:
        """End the child and wait until it has."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it ended first
            process.stdin.close()
        try:
            process.wait(end_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(  # noqa: S603 -- our own program and our own paths
            [*self._command, *self._paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        return self._process


def write(pipe: IO[bytes], data: bytes) -> None:
    """Send one message."""
    pipe.write(length.pack(len(data)) + data)
    pipe.flush()


def read(pipe: IO[bytes]) -> bytes:
    """Receive one message; empty when the other side has gone."""
    head = pipe.read(length.size)
    if len(head) < length.size:
        return b""
    (size_bytes,) = length.unpack(head)
    data = pipe.read(size_bytes)
    return data if len(data) == size_bytes else b""


def answer_all(questions: IO[bytes], answers: IO[bytes], make: Callable[[], Poster]) -> None:
    """Post as asked until nobody asks any more."""
    poster: Poster | None = None
    while data := read(questions):
        question = _question.decode(data)
        try:
            poster = poster or make()
            answer = PostAnswer(poster.post(question.journal_id, question.durable_sequence))
        except (HeadraceError, OSError) as error:
            answer = PostAnswer(error=str(error))
        write(answers, _encode(answer))


def main(arguments: list[str]) -> None:
    """Post the journal of the second argument to the database at the address, or of the first."""
    database, journal = (Path(argument) for argument in arguments)
    url = os.environ.get(address_variable)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the gateway still ships when it is told to end
    os.nice(niceness)
    answer_all(
        sys.stdin.buffer,
        sys.stdout.buffer,
        lambda: BatchPoster(journal, open_database(database, url).ledger),
    )


if __name__ == "__main__":
    main(sys.argv[1:])

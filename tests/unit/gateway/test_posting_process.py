"""The process that posts: what it books, what it says when it cannot, how it ends."""

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import Unavailable
from headrace.gateway.posting_process import (
    PostAnswer,
    PostingProcess,
    PostQuestion,
    _answer,
    _encode,
    answer_all,
    read,
    write,
)
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.meter import Meter
from headrace.ledger.poster import Posted
from headrace.ledger.reservation import Outcome, TokenUsage
from headrace.sim.clock import ManualClock
from headrace.sim.gateway_site import price
from headrace.spec.prices import PriceVersion
from headrace.storage import Database, LedgerSnapshot, open_sqlite


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_sqlite(tmp_path / "headrace.db")
    yield database
    database.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    clock = ManualClock()
    journal = Journal(tmp_path / "journal")
    meter = Meter(Admission(clock), journal)
    for number in range(3):
        reservation = meter.reserve(
            request_id=f"req_{number}",
            tenant_id="ten_a",
            project_id="prj_a",
            key_id="key_a",
            model="demo",
            price=PriceVersion("prb_a", price),
            credit_floor_nanousd=None,
            prompt_tokens_max=10,
            output_tokens_max=10,
        )
        sequence = meter.settle(reservation, TokenUsage(5, 0, 2), Outcome.FINISHED)
    journal.wait_durable(sequence, 30.0)
    yield journal
    journal.close()


def test_a_child_books_what_the_journal_holds_and_comes_back_when_it_died(
    tmp_path: Path, database: Database, journal: Journal
) -> None:
    poster = PostingProcess(tmp_path / "headrace.db", journal.directory)
    try:
        posted = poster.post(journal.journal_id, journal.durable_sequence)
        assert (posted.passed, posted.sequence, posted.is_behind) == (6, 6, False)
        assert posted.snapshot == database.ledger.snapshot()
        assert database.ledger.settlement_count() == 3
        process = poster._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(Unavailable, match="started anew"):
            poster.post(journal.journal_id, journal.durable_sequence)
        assert poster.post(journal.journal_id, journal.durable_sequence).sequence == 6
        assert database.ledger.settlement_count() == 3
    finally:
        poster.close()
    assert database.ledger.check() == []


def test_a_failure_is_an_answer_and_the_next_question_is_asked_anew() -> None:
    failures = [Unavailable("the database is locked")]

    class Stub:
        def post(self, journal_id: str, durable_sequence: int) -> Posted:
            if failures:
                raise failures.pop()
            return Posted(1, durable_sequence, False, LedgerSnapshot({}, {}))

        def close(self) -> None:
            raise AssertionError("it ends with its pipes")

    questions, answers = io.BytesIO(), io.BytesIO()
    for _ in range(2):
        write(questions, _encode(PostQuestion("jrn", 7)))
    questions.seek(0)
    answer_all(questions, answers, Stub)
    answers.seek(0)
    first, second = (_answer.decode(read(answers)) for _ in range(2))
    assert first == PostAnswer(error="the database is locked")
    assert second.posted is not None
    assert second.posted.sequence == 7
    assert read(answers) == b""


def test_what_is_no_answer_is_an_error_and_the_next_question_is_asked_anew(
    database: Database, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poster = PostingProcess(tmp_path / "headrace.db", journal.directory)
    heard = [b"\xc1 no answer"]
    monkeypatch.setattr(
        "headrace.gateway.posting_process.read", lambda pipe: heard.pop() if heard else read(pipe)
    )
    try:
        with pytest.raises(Unavailable, match="started anew"):
            poster.post(journal.journal_id, journal.durable_sequence)
        poster.post(journal.journal_id, journal.durable_sequence)
    finally:
        poster.close()
    assert database.ledger.settlement_count() == 3


def test_a_child_that_hangs_is_ended_and_the_next_question_is_asked_anew(
    database: Database, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poster = PostingProcess(tmp_path / "headrace.db", journal.directory)
    try:
        poster.post(journal.journal_id, 1)
        process = poster._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        with monkeypatch.context() as patched:
            patched.setattr("headrace.gateway.posting_process.answer_timeout_s", 0.01)
            with pytest.raises(Unavailable, match=r"no answer for .* started anew"):
                poster.post(journal.journal_id, journal.durable_sequence)
        assert process.returncode == -signal.SIGKILL
        assert poster.post(journal.journal_id, journal.durable_sequence).sequence == 6
    finally:
        poster.close()
    assert database.ledger.settlement_count() == 3

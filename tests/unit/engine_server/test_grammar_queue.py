"""A slow grammar holds up other grammars only, and what left while it compiled is not computed."""

from queue import Queue
from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.base.errors import HeadraceError, InvalidRequest, RateLimited
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.request import TokenConstraint
from headrace.engine_server.grammar_queue import (
    GrammarActions,
    GrammarQueue,
    wait_s_max,
    waiting_max,
)
from headrace.engine_server.messages import Grammar, Submit
from headrace.sim.clock import ManualClock
from headrace.sim.grammar import Anything

if TYPE_CHECKING:
    from tests.unit.engine_server.conftest import MakeSubmit

timeout_s = 30


class Panic(BaseException):
    """What a panic in Rust is in Python."""


class Site:
    """The queue, with a gate before each grammar that is called `slow`."""

    def __init__(self, make_submit: "MakeSubmit") -> None:
        self.make_submit = make_submit
        self.happened: Queue[tuple[str, str]] = Queue()
        self.gate, self.compiling = Event(), Event()
        self.clock = ManualClock()
        actions = GrammarActions(self._compile, self._submit, self._reject, self._aborted)
        self.queue = GrammarQueue(actions, self.clock)

    def put(self, request_id: str, grammar: str) -> None:
        self.queue.put(self.make_submit(request_id, grammar=Grammar("regex", grammar, "guided")))

    def next(self) -> tuple[str, str]:
        return self.happened.get(timeout=timeout_s)

    def _compile(self, grammar: Grammar) -> TokenConstraint:
        if grammar.text == "slow":
            self.compiling.set()
            assert self.gate.wait(timeout_s)
        if grammar.text == "wrong":
            raise InvalidRequest("wrong")
        if grammar.text == "panic":
            raise Panic
        return Anything()

    def _submit(
        self, message: Submit, constraint: TokenConstraint, parcel: KvParcel | None
    ) -> None:
        if message.request_id == "no room":
            raise RateLimited("no room")
        self.happened.put(("submitted", message.request_id))

    def _reject(self, request_id: str, error: HeadraceError) -> None:
        self.happened.put((error.code, request_id))

    def _aborted(self, request_id: str) -> None:
        self.happened.put(("aborted", request_id))


@pytest.fixture
def site(make_submit: "MakeSubmit") -> Site:
    return Site(make_submit)


def test_requests_are_submitted_when_their_grammar_is_compiled(site: Site) -> None:
    site.put("a", "[a-z]")
    assert site.next() == ("submitted", "a")
    site.put("b", "wrong")
    assert site.next() == ("invalid_request", "b")
    site.put("no room", "[a-z]")
    assert site.next() == (RateLimited.code, "no room")
    site.put("c", "[a-z]")
    assert site.next() == ("submitted", "c")


def test_what_left_while_its_grammar_compiled_is_not_submitted(site: Site) -> None:
    site.put("a", "slow")
    assert site.compiling.wait(timeout_s)
    site.put("b", "[a-z]")
    assert site.queue.abort("a")
    assert not site.queue.abort("unknown")
    site.gate.set()
    assert site.next() == ("aborted", "a")
    assert site.next() == ("submitted", "b")
    assert not site.queue.abort("b")


def test_what_left_before_its_turn_is_not_compiled(site: Site) -> None:
    site.put("a", "slow")
    assert site.compiling.wait(timeout_s)
    site.put("b", "wrong")
    assert site.queue.abort("b")
    site.gate.set()
    assert site.next() == ("submitted", "a")
    assert site.next() == ("aborted", "b")


def test_those_who_wait_are_bounded_in_number_and_time(site: Site) -> None:
    site.put("slow", "slow")
    assert site.compiling.wait(timeout_s)
    for index in range(waiting_max):
        site.put(f"r{index}", "[a-z]")
    with pytest.raises(RateLimited):
        site.put("one more", "[a-z]")
    assert not site.queue.abort("one more")
    site.clock.advance(wait_s_max + 1)
    site.gate.set()
    assert site.next() == ("submitted", "slow")
    assert {site.next()[0] for _ in range(waiting_max)} == {RateLimited.code}


def test_a_grammar_that_breaks_the_compiler_fails_its_own_request_alone(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.put("broken", "panic")
    site.put("next", "good")
    assert site.next() == ("invalid_request", "broken")
    assert site.next() == ("submitted", "next")
    assert "broken: its grammar broke the compiler" in caplog.text

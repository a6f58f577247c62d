"""The conversation behind `headrace run`."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import ContextLengthExceeded, HeadraceError
from headrace.cli.run import AnswerSettings, Conversation, Terminal, temperature_default
from headrace.engine_server.messages import Output
from headrace.engine_server.text_stream import TextPiece
from headrace.protocol.requests import ChatRequest

settings = AnswerSettings(temperature_default, None, None)


class FakeText:
    """An answer in two pieces; `interrupted` stops it after the first, as Ctrl-C does."""

    def __init__(self, interrupted: bool) -> None:
        self._pieces = ["an", "swer"]
        self._interrupted = interrupted

    def __enter__(self) -> "FakeText":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def next(self) -> TextPiece:
        if self._interrupted and len(self._pieces) == 1:
            raise KeyboardInterrupt
        text = self._pieces.pop(0)
        reason = None if self._pieces else "stop"
        return TextPiece(text, reason, Output("r", [1], reason, 1, 0, 1))


class FakeService:
    """Stands for ModelService: remembers what it was asked."""

    def __init__(self) -> None:
        engine = SimpleNamespace(adapters=())
        self.config: Any = SimpleNamespace(served_name="fake", engine=engine)
        self.clock = SystemClock()
        self.asked: list[list[tuple[str, str]]] = []
        self.interrupted = False
        self.refusal: HeadraceError | None = None

    async def open(self, request: ChatRequest, request_id: str) -> FakeText:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append([(message.role, message.text) for message in request.messages])
        return FakeText(self.interrupted)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


def say(service: FakeService, conversation: Conversation, *lines: str) -> None:
    stand_in: Any = service
    terminal = Terminal(stand_in, conversation, settings)
    with asyncio.Runner() as runner:
        for line in lines:
            terminal.take_line(runner, line)


def test_every_turn_is_part_of_the_next_question(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    say(service, Conversation("be kind"), "one", "two")
    assert service.asked[1] == [
        ("system", "be kind"),
        ("user", "one"),
        ("assistant", "answer"),
        ("user", "two"),
    ]
    assert capsys.readouterr().out == "answer\nanswer\n"


def test_clear_forgets_all_but_the_instructions(service: FakeService) -> None:
    say(service, Conversation("be kind"), "one", "/clear", "two")
    assert service.asked[1] == [("system", "be kind"), ("user", "two")]


def test_an_interrupted_answer_is_remembered_as_far_as_it_went(service: FakeService) -> None:
    conversation = Conversation(None)
    service.interrupted = True
    say(service, conversation, "one")
    service.interrupted = False
    say(service, conversation, "two")
    assert service.asked[1] == [("user", "one"), ("assistant", "an"), ("user", "two")]


def test_a_refused_question_leaves_the_conversation_as_it_was(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(None)
    service.refusal = ContextLengthExceeded("too long; shorten it")
    say(service, conversation, "one")
    assert conversation.messages == []
    shown = capsys.readouterr().err
    assert shown == "headrace: too long; shorten it /clear forgets the conversation.\n"


def test_a_mistyped_command_is_not_sent_to_the_model(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    say(service, Conversation(None), "/help", "/usr/bin is what?")
    assert service.asked == [[("user", "/usr/bin is what?")]]
    assert capsys.readouterr().err.startswith("There is no /help; /clear forgets")

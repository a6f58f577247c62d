"""Choices as text: separate texts, stops by token, whole characters."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.engine_server.choice_text import ChoiceText
from headrace.engine_server.messages import Output
from headrace.engine_server.text_stream import TextStream
from headrace.tokenizer import stop_matcher
from headrace.tokenizer.stop_matcher import StopMatcher
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.gguf import open_gguf

if TYPE_CHECKING:
    from tests.unit.engine_server.conftest import MakeSubmit, RunEngine


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    with open_gguf(byte_model) as file:
        return Tokenizer.from_gguf_metadata(file.metadata)


def output_of(text: bytes, *, completed: int | None = None) -> Output:
    """A step's output whose tokens are these bytes."""
    return Output("r", list(text), None, 1, 0, len(text) if completed is None else completed)


MakeChoice = Callable[..., ChoiceText]


@pytest.fixture
def make_choice(tokenizer: Tokenizer, make_submit: "MakeSubmit") -> MakeChoice:
    def make(*stops: str) -> ChoiceText:
        return ChoiceText(tokenizer, make_submit(), StopMatcher(stops) if stops else None)

    return make


def test_a_limit_ends_the_text_before_half_a_character(make_choice: MakeChoice) -> None:
    choice = make_choice()
    text, _ = choice.read(output_of("né".encode()[:-1]))
    assert text + choice.finish("length") == "n"


def test_an_answer_that_ends_itself_says_what_was_no_character(make_choice: MakeChoice) -> None:
    choice = make_choice()
    text, _ = choice.read(output_of("né".encode()[:-1]))
    assert text + choice.finish("stop") == "n�"


def test_no_token_after_a_stop_in_the_same_step_counts(make_choice: MakeChoice) -> None:
    choice = make_choice("END")
    text, at_stop = choice.read(output_of(b"so END and on", completed=20))
    assert (text, choice.finish_reason) == ("so ", "stop")
    assert at_stop is not None
    assert bytes(at_stop.token_ids) == b"so END"
    assert at_stop.completion_tokens == 20 - len(b" and on")


async def test_each_choice_has_its_own_text_and_the_usage_is_the_requests(
    run_engine: "RunEngine", make_submit: "MakeSubmit", tokenizer: Tokenizer
) -> None:
    submit = make_submit(choice_count=3, max_tokens=6)
    async with run_engine() as (client, usage):
        usage.begin("r")
        reasons: dict[int, str] = {}
        token_counts: dict[int, int] = {}
        with TextStream(client, tokenizer, submit, ()) as text:
            while text.is_open:
                piece = await text.next()
                token_counts[piece.choice] = token_counts.get(piece.choice, 0) + len(
                    piece.token_ids
                )
                if piece.finish_reason is not None:
                    reasons[piece.choice] = piece.finish_reason
        assert reasons == dict.fromkeys(range(3), "length")
        assert token_counts == dict.fromkeys(range(3), 6)
        assert (piece.output.prompt_tokens, piece.output.completion_tokens) == (2, 18)


async def test_stop_strings_are_read_once_for_all_choices(
    run_engine: "RunEngine",
    make_submit: "MakeSubmit",
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[Sequence[str]] = []
    build = stop_matcher._automaton

    def counted(stops: Sequence[str]) -> stop_matcher._Node:
        built.append(stops)
        return build(stops)

    monkeypatch.setattr(stop_matcher, "_automaton", counted)
    stops = ("one", "other")
    async with run_engine() as (client, usage):
        usage.begin("r")
        with TextStream(client, tokenizer, make_submit(choice_count=3), stops):
            assert built.count(stops) == 1

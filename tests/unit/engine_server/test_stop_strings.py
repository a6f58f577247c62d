"""Stop strings end outputs in the engine: nothing is computed after one."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine_server import stop_strings
from headrace.engine_server.choice_text import ChoiceText
from headrace.engine_server.messages import Output, Submit, Vocabulary
from headrace.engine_server.stop_strings import TokenTexts, vocabulary_of
from headrace.sim.served_app import ServedApp, chat_body, chat_path
from headrace.tokenizer.stop_matcher import StopMatcher
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.model_file import open_model

if TYPE_CHECKING:
    from tests.unit.engine_server.conftest import MakeSubmit

# 256 bytes, a control token that is shown on request, and two longer tokens.
texts = [*(bytes([byte]) for byte in range(256)), b"<|end|>", "日本".encode(), b"a stop"]
control_id = 256
vocabulary = Vocabulary(texts, [control_id])


class Shown:
    """What answers show of the tokens, as the HTTP process has it."""

    def __init__(self, shown_ids: tuple[int, ...] | None) -> None:
        self._shown_ids = shown_ids

    def text_bytes(self, token_id: int) -> bytes:
        hidden = self._shown_ids is not None and token_id not in self._shown_ids
        return b"" if token_id == control_id and hidden else texts[token_id]


def length_in_engine(submit: Submit, token_ids: list[int]) -> int | None:
    """After how many tokens the engine ends the output; None if it does not."""
    end = TokenTexts(vocabulary).end_of(submit)
    assert end is not None
    return next(
        (i + 1 for i, token_id in enumerate(token_ids) if end.is_reached_by(token_id)), None
    )


def length_of_text(submit: Submit, token_ids: list[int]) -> int | None:
    """After how many tokens the text ends."""
    matcher = StopMatcher(submit.stop_strings) if submit.stop_strings else None
    choice = ChoiceText(Shown(submit.shown_ids), submit, matcher)
    for index, token_id in enumerate(token_ids):
        choice.read(Output("r", [token_id], None, 1, 0, index + 1))
        if choice.ended:
            return index + 1
    return None


@given(
    token_ids=st.lists(
        st.sampled_from([*b"astop \n", *"日é".encode(), 0xFF, *range(control_id, len(texts))]),
        max_size=40,
    ),
    stops=st.lists(
        st.sampled_from(["stop", "a", "op a", "日", "本a", "é", "\ufffd", "<|end|>", "\n\n"]),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    min_tokens=st.integers(0, 6),
    shown_ids=st.sampled_from([(), (control_id,), None]),
)
def test_the_engine_ends_an_output_with_the_token_that_ends_its_text(
    token_ids: list[int], stops: list[str], min_tokens: int, shown_ids: tuple[int, ...] | None
) -> None:
    submit = Submit(
        *("r", [1], 0.0, 0, 1.0, 0.0, 0, 100, min_tokens, [], ""),
        stop_strings=tuple(stops),
        shown_ids=shown_ids,
    )
    assert length_in_engine(submit, token_ids) == length_of_text(submit, token_ids)


def test_each_choice_is_searched_for_itself(make_submit: "MakeSubmit") -> None:
    submit = msgspec.structs.replace(make_submit(), stop_strings=("ab",))
    first = TokenTexts(vocabulary).end_of(submit)
    assert first is not None
    second = first.fresh()
    assert not first.is_reached_by(ord("a"))
    assert not second.is_reached_by(ord("b"))
    assert first.is_reached_by(ord("b"))


def test_a_request_without_stop_strings_is_not_searched(make_submit: "MakeSubmit") -> None:
    assert TokenTexts(vocabulary).end_of(make_submit()) is None


def test_a_vocabulary_over_a_frame_is_not_sent(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(byte_model) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    sent = vocabulary_of(tokenizer)
    assert sent is not None
    assert (sent.texts[65], sent.control_ids) == (b"A", [256])
    monkeypatch.setattr(stop_strings, "frame_bytes_max", 1000)
    assert vocabulary_of(tokenizer) is None


async def computed(server: ServedApp) -> int:
    """Output tokens of the engine so far, whoever was told of them."""
    stats = await server.service.engine.stats(60)
    assert stats is not None
    return stats.completion_tokens_total


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 3, "seed": 1, "temperature": 1}])
async def test_no_token_after_a_stop_is_computed(
    run_server: Any, stream: bool, fields: dict[str, Any]
) -> None:
    async with run_server() as server:
        longer = (await server.post(chat_path, chat_body(**fields))).json
        text = longer["choices"][0]["message"]["content"]
        before = await computed(server)
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = await server.post(chat_path, chat_body(**fields, **options, stop=[text[9:12]]))
        usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
        assert usage["completion_tokens"] < longer["usage"]["completion_tokens"]
        assert await computed(server) - before == usage["completion_tokens"]


async def test_an_engine_that_is_started_again_ends_outputs_too(run_server: Any) -> None:
    async with run_server() as server:
        whole = (await server.post(chat_path, chat_body())).json
        engine = server.service.engine
        os.kill(engine.pid, signal.SIGKILL)
        while not engine.restart_count:
            await engine.status_change()
        await engine.wait_ready()
        stop = whole["choices"][0]["message"]["content"][9:12]
        answer = (await server.post(chat_path, chat_body(stop=[stop]))).json
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert await computed(server) == answer["usage"]["completion_tokens"]

"""From tokens to what a client gets: a stream adds up to the whole answer, however steps fall.

The engine is replaced by a list of tokens that come in random steps; all else is the real thing.
"""

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine_server.answers import Answer, Caller
from headrace.engine_server.dialect import Dialect, ShownTokens
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.messages import Output, Submit
from headrace.engine_server.metrics import Timings
from headrace.engine_server.prompts import Prompt
from headrace.engine_server.request_stream import RequestStream
from headrace.engine_server.service import ModelService
from headrace.engine_server.text_stream import TextStream
from headrace.http.asgi import Message
from headrace.protocol.parsing import parse_chat_request
from headrace.protocol.reasoning import reasoning_formats
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.sse import SseDecoder
from headrace.protocol.tool_parsers import hermes
from headrace.sim.clock import ManualClock
from headrace.tokenizer.tokenizer import Tokenizer

# Tokens of one byte each but for a few that are longer, or that no text shows.
long_tokens = ["<think>", "</think>", "<tool_call>", '{"name": "f", "arguments": ', "STOP", "世界"]
control_id = 256 + len(long_tokens)
vocabulary = [bytes([byte]) for byte in range(256)] + [text.encode() for text in long_tokens]
tools = [{"type": "function", "function": {"name": "f"}}]

pieces_of_text = st.sampled_from(
    [*long_tokens, "</tool_call>", '{"a": 1}', "}", "👩‍👩‍👧", "é", "ST", "\n", " ", "word"]
)
answers = st.lists(pieces_of_text | st.text(max_size=3), max_size=10).map("".join)


class ByteTokenizer:
    """What the pipeline needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"<|control|>" if token_id == control_id else vocabulary[token_id]

    def text_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == control_id else vocabulary[token_id]


def encode(text: str, longs: bool) -> list[int]:
    """The text's tokens, with the long ones where they are wanted."""
    data = text.encode(errors="replace")
    token_ids: list[int] = []
    while data:
        found = [i for i, long in enumerate(vocabulary[256:], 256) if data.startswith(long)]
        token_id = found[0] if longs and found else data[0]
        token_ids.append(token_id)
        data = data[len(vocabulary[token_id]) :]
    return token_ids


@dataclass
class Script:
    """One choice's tokens, and how the engine ends it."""

    token_ids: list[int]
    reason: str


@dataclass
class ScriptedEngine:
    """Sends each choice's tokens in steps of given sizes."""

    scripts: list[Script]
    sizes: list[int]
    streams: list[RequestStream] = field(default_factory=list)

    def submit(self, submit: Submit) -> RequestStream:
        stream = RequestStream(submit, 0.0)
        self.streams.append(stream)
        sizes = iter(self.sizes * 1000)
        places = [0] * len(self.scripts)
        while any(place >= 0 for place in places):
            for index, script in enumerate(self.scripts):
                if places[index] >= 0:
                    places[index] = self._step(stream, index, script, places[index], next(sizes))
        return stream

    def _step(
        self, stream: RequestStream, index: int, script: Script, start: int, size: int
    ) -> int:
        token_ids = script.token_ids[start : start + size]
        end = start + len(token_ids)
        ended = end == len(script.token_ids)
        stream.push(
            Output(
                request_id="r",
                token_ids=token_ids,
                finish_reason=script.reason if ended else None,
                prompt_tokens=0 if index else 5,
                cached_tokens=0,
                completion_tokens=end,
                logprobs=tuple((-token_id / 10, ()) for token_id in token_ids),
                index=index,
            )
        )
        return -1 if ended else end

    def stop(self, request_id: str, output: Output) -> bool:
        return self.streams[-1].end_choice(output)

    def abort(self, request_id: str) -> None:
        return None


class ScriptedService:
    """What an answer needs of the service."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.clock = ManualClock()
        self.tokenizer = ByteTokenizer()
        self.dialect = Dialect(hermes, reasoning_formats["think"], True, frozenset())
        self.config = SimpleNamespace(served_name="m")

    def check_name(self, name: str) -> None:
        assert name == "m"

    async def open(
        self, request: ChatRequest | CompletionRequest, request_id: str, cache_salt: str
    ) -> TextStream:
        submit = Submit(
            request_id=request_id,
            prompt_token_ids=[1],
            temperature=0,
            top_k=0,
            top_p=1,
            min_p=0,
            seed=0,
            max_tokens=1000,
            min_tokens=0,
            stop_token_ids=[],
            cache_salt=cache_salt,
            top_logprobs=request.top_logprobs_count,
            choice_count=len(self.engine.scripts),
        )
        shown = ShownTokens(cast("Tokenizer", self.tokenizer), frozenset())
        client = cast("EngineClient", self.engine)
        prompts = [Prompt([1], "messages")]
        return TextStream(client, shown, submit, request.stop_strings, prompts=prompts)


def ask(scripts: list[Script], sizes: list[int], *, stream: bool, **fields: Any) -> bytes:
    """What is sent for one request."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "n": len(scripts),
        "logprobs": True,
        "return_token_ids": True,
        **fields,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    request = parse_chat_request(json.dumps(body).encode())
    service = cast("ModelService", ScriptedService(ScriptedEngine(scripts, sizes)))
    sent: list[bytes] = []

    async def run() -> None:
        async def send(message: Message) -> None:
            sent.append(message.get("body", b""))

        async def receive() -> Message:
            await asyncio.Event().wait()
            return {}

        await Answer(service, Timings(), request, Caller("r")).send(receive, send)

    asyncio.run(run())
    return b"".join(sent)


def added_up(events: bytes) -> tuple[dict[int, dict[str, Any]], Any]:
    """A stream's choices as a whole answer would have them, and its usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in SseDecoder().feed(events):
        if event.data == b"[DONE]":
            continue
        chunk = json.loads(event.data)
        usage = chunk["usage"] or usage
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"],
                {"content": "", "reasoning": "", "calls": [], "tokens": [], "ids": [], "ends": []},
            )
            delta = part["delta"]
            choice["content"] += delta.get("content") or ""
            choice["reasoning"] += delta.get("reasoning") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    choice["calls"].append([call["id"], call["function"]["name"], ""])
                choice["calls"][call["index"]][2] += call["function"]["arguments"]
            choice["tokens"] += (part.get("logprobs") or {"content": []})["content"]
            choice["ids"] += part.get("token_ids", [])
            choice["ends"] += [part["finish_reason"]] if part["finish_reason"] else []
    return choices, usage


def whole(body: bytes) -> tuple[dict[int, dict[str, Any]], Any]:
    """A whole answer in the same form."""
    answer = json.loads(body)
    choices = {}
    for choice in answer["choices"]:
        message = choice["message"]
        choices[choice["index"]] = {
            "content": message["content"] or "",
            "reasoning": message.get("reasoning", ""),
            "calls": [
                [call["id"], call["function"]["name"], call["function"]["arguments"]]
                for call in message.get("tool_calls", [])
            ],
            "tokens": choice["logprobs"]["content"],
            "ids": choice["token_ids"],
            "ends": [choice["finish_reason"]],
        }
    return choices, answer["usage"]


scripts = st.builds(
    Script,
    st.builds(encode, answers, st.booleans()).map(lambda ids: ids or [65]),
    st.sampled_from(["stop", "length"]),
)
steps = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    scripts=st.lists(scripts, min_size=1, max_size=3),
    one=steps,
    other=steps,
    stops=st.sampled_from([[], ["STOP"], ["ST", "界"]]),
    offers_tools=st.booleans(),
)
def test_a_stream_adds_up_to_the_whole_answer(
    scripts: list[Script], one: list[int], other: list[int], stops: list[str], offers_tools: bool
) -> None:
    fields: dict[str, Any] = {"stop": stops}
    if offers_tools:
        fields["tools"] = tools
    answer = whole(ask(scripts, one, stream=False, **fields))
    assert added_up(ask(scripts, other, stream=True, **fields)) == answer
    assert added_up(ask(scripts, [1], stream=True, **fields)) == answer
    for index, choice in answer[0].items():
        assert len(choice["ends"]) == 1
        assert choice["ends"][0] in ("stop", "length", "tool_calls")
        if scripts[index].reason == "length" and not stops:
            assert choice["ends"] == ["length"], "length wins over calls"
        assert "STOP" not in choice["content"] or not stops
        called = choice["ends"] == ["tool_calls"]
        assert not called or choice["calls"]


@pytest.mark.parametrize("longs", [True, False])
def test_a_stop_string_inside_a_thought_ends_the_answer(longs: bool) -> None:
    script = Script(encode("<think>so STOP no</think>yes", longs), "stop")
    answer = whole(ask([script], [3], stream=False, stop=["STOP"]))
    assert added_up(ask([script], [2], stream=True, stop=["STOP"])) == answer
    choice = answer[0][0]
    assert (choice["reasoning"], choice["content"], choice["ends"]) == ("so ", "", ["stop"])


def test_thoughts_can_be_left_out_and_are_counted_all_the_same() -> None:
    script = Script(encode("<think>so</think>yes", longs=True), "stop")
    shown, usage = whole(ask([script], [3], stream=False))
    hidden, hidden_usage = whole(ask([script], [3], stream=False, include_reasoning=False))
    assert (shown[0]["reasoning"], hidden[0]["reasoning"]) == ("so", "")
    assert shown[0]["content"] == hidden[0]["content"] == "yes"
    assert usage == hidden_usage
    streamed = added_up(ask([script], [1], stream=True, include_reasoning=False))
    assert streamed == (hidden, hidden_usage)

"""What a server of generating APIs answered, read alike whichever API it was asked by."""

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One whole answer; the properties read those with status 200."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        """The JSON."""
        return json.loads(self.text)

    @property
    def texts(self) -> list[str]:
        """The text of each answer."""
        body = self.body
        if "choices" in body:
            return [
                choice["text"] if "text" in choice else choice["message"].get("content") or ""
                for choice in body["choices"]
            ]
        if "output" in body:
            parts = chain.from_iterable(item.get("content", ()) for item in body["output"])
            return ["".join(part["text"] for part in parts)]
        if "content" in body:
            return ["".join(block.get("text", "") for block in body["content"])]
        return [body["message"]["content"] if "message" in body else body["response"]]

    @property
    def called(self) -> list[str]:
        """The functions that the first answer calls."""
        body = self.body
        if "choices" in body:
            calls = body["choices"][0]["message"].get("tool_calls") or ()
            return [call["function"]["name"] for call in calls]
        if "message" in body:
            return [call["function"]["name"] for call in body["message"].get("tool_calls", ())]
        items = body["output"] if "output" in body else body["content"]
        return [item["name"] for item in items if item["type"] in ("function_call", "tool_use")]

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt."""
        usage = self.body.get("usage", self.body)
        names = ("prompt_tokens", "input_tokens", "prompt_eval_count")
        return next(int(usage[name]) for name in names if name in usage)

    @property
    def output_tokens(self) -> int:
        """The tokens of all answers."""
        usage = self.body.get("usage", self.body)
        names = ("completion_tokens", "output_tokens", "eval_count")
        return next(int(usage[name]) for name in names if name in usage)

    @property
    def ended_by(self) -> str:
        """Why the first answer ended."""
        reason: str = self.body["choices"][0]["finish_reason"]
        return reason

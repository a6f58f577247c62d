"""Functions that a model may call: how clients offer them, choose among them and hear of calls."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

tools_max = 128
tool_calls_max = 128  # of one message
function_name_length_max = 64

FunctionName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[a-zA-Z0-9_.:/-]+$")]


class FunctionDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is told of a function."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None takes no arguments
    strict: bool | None = None  # kept by grammar where a call is forced

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments."""
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that is offered."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the function that must be called."""

    name: FunctionName


class NamedToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was called, with what."""

    name: str
    arguments: str = "{}"  # JSON


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a function in a message."""

    id: Annotated[str, Meta(max_length=512)]
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | UnsetType = UNSET  # that clients copy from a stream's chunks


def forced_name(choice: ToolChoice | None) -> str | None:
    """The one function that must be called, if there is one."""
    return choice.function.name if isinstance(choice, NamedToolChoice) else None


def is_forced(choice: ToolChoice | None) -> bool:
    """Whether the answer has to be a call."""
    return choice == "required" or isinstance(choice, NamedToolChoice)

"""A model's chat template: a conversation as the one text that the model was trained to continue.

The template is the model file's; messages are the caller's. When a render fails, whose fault it is
decides the error: a plain one-message conversation is tried, and if that fails too, the template is
broken (ModelFileError); otherwise these messages do not suit it (InvalidRequest).
"""

import threading
from collections.abc import Mapping, Sequence

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.environment import Template
from jinja2.exceptions import SecurityError

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import InvalidRequest, ModelFileError
from headrace.tokenizer.template_sandbox import (
    RaisedByTemplate,
    RenderBudget,
    TemplateSandbox,
)

source_characters_max = 512 * 1024
steps_base = 100_000
steps_per_value = 100  # of the messages: long conversations take long, in proportion
rendered_characters_base = 1_000_000
rendered_growth_max = 4  # times what came in: tool schemas may be written twice, indented
probe_messages: Sequence[Mapping[str, object]] = ({"role": "user", "content": "x"},)

Messages = Sequence[Mapping[str, object]]


class ChatTemplate:
    """One template; safe to share between threads, rendering one conversation at a time."""

    def __init__(
        self, source: str, special_texts: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        """`special_texts` are variables such as `bos_token`. Compiled at the first render, so that
        a broken template fails what needs it and nothing else."""
        self.source = source
        self._special_texts = special_texts
        self._clock = clock or SystemClock()
        self._sandbox = TemplateSandbox(self._clock)
        self._compiled: Template | None = None
        self._lock = threading.Lock()

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The conversation's text, special tokens spelled out.

        `variables` are the template's own, such as `enable_thinking`.

        Encode it with `parse_special` only if nobody else wrote the messages: a user's text may
        spell special tokens too. `Tokenizer.encode_chat` keeps them apart."""
        with self._lock:
            try:
                return self._render(messages, add_generation_prompt, tools, variables)
            except SecurityError as error:
                raise _broken(str(error)) from error
            except RecursionError as error:
                raise _broken("it calls itself too often") from error
            except RaisedByTemplate as error:
                raise InvalidRequest(
                    f"The model's chat template refuses these messages: {error}", param="messages"
                ) from error
            except (TemplateError, *_faults_of_values) as error:
                self._blame(error)
                raise InvalidRequest(
                    "The model's chat template cannot write these messages "
                    f"({type(error).__name__}: {error}); check their roles and contents.",
                    param="messages",
                ) from error

    def _render(
        self,
        messages: Messages,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        template = self._template()
        values, characters = _measure([messages, tools])
        self._sandbox.budget = RenderBudget(
            self._clock,
            steps=steps_base + steps_per_value * values,
            characters_max=rendered_characters_base + rendered_growth_max * characters,
        )
        pieces: list[str] = []
        count = 0
        fixed = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_texts,
        }
        for piece in template.generate({**(variables or {}), **fixed}):
            count += len(piece)
            self._sandbox.budget.characters(count)
            pieces.append(piece)
        return "".join(pieces)

    def _template(self) -> Template:
        if self._compiled is None:
            if len(self.source) > source_characters_max:
                raise _broken(f"it has more than {source_characters_max} characters")
            try:
                self._compiled = self._sandbox.from_string(self.source)
            except TemplateSyntaxError as error:
                raise _broken(f"line {error.lineno}: {error.message}") from error
            except (TemplateError, SyntaxError, MemoryError) as error:
                raise _broken(str(error)) from error
        return self._compiled

    def _blame(self, error: Exception) -> None:
        """ModelFileError if the template cannot write the simplest conversation either."""
        try:
            self._render(probe_messages, True, None)
        except RaisedByTemplate:
            return
        except (TemplateError, *_faults_of_values) as probe_error:
            raise _broken(f"{type(probe_error).__name__}: {probe_error}") from error


# What Python raises when values are not what an expression expects.
_faults_of_values = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def _broken(problem: str) -> ModelFileError:
    return ModelFileError(
        f"tokenizer.chat_template: the model's chat template cannot be used: {problem}. Use "
        "/v1/completions with a prompt in the model's own format, or another model file.",
        field="tokenizer.chat_template",
    )


def _measure(value: object) -> tuple[int, int]:
    """How many values a JSON-like value has, and how many characters all its texts."""
    values = characters = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        values += 1
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
    return values, characters

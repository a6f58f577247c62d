"""Chats as a model writes them, for engines that take a prompt alone and know no turns.

Engines with a chat API apply their model's template themselves. Here it is the one that an operator
declared of the model version, in the same sandbox as the engine's own.
"""

import functools
from collections.abc import Mapping, Sequence

from headrace.base.errors import ModelFileError, UpstreamFailed
from headrace.protocol.generate_of_chat import ChatWriter
from headrace.spec.models import ChatFormat
from headrace.tokenizer.chat_template import ChatTemplate

templates_max = 64  # compiled; of models that are asked at the same time
# The first token is put there by the engine's tokenizer, as before any prompt.
begin_token = ""


@functools.lru_cache(maxsize=templates_max)
def writer_of(chat_format: ChatFormat) -> ChatWriter:
    """What writes turns by a declared template; safe to share between threads.

    It raises InvalidRequest for turns that do not suit it."""
    template = template_of(chat_format)

    def write(turns: Sequence[Mapping[str, object]]) -> str:
        try:
            return template.render(turns)
        except ModelFileError as error:
            raise UpstreamFailed(
                "The chat template that was declared for this model cannot be used."
            ) from error

    return write


def template_of(chat_format: ChatFormat) -> ChatTemplate:
    """The template with its special tokens; compiled when it is first used."""
    special_texts = {"bos_token": begin_token, "eos_token": chat_format.end_token}
    return ChatTemplate(chat_format.template, special_texts)

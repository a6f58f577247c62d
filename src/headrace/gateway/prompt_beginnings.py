"""The beginnings of a request's prompt, by which the router knows who has it in its cache.

    usually                          the body from its prompt on, all of it the tenant's own
    of a model with public prompts   the text of its messages; up to where that differs from every
                                     public prompt it is everybody's, from there on the tenant's own

The second costs a few copies of the prompt, and finds what is public however a client spells its
JSON. What tools and images make of a prompt only its template knows; they go the first way.
"""

from collections.abc import Iterable

from headrace.base.prefix_hash import common_count
from headrace.gateway.admission import GeneratingRequest
from headrace.gateway.asked import Asked
from headrace.gateway.snapshot import ServedModel
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.router.prompt_prefix import PromptPrefix, prefix_of_body, prefix_of_text
from headrace.spec.public_prompts import PublicPrompt

turn_end, role_end = "\0", "\1"  # that no text has, or at worst the router chooses poorly


def beginnings_of(asked: Asked, served: ServedModel, tenant_id: str) -> PromptPrefix:
    """The prefix of what is asked, by the tenant and the model that it may share caches with."""
    root = (tenant_id, served.name)
    text = plain_text(asked.request) if served.public_prompts else None
    if text is None:
        return prefix_of_body(asked.body, root)
    is_chat = isinstance(asked.request, ChatRequest)
    public = [text_of(prompt) for prompt in served.public_prompts if _is_chat(prompt) == is_chat]
    common = max((common_count(text, other) for other in public), default=0)
    return prefix_of_text(
        text.encode(errors="replace"),
        root,
        public_root=served.name,
        public_bytes=len(text[:common].encode(errors="replace")),
    )


def plain_text(request: GeneratingRequest) -> str | None:
    """The text that a prompt is made of; None of one that is made of more than that."""
    if isinstance(request, CompletionRequest):
        return request.prompt if isinstance(request.prompt, str) and not request.suffix else None
    if not isinstance(request, ChatRequest) or request.tools:
        return None
    if any(message.image_count or message.tool_calls for message in request.messages):
        return None
    return _turns((message.role, message.text) for message in request.messages)


def text_of(prompt: PublicPrompt) -> str:
    """A public prompt as `plain_text` has one; its last turn may go on."""
    if prompt.messages is None:
        return prompt.prompt or ""
    return _turns((message.role, message.content) for message in prompt.messages)


def _is_chat(prompt: PublicPrompt) -> bool:
    return prompt.messages is not None


def _turns(turns: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{role}{role_end}{text}{turn_end}" for role, text in turns)

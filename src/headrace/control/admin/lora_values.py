"""LoRA adapters of deployments as the API takes them, checked against their engine."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from pydantic import Field

from headrace.adapters.lora import check_lora
from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.control.admin.values import RequestBody
from headrace.spec.deployments import LoraSource, Template, lora_name_pattern

loras_max = 64


class LoraBody(RequestBody):
    """A LoRA adapter that replicas load; callers ask for `model:name`."""

    name: Annotated[str, Field(pattern=lora_name_pattern)]
    # A path where replicas run, or a reference that their engine can fetch.
    source: Annotated[str, Field(min_length=1, max_length=1000)]


LoraBodies = Annotated[tuple[LoraBody, ...], Field(max_length=loras_max)]


def loras_of(engine: str, bodies: Sequence[LoraBody]) -> tuple[LoraSource, ...]:
    """The adapters as they came; InvalidRequest for two of a name, or an engine without any."""
    names = [body.name for body in bodies]
    if len(set(names)) < len(names):
        raise InvalidRequest("loras: two of them have the same name", param="loras")
    check_lora(engine, find_adapter(engine).facts.lora, bodies)
    return tuple(LoraSource(body.name, body.source) for body in bodies)


def with_loras(template: Template, bodies: Sequence[LoraBody] | None) -> Template:
    """A template with other adapters, or with its own where none are named."""
    if bodies is None:
        check_lora(template.engine, find_adapter(template.engine).facts.lora, template.loras)
        return template
    return msgspec.structs.replace(template, loras=loras_of(template.engine, bodies))

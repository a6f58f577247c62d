"""What an answer has to look like: the one grammar among all that a request can ask for it with.

`response_format`, `structured_outputs` and the `guided_` fields say the same in several words;
calls that are asked for bring a grammar of their own.
"""

from typing import Literal

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.engine_server.endless_schemas import is_endless
from headrace.engine_server.messages import Grammar
from headrace.engine_server.structural_tags import lark_of_format, lark_of_structures
from headrace.protocol.requests import GenerationRequest, ResponseFormat


def answer_grammar(request: GenerationRequest, forced: Grammar | None) -> Grammar | None:
    """What the answer must follow; InvalidRequest if that is said twice, or the end is ignored."""
    asked = [
        grammar
        for grammar in (
            forced,
            _response_format(request),
            *_structured(request),
            _json_grammar("guided_json", request.guided_json),
            _text_grammar("guided_regex", "regex", request.guided_regex),
            _text_grammar("guided_grammar", "lark", request.guided_grammar),
            _choice_grammar(request.guided_choice),
        )
        if grammar is not None
    ]
    if len(asked) > 1:
        raise InvalidRequest(
            f"{asked[0].param} and {asked[1].param} both say what the answer looks like; send one.",
            param=asked[1].param,
        )
    if asked and request.ignore_eos:
        raise InvalidRequest(
            f"With {asked[0].param} the answer ends where it is complete; leave ignore_eos out.",
            param="ignore_eos",
        )
    return asked[0] if asked else None


def _response_format(request: GenerationRequest) -> Grammar | None:
    response_format = request.response_format
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return _json_grammar("response_format", {"type": "object"})
    if response_format.type == "structural_tag":
        return _structural_tag(response_format, "response_format")
    if response_format.json_schema is None:
        raise InvalidRequest(
            "response_format of type json_schema needs json_schema.",
            param="response_format.json_schema",
        )
    schema = response_format.json_schema.schema
    return _json_grammar("response_format", {} if schema is None else schema)


def _structural_tag(tags: ResponseFormat, param: str) -> Grammar:
    if tags.format is not None and tags.structures is None and tags.triggers is None:
        return Grammar("lark", lark_of_format(tags.format, f"{param}.format"), param)
    if tags.format is None and tags.structures is not None and tags.triggers is not None:
        text = lark_of_structures(tags.structures, tags.triggers, param)
        return Grammar("lark", text, param)
    raise InvalidRequest(
        f"{param} of type structural_tag needs format, or structures with triggers.",
        param=f"{param}.format",
    )


def _tag_text(text: str | None) -> Grammar | None:
    param = "structured_outputs.structural_tag"
    if text is None:
        return None
    try:
        tags = msgspec.json.decode(text, type=ResponseFormat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{param} cannot be read: {error}", param=param) from None
    return _structural_tag(tags, param)


def _structured(request: GenerationRequest) -> list[Grammar | None]:
    """What vLLM's own field asks for."""
    asked = request.structured_outputs
    if asked is None:
        return []
    any_object = {"type": "object"} if asked.json_object else None
    return [
        _json_grammar("structured_outputs.json", asked.json),
        _json_grammar("structured_outputs.json_object", any_object),
        _text_grammar("structured_outputs.regex", "regex", asked.regex),
        _text_grammar("structured_outputs.grammar", "lark", asked.grammar),
        _choice_grammar(asked.choice, "structured_outputs.choice"),
        _tag_text(asked.structural_tag),
    ]


def _json_grammar(param: str, schema: object) -> Grammar | None:
    if schema is None:
        return None
    if is_endless(schema):
        raise InvalidRequest(
            f"The schema of {param} always contains itself, so that no answer could end; make the "
            "recursive part optional.",
            param=param,
        )
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar("json_schema", text, param)


def _text_grammar(param: str, kind: Literal["regex", "lark"], text: str | None) -> Grammar | None:
    return None if text is None else Grammar(kind, text, param)


def _choice_grammar(choices: list[str] | None, param: str = "guided_choice") -> Grammar | None:
    if choices is None:
        return None
    alternatives = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    return Grammar("lark", f"start: {alternatives}", param)

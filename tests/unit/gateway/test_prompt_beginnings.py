"""What is public of a prompt is one beginning for all tenants; the rest is each one's own."""

from collections.abc import Mapping

import msgspec
import pytest

from headrace.gateway.asked import Asked, chat_asked
from headrace.gateway.prompt_beginnings import beginnings_of
from headrace.gateway.snapshot import ServedModel
from headrace.protocol.parsing import parse_completion_request
from headrace.router.prompt_prefix import PromptPrefix, block_ends
from headrace.spec.models import Model
from headrace.spec.public_prompts import PublicMessage, PublicPrompt

rules = "Be kind to the mill. " * 200  # 4,200 bytes
system = PublicPrompt(messages=(PublicMessage("system", rules),))
story = PublicPrompt(prompt=rules)
public_blocks = sum(end <= len(rules) for end in block_ends)


def served(*prompts: PublicPrompt) -> ServedModel:
    model = Model(id="mod_1", name="demo", create_time=0.0)
    return ServedModel(model, (("ver_1", 1),), None, (), public_prompts=prompts)


def chat(content: str, question: str, **fields: object) -> Asked:
    messages = [{"role": "system", "content": content}, {"role": "user", "content": question}]
    return chat_asked(msgspec.json.encode({"model": "demo", "messages": messages, **fields}))


def completion(prompt: str) -> Asked:
    body = msgspec.json.encode({"model": "demo", "prompt": prompt})
    return Asked("/v1/completions", body, parse_completion_request(body))


def shared(one: PromptPrefix, other: PromptPrefix) -> int:
    pairs = zip(one.keys, other.keys, strict=False)
    return sum(mine == yours for mine, yours in pairs)


@pytest.mark.parametrize(
    ("prompt", "asked", "other"),
    [
        (system, chat(rules, "What is flour?" * 99), chat(rules, "What is bran?" * 99)),
        (story, completion(rules + "once" * 999), completion(rules + "twice" * 999)),
    ],
)
def test_tenants_share_the_public_blocks_and_no_other(
    prompt: PublicPrompt, asked: Asked, other: Asked
) -> None:
    model = served(prompt)
    ann = beginnings_of(asked, model, "ann")
    assert ann.public_count == public_blocks
    assert shared(ann, beginnings_of(asked, model, "bob")) == public_blocks
    assert shared(ann, beginnings_of(other, model, "bob")) == public_blocks
    assert beginnings_of(asked, model, "ann") == ann
    assert len(ann.keys) > public_blocks


def test_how_a_client_spells_its_json_does_not_matter() -> None:
    tight = chat("Grüße. " + rules, "Why?")
    loose = msgspec.json.format(tight.body, indent=4)
    model = served(PublicPrompt(messages=(PublicMessage("system", "Grüße. " + rules),)))
    assert beginnings_of(chat_asked(loose), model, "ann") == beginnings_of(tight, model, "ann")


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({}, ()),
        ({}, (story,)),
        (
            {"tools": [{"type": "function", "function": {"name": "grind"}}]},
            (system,),
        ),
    ],
)
def test_without_a_public_prompt_of_its_kind_all_is_a_tenants_own(
    fields: Mapping[str, object], prompts: tuple[PublicPrompt, ...]
) -> None:
    asked, model = chat(rules, "Why?", **fields), served(*prompts)
    ann = beginnings_of(asked, model, "ann")
    assert (ann.public_count, shared(ann, beginnings_of(asked, model, "bob"))) == (0, 0)
    assert ann.text_bytes >= len(rules)


def test_where_a_prompt_leaves_the_public_one_it_is_its_own() -> None:
    changed = rules[:2000] + "x" + rules[2001:]
    model = served(system)
    ann, bob = (beginnings_of(chat(changed, "Why?"), model, tenant) for tenant in ("ann", "bob"))
    assert shared(ann, bob) == sum(end <= 2000 for end in block_ends) == ann.public_count

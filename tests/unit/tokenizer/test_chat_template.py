from collections.abc import Mapping, Sequence

import pytest

from headrace.base.errors import InvalidRequest, ModelFileError
from headrace.sim.clock import ManualClock
from headrace.tokenizer.chat_template import ChatTemplate

user: Sequence[Mapping[str, object]] = [{"role": "user", "content": "Hi"}]


def template(source: str, **special_texts: str) -> ChatTemplate:
    return ChatTemplate(source, special_texts, ManualClock())


def test_blocks_leave_no_white_space_of_their_own() -> None:
    source = "{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m.content }}]\n"
    source += "    {% endif %}\n{% endfor %}\n"
    assert template(source).render(user) == "[Hi]\n"


def test_special_texts_and_the_prompt_flag_are_variables() -> None:
    source = "{{ bos_token }}{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}"
    made = template(source, bos_token="<s>")
    assert made.render(user) == "<s>Hi>"
    assert made.render(user, add_generation_prompt=False) == "<s>Hi"


def test_tools_are_written_as_json_that_is_not_escaped() -> None:
    tools = [{"name": "f", "text": "<é>'&"}]
    assert template("{{ tools | tojson }}").render(user, tools=tools) == (
        '[{"name": "f", "text": "<é>\'&"}]'
    )
    assert template("{{ tools | tojson(indent=2) }}").render(user, tools=[]) == "[]"
    assert template("{% if tools %}yes{% else %}no{% endif %}").render(user) == "no"


def test_what_templates_use_works() -> None:
    source = (
        "{%- set ns = namespace(last=-1) -%}"
        "{%- macro show(x) -%}<{{ x | upper }}>{%- endmacro -%}"
        "{%- for m in messages -%}"
        "{%- if m.content is string and not m.content.startswith('#') -%}"
        "{%- set ns.last = loop.index0 -%}"
        "{%- if loop.first %}{{ show(m.content.strip()) }}{% continue %}{% endif -%}"
        "{%- if loop.last %}{{ m.content.split('|')[-1] ~ '!' + '?' * 2 }}{% break %}{% endif -%}"
        "{%- endif -%}{%- endfor -%}"
        "{{ ns.last }}{{ messages | length }}{{ range(3) | list | join(',') }}"
        "{{ messages | map(attribute='role') | join('+') }}{{ '%s-%d' % ('a', 3) }}"
        "{% generation %}g{% endgeneration %}{{ 'a.b'.replace('.', '_') }}"
        "{{ messages[1:] | selectattr('role', 'equalto', 'user') | list | length }}"
        "{{ 7 * 6 }}{{ 2 ** 10 }}{{ [1] + [2] }}{{ none_such | default('d') }}"
        "{{ dict(a=1).items() | list }}"
    )
    messages = [*user, {"role": "assistant", "content": "x|y"}]
    assert template(source).render(messages) == (
        "<HI>y!??120,1,2user+assistanta-3ga_b0421024[1, 2]d[('a', 1)]"
    )


def test_the_date_is_the_given_clocks() -> None:
    clock = ManualClock()
    made = ChatTemplate("{{ strftime_now('%Y') }}", {}, clock)
    assert made.render(user).isdigit()


def test_a_refusal_by_the_template_is_the_callers_error() -> None:
    source = "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}ok"
    made = template(source)
    assert made.render(user) == "ok"
    with pytest.raises(InvalidRequest, match="one at a time") as raised:
        made.render([*user, *user])
    assert raised.value.param == "messages"


def test_messages_that_the_template_cannot_write_are_the_callers_error() -> None:
    made = template("{% for m in messages %}{{ m.content + '.' }}{% endfor %}")
    assert made.render(user) == "Hi."
    with pytest.raises(InvalidRequest, match="check their roles and contents"):
        made.render([{"role": "user", "content": None}])


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}",
        "{{ messages | no_such_filter }}",
        "{{ 1 / 0 }}",
        "{{ messages.no.such.thing }}",
        "{{ no_such_function() }}",
        "{% include 'x' %}",
        "{" + "{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "x" * 600_000,
    ],
)
def test_a_broken_template_is_the_model_files_error(source: str) -> None:
    made = template(source)
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template"):
        made.render(user)


hostile = {
    "a huge range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    ),
    "a filtered loop": (
        "{% for i in range(9999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "a recursive loop": (
        "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}"
    ),
    "a recursive macro": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "an endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a repeated text": "{{ 'x' * 10**10 }}",
    "a repeated list": "{% set x = [0] * 10**10 %}",
    "a huge power": "{{ 10 ** 10 ** 10 }}",
    "growing numbers": (
        "{% set n = namespace(v=9) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}"
    ),
    "doubling by +": (
        "{% set n = namespace(v='x') %}"
        "{% for i in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}"
    ),
    "doubling by ~": (
        "{% set n = namespace(v='x') %}"
        "{% for i in range(99) %}{% set n.v = n.v ~ n.v %}{% endfor %}"
    ),
    "doubling lists": (
        "{% set n = namespace(v=[1]) %}"
        "{% for i in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}"
    ),
    "doubling by join": (
        "{% set n = namespace(v='x') %}{% for i in range(99) %}"
        "{% set n.v = [n.v, n.v] | join %}{% endfor %}"
    ),
    "doubling by a method": (
        "{% set n = namespace(v='x') %}{% for i in range(99) %}"
        "{% set n.v = n.v.join(['', 'x', '']) %}{% set n.v = ''.join([n.v, n.v]) %}{% endfor %}"
    ),
    "growing by replace": (
        "{% set n = namespace(v='xx') %}{% for i in range(99) %}"
        "{% set n.v = n.v.replace('x', 'xxxx') %}{% endfor %}"
    ),
    "growing by the replace filter": (
        "{% set n = namespace(v='xx') %}{% for i in range(99) %}"
        "{% set n.v = n.v | replace('x', 'xxxx') %}{% endfor %}"
    ),
    "shared parts, written out": (
        "{% set n = namespace(v=['x']) %}{% for i in range(60) %}"
        "{% set n.v = [n.v, n.v] %}{% endfor %}{{ n.v }}"
    ),
    "shared parts, as JSON": (
        "{% set n = namespace(v=['x']) %}{% for i in range(60) %}"
        "{% set n.v = [n.v, n.v] %}{% endfor %}{{ n.v | tojson }}"
    ),
    "shared parts, as text": (
        "{% set n = namespace(v=['x']) %}{% for i in range(60) %}"
        "{% set n.v = [n.v, n.v] %}{% endfor %}{% set s = n.v | string %}"
    ),
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a wide format by argument": "{{ '%*d' % (1000000000, 1) }}",
    "much output": "{% for i in range(50000) %}{{ 'x' * 1000 }}{% endfor %}",
    "padding": "{{ 'x'.center(10**10) }}",
    "filling with zeros": "{{ 'x'.zfill(10**10) }}",
    "format": "{{ '{:>9999999999}'.format(1) }}",
    "the class of a value": "{{ ''.__class__.__mro__ }}",
    "the globals of a function": "{{ raise_exception.__globals__.keys() }}",
    "changing the messages": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("source", hostile.values(), ids=hostile.keys())
def test_a_hostile_template_ends_soon_with_the_model_files_error(source: str) -> None:
    with pytest.raises(ModelFileError):
        template(source).render(user)


def test_a_render_has_a_deadline() -> None:
    class Slow(ManualClock):
        def monotonic_s(self) -> float:
            self.advance(1.0)
            return super().monotonic_s()

    made = ChatTemplate("{% for i in range(100) %}{% endfor %}", {}, Slow())
    with pytest.raises(ModelFileError, match="seconds"):
        made.render(user)


def test_a_failed_render_leaves_the_template_usable() -> None:
    made = template("{% if messages|length > 1 %}{{ 'x' * 10**10 }}{% endif %}ok")
    with pytest.raises(ModelFileError):
        made.render([*user, *user])
    assert made.render(user) == "ok"


def test_a_long_conversation_is_within_the_limits() -> None:
    source = "{% for m in messages %}<{{ m.role ~ ':' ~ m.content + '.' }}>{% endfor %}"
    messages = [{"role": "user", "content": "x" * 200} for _ in range(20_000)]
    assert len(template(source).render(messages)) == 20_000 * 208

"""Structural tags as a grammar: what is free is a lazy lexeme that ends with the text that follows.

A trigger ends the free text before it as soon as it is there, so that what begins like a tag has to
go on as one. Free text in the middle of something ends at the next fixed text; where there is none,
the shape is refused.
"""

import re

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.protocol.structural_tags import (
    AnyText,
    ConstString,
    Either,
    Format,
    JsonSchema,
    LarkGrammar,
    LegacyTag,
    Regex,
    SeparatedTags,
    Sequence,
    Tag,
    TriggeredTags,
)

any_text = "/(?s:.*)/"
slash = re.compile(r"\\.|/", re.DOTALL)  # or a character that is escaped already


def lark_of_structures(structures: list[LegacyTag], triggers: list[str], param: str) -> str:
    """The grammar of the older shape; InvalidRequest names what cannot be."""
    tags = []
    for index, item in enumerate(structures):
        schema = item.schema
        if isinstance(schema, str):
            schema = _schema_of(schema, f"{param}.structures[{index}].schema")
        tags.append(Tag(item.begin, JsonSchema(schema), item.end))
    return lark_of_format(TriggeredTags(triggers, tags), param)


def lark_of_format(tree: Format, param: str) -> str:
    """The grammar of a tree; InvalidRequest names what cannot be."""
    writer = _Writer(param)
    start = writer.expression(tree, "")
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules])


def _schema_of(text: str, param: str) -> dict[str, object] | bool:
    try:
        return msgspec.json.decode(text, type=dict[str, object] | bool)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"{param} is no JSON schema.", param=param) from None


class _Writer:
    """Collects the rules that the expressions refer to."""

    def __init__(self, param: str) -> None:
        self.rules: list[str] = []
        self._param = param

    def expression(self, tree: Format, after: str) -> str:
        """What writes `tree` and then the text `after`."""
        match tree:
            case Sequence(elements):
                written = self._sequence(elements, after)
            case Either(elements):
                choices = [self.expression(element, after) for element in elements]
                written = self._rule(" | ".join(choices))
            case Tag(begin, content, end):
                inside = self.expression(content, end or after)
                written = _then(f"{_literal(begin)} {inside}", after if end else "")
            case AnyText():
                written = self._text_until(after) if after else self._rule(any_text)
            case TriggeredTags():
                if after:
                    self._refuse("triggered_tags come last: nothing would end the text after them.")
                written = self._triggered(tree)
            case SeparatedTags():
                written = _then(self._separated(tree), after)
            case _:
                written = _then(self._rule(_leaf(tree)), after)
        return written

    def _sequence(self, elements: list[Format], after: str) -> str:
        """One after the other; free text takes the fixed text that follows it along."""
        parts: list[str] = []
        taken = ""  # of the next element's beginning
        for element, following in zip(elements, [*elements[1:], None], strict=True):
            if following is None:
                wanted = after
            elif isinstance(element, AnyText | TriggeredTags):
                wanted = _beginning(following)
                if not wanted:
                    self._refuse("any_text in a sequence is followed by a const_string or a tag.")
            else:
                wanted = ""
                if _is_open(element):
                    self._refuse("what ends with free text comes last in a sequence.")
            parts.append(self.expression(_without_beginning(element, taken), wanted))
            taken = wanted if following is not None else ""
        return " ".join(part for part in parts if part)

    def _separated(self, tags: SeparatedTags) -> str:
        one = self._rule(" | ".join(self.expression(tag, "") for tag in tags.tags))
        more = "" if tags.stop_after_first else f" ({_literal(tags.separator)} {one})*"
        body = self._rule(f"{one}{more}")
        return body if tags.at_least_one else f"{body}?"

    def _triggered(self, tree: TriggeredTags) -> str:
        by_trigger: dict[str, list[Tag]] = {trigger: [] for trigger in tree.triggers}
        for index, tag in enumerate(tree.tags):
            matching = [trigger for trigger in tree.triggers if tag.begin.startswith(trigger)]
            if not matching:
                self._refuse(f"tag {index} begins with none of the triggers.")
            by_trigger[max(matching, key=len)].append(tag)
        parts = []
        for trigger, tags in by_trigger.items():
            if tags:
                rests = [self.expression(_without_beginning(tag, trigger), "") for tag in tags]
                parts.append(f"{self._text_until(trigger)} ({' | '.join(rests)})")
        one, rest = self._rule(" | ".join(parts)), self._rule(any_text)
        if tree.stop_after_first:
            return one if tree.at_least_one else f"({one} | {rest})"
        return f"{one}{'+' if tree.at_least_one else '*'} {rest}"

    def _text_until(self, end: str) -> str:
        return self._rule(f"{any_text} {_literal(end)}", lazy=True)

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _refuse(self, text: str) -> None:
        raise InvalidRequest(f"{self._param}: {text}", param=self._param)


def _leaf(tree: ConstString | JsonSchema | Regex | LarkGrammar) -> str:
    match tree:
        case ConstString(value):
            return _literal(value) or '""'
        case JsonSchema(schema):
            return f"%json {_json(schema)}"
        case Regex(pattern):
            return f"/{slash.sub(_escaped, pattern)}/"
        case LarkGrammar(grammar):
            return f"%lark {{\n{grammar}\n}}"


def _escaped(match: re.Match[str]) -> str:
    return "\\/" if match[0] == "/" else match[0]


def _then(part: str, after: str) -> str:
    return f"{part} {_literal(after)}" if after else part


def _beginning(tree: Format) -> str:
    if isinstance(tree, ConstString):
        return tree.value
    return tree.begin if isinstance(tree, Tag) else ""


def _without_beginning(tree: Format, taken: str) -> Format:
    """The same, of whose beginning so much is written already."""
    if not taken:
        return tree
    if isinstance(tree, Tag):
        return msgspec.structs.replace(tree, begin=tree.begin.removeprefix(taken))
    assert isinstance(tree, ConstString), "only these have a beginning"
    return msgspec.structs.replace(tree, value=tree.value.removeprefix(taken))


def _is_open(tree: Format) -> bool:
    """Whether its end is free text, which nothing ends."""
    match tree:
        case AnyText() | TriggeredTags():
            return True
        case Tag(_, content, end):
            return not end and _is_open(content)
        case Either(elements):
            return any(_is_open(element) for element in elements)
        case Sequence(elements):
            return _is_open(elements[-1])
        case _:
            return False


def _literal(text: str) -> str:
    return msgspec.json.encode(text).decode() if text else ""


def _json(schema: object) -> str:
    return msgspec.json.encode(schema).decode()

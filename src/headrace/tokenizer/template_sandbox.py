"""A Jinja2 sandbox in which a template cannot run long, grow large or reach anything.

A template is part of a model file, which is hostile input. On top of Jinja's immutable sandbox:

* each turn of a loop and each call is a step; steps and seconds of a render are bounded;
* whatever makes values larger (+ * ** % ~, join, replace, tojson, output) is checked before;
* filters, globals and methods are the few that chat templates use; there is no loader.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.base.clock import Clock

duration_s_max = 5.0
elements_max = 200_000  # of one list, or visited when a value is written out
integer_bits_max = 256
format_width = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{4,})")

kept_filters = frozenset(
    {
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "groupby",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "safe",
        "select",
        "selectattr",
        "sort",
        "string",
        "title",
        "trim",
        "unique",
        "upper",
    }
)
text_methods = frozenset(
    {
        "capitalize",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isdigit",
        "islower",
        "isspace",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "title",
        "upper",
    }
)


class TemplateLimitReached(SecurityError):
    """A template wanted more steps, time or room than any conversation needs."""


class RenderBudget:
    """What one render may still use."""

    def __init__(self, clock: Clock, *, steps: int, characters_max: int) -> None:
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + duration_s_max
        self._steps_left = steps
        self.characters_max = characters_max  # of any one value, and of the result

    def step(self) -> None:
        """Count one; TemplateLimitReached if that was too many, or too late."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateLimitReached("it runs more steps than any conversation needs")
        if self._clock.monotonic_s() > self._deadline_s:
            raise TemplateLimitReached(f"it runs longer than {duration_s_max:g} seconds")

    def characters(self, count: int) -> None:
        """TemplateLimitReached if a text of that length is too long."""
        if count > self.characters_max:
            raise TemplateLimitReached(
                f"it makes a text of more than {self.characters_max} characters"
            )

    def elements(self, count: int) -> None:
        """TemplateLimitReached if a list of that length is too long."""
        if count > elements_max:
            raise TemplateLimitReached(f"it makes a list of more than {elements_max} values")

    def value(self, value: object) -> object:
        """The same value, if writing it out is within limits: lists may share their parts."""
        if isinstance(value, str):
            self.characters(len(value))
            return value
        waiting = [value]
        elements = characters = 0
        while waiting:
            elements += 1
            self.elements(elements)
            item = waiting.pop()
            if isinstance(item, str):
                characters += len(item)
                self.characters(characters)
            elif isinstance(item, Mapping):
                waiting += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                waiting += item
        return value


class _PassThroughGeneration(Extension):
    """`{% generation %}`: marks the assistant's part for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates whose renders draw on a budget; one render at a time per sandbox."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Clock) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # or constants would be computed, without limits, while compiling
            extensions=["jinja2.ext.loopcontrols", _PassThroughGeneration],
            finalize=self._finalize,
            cache_size=0,
        )
        self._clock = clock
        self.budget = RenderBudget(clock, steps=0, characters_max=0)
        self.filters = {name: self.filters[name] for name in kept_filters}
        self.filters |= {
            "_step": self._step,
            "_concat": self._concat,
            "join": self._join,
            "replace": self._replace,
            "string": self._string,
            "tojson": self._tojson,
            "list": self._list,
        }
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": self.globals["namespace"],
            "raise_exception": raise_exception,
            "strftime_now": self._strftime_now,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's own rules, and of texts the methods that chat templates use."""
        if isinstance(obj, str):
            return attr in text_methods
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No exception for `format`, which `is_safe_attribute` refuses: it can pad without end."""

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the call, and check what methods that make texts would make."""
        self.budget.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if obj.__name__ == "replace":
                return self._replace(owner, *args, **kwargs)
            if obj.__name__ == "join" and len(args) == 1:
                return self._join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Check an operation's result before it is made."""
        self._check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _check_binop(self, operator: str, left: Any, right: Any) -> None:
        budget = self.budget
        if operator == "%" and isinstance(left, str):
            if format_width.search(left):
                raise TemplateLimitReached("it formats a text with a large width")
            budget.value([left, right])
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            budget.characters(len(left) + len(right))
        elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            budget.elements(len(left) + len(right))
        elif operator in ("*", "**"):
            self._check_product(operator, left, right)

    def _check_product(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            # Never below the true size of the result.
            bits = (
                left.bit_length() * max(0, right)
                if operator == "**"
                else left.bit_length() + right.bit_length()
            )
            if bits > integer_bits_max:
                raise TemplateLimitReached(f"it makes a number of over {integer_bits_max} bits")
            return
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str) and isinstance(count, int):
                self.budget.characters(len(value) * max(0, count))
            elif isinstance(value, list | tuple) and isinstance(count, int):
                self.budget.elements(len(value) * max(0, count))

    def _finalize(self, value: Any) -> Any:
        return self.budget.value(value)

    def _step(self, value: Any = True) -> bool:
        self.budget.step()
        return True

    def _concat(self, values: list[Any]) -> str:
        self.budget.value(values)
        return "".join(map(str, values))

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            raise SecurityError("join by attribute is not offered; use map before it")
        found = self._list(values)
        self.budget.value([*found, d])
        self.budget.characters(len(str(d)) * len(found))
        return str(d).join(map(str, found))

    def _replace(self, s: Any, old: Any, new: Any, count: int = -1) -> str:
        text, old, new = str(self.budget.value(s)), str(old), str(new)
        self.budget.characters(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _string(self, value: Any) -> str:
        return str(self.budget.value(value))

    def _list(self, values: Iterable[Any]) -> list[Any]:
        found: list[Any] = []
        for value in values:
            self.budget.elements(len(found))
            found.append(value)
        return found

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As Hugging Face's templates expect it: not escaped for HTML."""
        if isinstance(value, Undefined):
            raise SecurityError("an undefined value has no JSON")
        if indent is not None and not 0 <= indent <= 16:
            raise TemplateLimitReached("it indents JSON by more than 16")
        return json.dumps(
            self.budget.value(value),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def _strftime_now(self, format: str) -> str:  # noqa: A002 - the name that templates use
        self.budget.characters(len(format) * 64)
        return datetime.fromtimestamp(self._clock.wall_s()).astimezone().strftime(format)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Put the counting into the template's tree, before Jinja makes code of it."""
        _count_steps(source)
        return super()._generate(source, *args, **kwargs)


class RaisedByTemplate(Exception):
    """The template itself refused these messages."""


def raise_exception(message: str) -> NoReturn:
    """What templates call when messages do not suit them."""
    raise RaisedByTemplate(str(message))


def _count_steps(template: nodes.Template) -> None:
    for loop in template.find_all(nodes.For):
        # In the condition, so that turns that the loop's own `if` skips count too.
        step: nodes.Expr = _filter("_step", nodes.Const(True))
        loop.test = step if loop.test is None else nodes.And(step, loop.test)
    for macro in template.find_all(nodes.Macro):
        macro.body.insert(0, nodes.ExprStmt(_filter("_step", nodes.Const(True))))
    _bound_concatenations(template)


def _bound_concatenations(parent: nodes.Node) -> None:
    """Replace each `a ~ b` by a filter that checks the length first."""
    for name, value in parent.iter_fields():
        if isinstance(value, list):
            value[:] = [_bounded(item) if isinstance(item, nodes.Node) else item for item in value]
        elif isinstance(value, nodes.Node):
            setattr(parent, name, _bounded(value))


def _bounded(node: nodes.Node) -> nodes.Node:
    _bound_concatenations(node)
    if isinstance(node, nodes.Concat):
        return _filter("_concat", nodes.List(node.nodes))
    return node


def _filter(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)

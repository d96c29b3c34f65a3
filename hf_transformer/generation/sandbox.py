"""A Jinja sandbox for untrusted chat templates and untrusted chats.

A template can't access files or modules; its variables are JSON values. The sandbox checks the size of a string before
building it. It checks the deadline in each iteration, call, filter and chunk of JSON.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from hf_transformer.types.request import Json

MAX_SECONDS = 5.0
"""Time limit of one rendering. A typical template takes a millisecond for a long chat."""
MAX_CHARACTERS = 4_000_000
"""Size limit of a prompt, and of each value that a template computes."""
MAX_SLOW_CHARACTERS = 200_000
"""Input size limit for SLOW filters, which take seconds for a million characters."""
MAX_BITS = 100_000
"""Size limit of integers. Division of two integers with a million bits takes a second."""
DEADLINE = " deadline"
"""Context variable with the deadline. The space in its name makes it inaccessible to templates."""
TEXT = (str, bytes, bytearray)
CONTAINERS: tuple[type[Any], ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
SIZED: tuple[type[Any], ...] = (*TEXT, *CONTAINERS)
SLOW = frozenset({"pprint", "striptags", "title", "urlize", "wordwrap", "wordcount"})
NOT_GROWING = frozenset(
    "abs attr batch count d default dictsort first float groupby int items last length list map max min random reject "
    "rejectattr reverse round select selectattr slice sort sum unique".split()
)
"""Filters without an output check, because their output is never longer than their input."""
COMPARING = frozenset("dictsort groupby max min sort unique".split())
"""Filters that compare their items. Comparison of two lists with deeply shared parts can take exponential time."""
COMPARING_TESTS = frozenset("== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in".split())
WITH_WIDTH = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "batch", "slice", "indent"})
"""Filters and methods with a width or count as an argument."""


class OverBudget(Exception):
    """Raised if a template exceeds its time or size limit."""


# Counting


def check_time(context: Context) -> None:
    """Raises OverBudget after the deadline."""
    if time.monotonic() > context[DEADLINE]:
        raise OverBudget(f"more than {MAX_SECONDS:g} s")


def check_size(size: float, limit: float = MAX_CHARACTERS) -> None:
    """Raises OverBudget for a size over the limit. Called before building the string."""
    if size > limit:
        raise OverBudget(f"more than {limit} characters")


def length_of(value: Any, context: Context, limit: float = MAX_CHARACTERS) -> int:
    """Upper bound of the length of ``value`` as text. A shared list counts each time it appears. Raises OverBudget."""
    size, remaining = (len(value), []) if isinstance(value, str) else (0, [value])
    while remaining:
        item = remaining.pop()
        if isinstance(item, TEXT):
            size += len(item)
        elif not isinstance(item, CONTAINERS):
            size += 8
        else:
            size += 8 * len(item) + 8
            check_size(size, limit)
            remaining += item
            if isinstance(item, dict):
                remaining += item.values()
            if len(remaining) > 1000:
                check_time(context)
    check_size(size, limit)
    return size


def check_output(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Context) -> None:
    """Checks the output size of a filter or method before it runs. Raises OverBudget."""
    arguments = (*args, *kwargs.values())
    numbers = [abs(argument) for argument in arguments if isinstance(argument, int)]
    longest = max((length_of(argument, context) for argument in arguments if not isinstance(argument, int)), default=0)
    is_text = isinstance(value, TEXT)
    count: Callable[[Any], int] = value.count if is_text else lambda part: 0
    if name in WITH_WIDTH:
        part = {"expandtabs": "\t", "indent": "\n"}.get(name)
        rows = 1 if part is None else 1 + count(part if isinstance(value, str) else part.encode())
        check_size(rows * max(*numbers, longest, 1))
    elif not is_text:
        return
    elif name in ("format", "format_map"):
        check_format(value, arguments, context)
    elif name == "replace":
        old = args[0] if args else kwargs.get("old", kwargs.get("s", ""))
        matches = count(old) if isinstance(old, type(value)) else len(value)
        check_size(len(value) + matches * longest)
    elif name == "join" and not isinstance(args[0] if args else "", TEXT):
        items = len(args[0]) if hasattr(args[0], "__len__") else 0
        check_size(longest + items * len(value))
    elif name in ("join", "wordwrap", "translate"):
        check_size(len(value) * max(longest, 1))


def check_format(template: str | bytes | bytearray, arguments: Iterable[Any], context: Context) -> None:
    """Checks the output size of a format string. Raises OverBudget.

    Assumes that each number in it is a width, and that each field has the length of the longest value.
    """
    text = template if isinstance(template, str) else template.decode("latin-1")
    check_size(sum(int(width) if len(width) < 9 else MAX_CHARACTERS + 1 for width in re.findall(r"\d+", text)))
    values: list[Any] = []
    for argument in arguments:
        is_tuple = isinstance(argument, tuple)
        values += argument.values() if isinstance(argument, Mapping) else argument if is_tuple else (argument,)
    if "*" in text or re.search(r"\{[^{}]*\{", text):
        check_size(sum(abs(value) for value in values if isinstance(value, int)))
    longest = max((length_of(value, context) for value in values), default=0)
    check_size(len(text) + (text.count("%") + text.count("{")) * longest)


# Filters


def limited_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter with checks of the deadline and of its output size."""
    passed_type = getattr(original, "jinja_pass_arg", None)
    measured = name not in NOT_GROWING or name in COMPARING
    limit = MAX_SLOW_CHARACTERS if name in SLOW else MAX_CHARACTERS

    @functools.wraps(original)
    def wrapped(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_time(context)
        if measured:
            if isinstance(value, Iterator):
                value = list(value)
            size = length_of(value, context, limit)
            if name == "join":
                check_size(size + length_of(args[:1], context) * (len(value) if hasattr(value, "__len__") else 1))
        elif name == "sum" and isinstance(kwargs.get("start", args[1:2]), list | tuple) and (args[1:] or kwargs):
            value = list(value)
            check_size(len(value) * length_of(value, context))
        if args or kwargs:
            check_output(name, value if isinstance(value, TEXT) else [], args, kwargs, context)
        passed_by_type = {None: (), "context": (context,), "eval_context": (context.eval_ctx,)}
        passed = passed_by_type.get(passed_type.name if passed_type else None, (context.environment,))
        return original(*passed, value, *args, **kwargs)

    # Overwrite jinja_pass_arg, which functools.wraps copies from the original.
    return jinja2.pass_context(wrapped)


def limited_test(test: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    """Wraps a comparison test with a check of its operands' size."""

    @functools.wraps(test)
    def wrapped(context: Context, left: Any, right: Any) -> bool:
        if isinstance(left, CONTAINERS) and isinstance(right, CONTAINERS):
            length_of((left, right), context)
        return test(left, right)

    return jinja2.pass_context(wrapped)


@jinja2.pass_context
def to_json(
    context: Context,
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replacement for Jinja's filter tojson, which escapes HTML.

    Indentation multiplies the length by the depth, so the limits apply to each chunk of the JSON.
    """
    check_time(context)
    length_of(value, context)
    for space in (indent, *(separators or ())):
        check_size(space if isinstance(space, int) else len(space or ""))
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, check_circular=False
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        check_size(size)
        if not len(pieces) % 256:
            check_time(context)
    return "".join(pieces)


# The environment


class GenerationTag(jinja2.ext.Extension):
    """The tag {% generation %}. It marks the assistant's text for training, and has no effect on inference."""

    tags = {"generation"}  # noqa: RUF012 - the type that jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # As in transformers, variables set inside the tag are not visible outside.
        return nodes.Scope(body).set_lineno(line)


class Namespace(jinja2.utils.Namespace):
    """Jinja's Namespace that rejects names with a leading underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace can't have the name {name!r}")
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    namespace = Namespace()
    for name, value in dict(*args, **kwargs).items():
        namespace[name] = value
    return namespace


class DictGlobal:
    """The global ``dict``, without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    check_size(100 * len(format))
    return datetime.now().strftime(format)


class Guards(NodeTransformer):
    """AST transformer that inserts calls to checks: in each loop iteration, for ``~``, for comparison operands and dict
    keys."""

    def visit_For(self, loop: nodes.For) -> nodes.Node:
        iteration = nodes.Call(nodes.EnvironmentAttribute("iteration"), [], [], None, None)
        loop.body.insert(0, nodes.ExprStmt(iteration).set_lineno(loop.lineno))
        return self.generic_visit(loop)

    def visit_Concat(self, concat: nodes.Concat) -> nodes.Node:
        call = nodes.Call(nodes.EnvironmentAttribute("concat_values"), concat.nodes, [], None, None)
        return self.generic_visit(call.set_lineno(concat.lineno))

    def visit_Compare(self, compare: nodes.Compare) -> nodes.Node:
        if not any(isinstance(operand, nodes.Const) for operand in (compare.expr, *(op.expr for op in compare.ops))):
            compare.expr = _guarded(compare.expr)
            for op in compare.ops:
                op.expr = _guarded(op.expr)
        return self.generic_visit(compare)

    def visit_Pair(self, pair: nodes.Pair) -> nodes.Node:
        pair.key = _guarded(pair.key)
        return self.generic_visit(pair)


def _guarded(value: nodes.Expr) -> nodes.Expr:
    if isinstance(value, nodes.Const):
        return value
    call = nodes.Call(nodes.EnvironmentAttribute("checked"), [value], [], None, None)
    call.set_lineno(value.lineno)
    return call


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Immutable sandbox that checks the limits in each call, filter, output and iteration."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=jinja2.pass_context(self.checked_output),
        )
        self.filters = {name: limited_filter(name, original) for name, original in self.filters.items()}
        self.filters["tojson"] = to_json
        tests: dict[str, Any] = self.tests
        self.tests = tests | {name: limited_test(tests[name]) for name in COMPARING_TESTS}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": DictGlobal(),
            "namespace": _namespace,
        }

    @staticmethod
    def checked_output(context: Context, value: Any) -> Any:
        """Checks the size of a value before rendering it."""
        if not isinstance(value, str):
            length_of(value, context)
        return value

    def iteration(self) -> str:
        """No-op. Guards inserts a call to it into each iteration, so that ``call`` checks the deadline."""
        return ""

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins the output of a macro or block."""
        parts = tuple(parts)
        check_size(sum(map(len, parts)))
        return "".join(parts)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            raise SecurityError("a tuple can't be an index")
        return super().getitem(obj, argument)

    @staticmethod
    @jinja2.pass_context
    def checked(context: Context, value: Any) -> Any:
        """Checks the size of an operand, and returns the operand."""
        if isinstance(value, CONTAINERS):
            length_of(value, context)
        return value

    @staticmethod
    @jinja2.pass_context
    def concat_values(context: Context, *values: Any) -> str:
        """Joins values as the operator ``~`` does."""
        for value in values:
            if not isinstance(value, str):
                length_of(value, context)
        return ChatEnvironment.concat(map(str, values))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_time(__context)
        if __obj == __self.iteration:
            return ""
        wrapped = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        owner = getattr(wrapped, "__self__", None)
        if (args or kwargs) and isinstance(owner, (*TEXT, int)):
            check_output(getattr(wrapped, "__name__", ""), owner, args, kwargs, __context)
        for argument in args:
            if isinstance(argument, CONTAINERS):
                length_of(argument, __context)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, SIZED) and isinstance(right, SIZED):
            check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, TEXT):
            check_format(left, (right,), context)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
            check_size(bits, MAX_BITS)
        elif operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (*TEXT, list, tuple)) and isinstance(count, int):
                    check_size(len(sequence) * count)
        return super().call_binop(context, operator, left, right)

"""A Jinja sandbox for untrusted chat templates and untrusted chats.

A template reaches no files and no modules, and sees JSON values alone. The size of a text is checked before the text is
made, and the deadline is checked in each iteration, call, filter and chunk of JSON.
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

MOST_SECONDS = 5.0
"""Time limit of one rendering. A usual template takes a millisecond for a long chat."""
MOST_CHARACTERS = 4_000_000
"""Size limit of a prompt, and of each value that a template makes."""
MOST_SLOW_CHARACTERS = 200_000
"""Size limit for the input of the filters SLOW, which take seconds for a million characters."""
MOST_BITS = 100_000
"""Size limit of integers: dividing two of a million bits takes a second."""
BUDGET = " budget"
"""The name of the deadline among a template's variables: with a space in it, no template can read it."""
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
NO_TEXT = frozenset(
    "abs attr batch count d default dictsort first float groupby int items last length list map max min random reject "
    "rejectattr reverse round select selectattr slice sort sum unique".split()
)
"""Filters whose output is no longer than their input, which needs no check."""
COMPARING = frozenset("dictsort groupby max min sort unique".split())
"""Filters that compare their items. Comparing two deeply shared lists can take years."""
COMPARING_TESTS = frozenset("== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in".split())
WIDTHS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "batch", "slice", "indent"})
"""Filters and methods with a width or count as an argument."""


class OverBudget(Exception):
    """A template exceeded its time or size limit."""


# Counting


def check_time(context: Context) -> None:
    """Raises OverBudget once the time is over."""
    if time.monotonic() > context[BUDGET]:
        raise OverBudget(f"it takes longer than {MOST_SECONDS:g} s")


def check_size(size: float, most: float = MOST_CHARACTERS) -> None:
    """Raises OverBudget for more characters than ``most``, before they are made."""
    if size > most:
        raise OverBudget(f"it makes more than {most} characters")


def length_of(value: Any, context: Context, most: float = MOST_CHARACTERS) -> int:
    """Upper estimate of the characters of ``value`` as text; a shared list counts each time it appears. Raises
    OverBudget for more than ``most``."""
    size, left = (len(value), []) if isinstance(value, str) else (0, [value])
    while left:
        one = left.pop()
        if isinstance(one, TEXT):
            size += len(one)
        elif not isinstance(one, CONTAINERS):
            size += 8
        else:
            size += 8 * len(one) + 8
            check_size(size, most)
            left += one
            if isinstance(one, dict):
                left += one.values()
            if len(left) > 1000:
                check_time(context)
    check_size(size, most)
    return size


def check_made(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Context) -> None:
    """Check the output size of a filter or method before it runs. Raises OverBudget."""
    given = (*args, *kwargs.values())
    numbers = [abs(one) for one in given if isinstance(one, int)]
    longest = max((length_of(one, context) for one in given if not isinstance(one, int)), default=0)
    is_text = isinstance(value, TEXT)
    times: Callable[[Any], int] = value.count if is_text else lambda part: 0
    if name in WIDTHS:
        part = {"expandtabs": "\t", "indent": "\n"}.get(name)
        rows = 1 if part is None else 1 + times(part if isinstance(value, str) else part.encode())
        check_size(rows * max(*numbers, longest, 1))
    elif not is_text:
        return
    elif name in ("format", "format_map"):
        check_format(value, given, context)
    elif name == "replace":
        old = args[0] if args else kwargs.get("old", kwargs.get("s", ""))
        found = times(old) if isinstance(old, type(value)) else len(value)
        check_size(len(value) + found * longest)
    elif name == "join" and not isinstance(args[0] if args else "", TEXT):
        count = len(args[0]) if hasattr(args[0], "__len__") else 0
        check_size(longest + count * len(value))
    elif name in ("join", "wordwrap", "translate"):
        check_size(len(value) * max(longest, 1))


def check_format(template: str | bytes | bytearray, given: Iterable[Any], context: Context) -> None:
    """Check the output size of a format string: numbers in it count as widths, each field as the longest value. Raises
    OverBudget."""
    text = template if isinstance(template, str) else template.decode("latin-1")
    if len(found := re.findall(r"\d+", text)) > 0:
        check_size(sum(int(one) if len(one) < 9 else MOST_CHARACTERS + 1 for one in found))
    values = [one for value in given for one in _inside(value)]
    if "*" in text or re.search(r"\{[^{}]*\{", text):
        check_size(sum(abs(one) for one in values if isinstance(one, int)))
    longest = max((length_of(one, context) for one in values), default=0)
    check_size(len(text) + (text.count("%") + text.count("{")) * longest)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


# Filters


def counted(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter with checks of the deadline and of its output size."""
    wants = getattr(made, "jinja_pass_arg", None)
    measured = name not in NO_TEXT or name in COMPARING
    most = MOST_SLOW_CHARACTERS if name in SLOW else MOST_CHARACTERS

    @functools.wraps(made)
    def wrapped(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_time(context)
        if measured:
            if isinstance(value, Iterator):
                value = list(value)
            size = length_of(value, context, most)
            if name == "join":
                check_size(size + length_of(args[:1], context) * (len(value) if hasattr(value, "__len__") else 1))
        elif name == "sum" and isinstance(kwargs.get("start", args[1:2]), list | tuple) and (args[1:] or kwargs):
            value = list(value)
            check_size(len(value) * length_of(value, context))
        if args or kwargs:
            check_made(name, value if isinstance(value, TEXT) else [], args, kwargs, context)
        first = {None: (), "context": (context,), "eval_context": (context.eval_ctx,)}
        passed = first.get(wants.name if wants else None, (context.environment,))
        return made(*passed, value, *args, **kwargs)

    # functools.wraps has copied the original's mark for what Jinja passes.
    return jinja2.pass_context(wrapped)


def compared(test: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    """Wrap a comparing test with a check of its operands' size."""

    @functools.wraps(test)
    def wrapped(context: Context, value: Any, other: Any) -> bool:
        if isinstance(value, CONTAINERS) and isinstance(other, CONTAINERS):
            length_of((value, other), context)
        return test(value, other)

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
    """JSON in chunks under the limits, since indentation multiplies its length by its depth. Jinja's own filter escapes
    the characters of HTML."""
    check_time(context)
    length_of(value, context)
    for given in (indent, *(separators or ())):
        check_size(given if isinstance(given, int) else len(given or ""))
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
    """The tag {% generation %}, which marks the assistant's words for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as in transformers: variables that are set within are not seen outside.
        return nodes.Scope(body).set_lineno(line)


class Namespace(jinja2.utils.Namespace):
    """Jinja's own, without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace can't have the name {name!r}")
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    made = Namespace()
    for name, value in dict(*args, **kwargs).items():
        made[name] = value
    return made


class Dict:
    """The part of the type dict that templates need."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    check_size(100 * len(form))
    return datetime.now().strftime(form)


class Guards(NodeTransformer):
    """Insert checks: a call in each iteration, in place of each ``~``, and around operands of comparisons and keys."""

    def visit_For(self, loop: nodes.For) -> nodes.Node:
        turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
        loop.body.insert(0, nodes.ExprStmt(turn).set_lineno(loop.lineno))
        return self.generic_visit(loop)

    def visit_Concat(self, concat: nodes.Concat) -> nodes.Node:
        called = nodes.Call(nodes.EnvironmentAttribute("joined"), concat.nodes, [], None, None)
        return self.generic_visit(called.set_lineno(concat.lineno))

    def visit_Compare(self, compare: nodes.Compare) -> nodes.Node:
        if not any(isinstance(one, nodes.Const) for one in (compare.expr, *(op.expr for op in compare.ops))):
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
    called = nodes.Call(nodes.EnvironmentAttribute("same"), [value], [], None, None)
    called.set_lineno(value.lineno)
    return called


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """An immutable sandbox that checks the limits in each call, filter, output and iteration."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=jinja2.pass_context(self.written),
        )
        self.filters = {name: counted(name, made) for name, made in self.filters.items()} | {"tojson": to_json}
        tests: dict[str, Any] = self.tests
        self.tests = tests | {name: compared(tests[name]) for name in COMPARING_TESTS}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": Dict(),
            "namespace": _namespace,
        }

    @staticmethod
    def written(context: Context, value: Any) -> Any:
        """Check a value before it is written."""
        if not isinstance(value, str):
            length_of(value, context)
        return value

    def turn(self) -> str:
        """No-op inserted into each iteration, so that ``call`` checks the deadline."""
        return ""

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join the output of a macro or block."""
        parts = tuple(parts)
        check_size(sum(map(len, parts)))
        return "".join(parts)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            raise SecurityError("a tuple can't be an index")
        return super().getitem(obj, argument)

    @staticmethod
    @jinja2.pass_context
    def same(context: Context, value: Any) -> Any:
        """Check the size of an operand, and return it."""
        if isinstance(value, CONTAINERS):
            length_of(value, context)
        return value

    @staticmethod
    @jinja2.pass_context
    def joined(context: Context, *values: Any) -> str:
        """Join values as the operator ``~`` does."""
        for one in values:
            if not isinstance(one, str):
                length_of(one, context)
        return ChatEnvironment.concat(map(str, values))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_time(__context)
        if __obj == __self.turn:
            return ""
        wrapped = getattr(__obj, "__wrapped__", __obj)  # Jinja has its own str.format
        owner = getattr(wrapped, "__self__", None)
        if (args or kwargs) and isinstance(owner, (*TEXT, int)):
            check_made(getattr(wrapped, "__name__", ""), owner, args, kwargs, __context)
        for one in args:
            if isinstance(one, CONTAINERS):
                length_of(one, __context)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, SIZED) and isinstance(right, SIZED):
            check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, TEXT):
            check_format(left, (right,), context)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
            check_size(bits, MOST_BITS)
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (*TEXT, list, tuple)) and isinstance(other, int):
                    check_size(len(one) * other)
        return super().call_binop(context, operator, left, right)

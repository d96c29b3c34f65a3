"""A Jinja sandbox for untrusted chat templates and untrusted chats.

A template can't access files or modules; its variables are JSON values. The sandbox checks the size of a value before
building it, and charges its memory to the budget. It checks the deadline in each iteration, call, filter and chunk of
JSON. No operation of a template holds the interpreter's lock for longer than about 0.1 s.

Nothing is computed while a template is compiled: Jinja's optimizer would evaluate constant expressions without limits.
"""

from __future__ import annotations

import functools
import json
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

from hf_transformer.generation.template_budget import (
    BUDGET,
    CONTAINERS,
    MAX_CHARACTERS,
    MAX_FORMAT_CHARACTERS,
    MAX_PRECISION,
    MAX_SLOW_CHARACTERS,
    OBJECT_BYTES,
    SCALARS,
    SIZED,
    TEXT,
    check_format,
    check_numbers,
    check_output,
    check_size,
    check_time,
    length_of,
)
from hf_transformer.types.request import Json

SLOW = frozenset({"pprint", "striptags", "title", "urlencode", "urlize", "wordwrap", "wordcount"})
"""Filters that take seconds for a million characters."""
NOT_GROWING = frozenset(
    "abs attr batch count d default dictsort first float groupby int items last length list map max min random reject "
    "rejectattr reverse round select selectattr slice sort sum unique".split()
)
"""Filters without an output check, because their output is never longer than their input."""
ITERATING = frozenset(
    "batch first groupby join last list map max min random reject rejectattr select selectattr slice sort sum "
    "unique".split()
)
"""Filters that make an object of each character of a text."""
COMPARING = frozenset("dictsort groupby max min sort unique".split())
"""Filters that compare their items. Comparison of two lists with deeply shared parts can take exponential time."""
BY_ATTRIBUTE = {"selectattr": 1, "rejectattr": 1} | dict.fromkeys("groupby map max min sort sum unique".split(), 9)
"""Filters with the name of an attribute, and the number of positional arguments that may be this name."""
MAX_ATTRIBUTE_CHARACTERS = 200
"""Size limit of an attribute's name. A filter reads each of its parts for each item."""
CONSTANT_TIME_TESTS = frozenset(
    "boolean callable defined escaped false filter float integer iterable mapping none number sameas sequence string "
    "test true undefined".split()
)
"""Tests that don't read their operand's content."""
MAKING = (nodes.BinExpr, nodes.Call, nodes.Concat, nodes.Filter, nodes.Getitem, nodes.List, nodes.Tuple, nodes.Dict)
"""Expressions that make an object."""


# Filters


def limited_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter with checks of the deadline and of its output size."""
    passed_type = getattr(original, "jinja_pass_arg", None)
    measured = name not in NOT_GROWING or name in COMPARING
    limit = MAX_SLOW_CHARACTERS if name in SLOW else MAX_CHARACTERS

    @functools.wraps(original)
    def wrapped(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        budget = context[BUDGET]
        budget.check_time()
        if name in ITERATING and isinstance(value, TEXT):
            check_size(len(value), MAX_SLOW_CHARACTERS)
        if measured:
            if isinstance(value, Iterator):
                value = list(value)
                budget.spend_value(value)
            size = length_of(value, context, limit)
            if name == "join":
                check_size(size + length_of(args[:1], context) * (len(value) if hasattr(value, "__len__") else 1))
        elif name == "sum" and isinstance(kwargs.get("start", args[1:2]), list | tuple) and (args[1:] or kwargs):
            value = list(value)
            check_size(len(value) * length_of(value, context))
        if args or kwargs:
            _check_arguments(name, args, kwargs)
            check_output(name, value if isinstance(value, TEXT) else [], args, kwargs, context)
        passed_by_type = {None: (), "context": (context,), "eval_context": (context.eval_ctx,)}
        passed = passed_by_type.get(passed_type.name if passed_type else None, (context.environment,))
        result = original(*passed, value, *args, **kwargs)
        budget.spend_value(result)
        return result

    # Overwrite jinja_pass_arg, which functools.wraps copies from the original.
    return jinja2.pass_context(wrapped)


def _check_arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Checks numbers and names for which a filter's time grows. Raises OverBudget."""
    if name == "round":
        for precision in (*args, *kwargs.values()):
            if isinstance(precision, int):
                check_size(abs(precision), MAX_PRECISION)
    elif name in BY_ATTRIBUTE:
        for attribute in (*args[: BY_ATTRIBUTE[name]], kwargs.get("attribute")):
            if isinstance(attribute, str):
                check_size(len(attribute), MAX_ATTRIBUTE_CHARACTERS)


def limited_test(test: Callable[..., bool]) -> Callable[..., bool]:
    """Wraps a test with checks of the deadline and of its operands' size."""
    passed_type = getattr(test, "jinja_pass_arg", None)

    @functools.wraps(test)
    def wrapped(context: Context, *operands: Any) -> bool:
        check_time(context)
        for operand in operands:
            if isinstance(operand, CONTAINERS):
                length_of(operand, context)
        if len(operands) == 2:
            check_numbers("%", *operands)
        return test(*((context.environment,) if passed_type else ()), *operands)

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
    budget = context[BUDGET]
    budget.check_time()
    length_of(value, context)
    for space in (indent, *(separators or ())):
        check_size(space if isinstance(space, int) else len(space or ""))
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, check_circular=False
    )
    if indent is None and separators is None:
        text = encoder.encode(value)
        budget.spend_value(text)
        return text
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        check_size(size)
        if not len(pieces) % 256:
            budget.check_time()
    budget.spend(2 * size)
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
    check_size(len(format), MAX_FORMAT_CHARACTERS)
    return datetime.now().strftime(format)


class Guard:
    """A check that Guards inserts into a template; ``ChatEnvironment.call`` calls it with the context."""

    __slots__ = ("check",)

    def __init__(self, check: Callable[..., Any]) -> None:
        self.check = check


class Guards(NodeTransformer):
    """AST transformer that inserts calls to checks: in each iteration and macro, for the condition of a loop, for
    ``~``, slices and set blocks, for comparison operands and dict keys."""

    def visit_For(self, loop: nodes.For) -> nodes.Node:
        if loop.test is not None:
            loop.test = _guard("passed", loop.test)
        return self._with_weight(loop)

    def visit_Macro(self, macro: nodes.Macro) -> nodes.Node:
        return self._with_weight(macro)

    def visit_CallBlock(self, block: nodes.CallBlock) -> nodes.Node:
        return self._with_weight(block)

    def _with_weight(self, node: Any) -> nodes.Node:
        """Charges the objects that a body makes, before each of its runs."""
        weight = OBJECT_BYTES * sum(len(getattr(made, "items", ())) + 1 for made in node.find_all(MAKING))
        node.body.insert(0, nodes.ExprStmt(_guard("begun", nodes.Const(weight, lineno=node.lineno))))
        return self.generic_visit(node)

    def visit_Concat(self, concat: nodes.Concat) -> nodes.Node:
        return self.generic_visit(_guard("concatenated", *concat.nodes))

    def visit_Compare(self, compare: nodes.Compare) -> nodes.Node:
        """Guards an operand beside another that is no constant. Comparing with a constant takes no time."""
        operands = [compare.expr, *(op.expr for op in compare.ops)]
        constant = [True, *(isinstance(operand, nodes.Const) for operand in operands), True]
        checked = [
            operand if constant[index + 1] or (constant[index] and constant[index + 2]) else _guard("checked", operand)
            for index, operand in enumerate(operands)
        ]
        compare.expr = checked[0]
        for op, operand in zip(compare.ops, checked[1:], strict=True):
            op.expr = operand
        return self.generic_visit(compare)

    def visit_Pair(self, pair: nodes.Pair) -> nodes.Node:
        if not isinstance(pair.key, nodes.Const):
            pair.key = _guard("checked", pair.key)
        return self.generic_visit(pair)

    def visit_Getitem(self, item: nodes.Getitem) -> nodes.Node:
        visited = self.generic_visit(item)
        return _guard("made", visited) if isinstance(item.arg, nodes.Slice) else visited

    def visit_AssignBlock(self, block: nodes.AssignBlock) -> nodes.Node:
        block.filter = nodes.Filter(block.filter, MADE, [], [], None, None, lineno=block.lineno)
        return self.generic_visit(block)


MADE = " made"
"""The filter that charges the text of a set block. The space in its name makes it inaccessible to templates."""


def _guard(name: str, *values: Any) -> Any:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(values), [], None, None).set_lineno(values[0].lineno)


def _begun(context: Context, weight: int) -> str:
    budget = context[BUDGET]
    budget.check_time()
    budget.spend(weight)
    return ""


def _passed(context: Context, value: Any) -> Any:
    check_time(context)
    return value


def _checked(context: Context, value: Any) -> Any:
    if isinstance(value, CONTAINERS):
        length_of(value, context)
    return value


def _made(context: Context, value: Any) -> Any:
    context[BUDGET].spend_value(value, with_items=False)
    return value


def _concatenated(context: Context, *values: Any) -> str:
    for value in values:
        if not isinstance(value, str):
            length_of(value, context)
    text = ChatEnvironment.concat(map(str, values))
    context[BUDGET].spend_value(text)
    return text


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Immutable sandbox that checks the limits in each call, filter, output and iteration."""

    intercepted_binops = frozenset({"*", "**", "+", "%", "-", "/", "//"})
    begun, passed, checked, made, concatenated = map(Guard, (_begun, _passed, _checked, _made, _concatenated))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=jinja2.pass_context(self.checked_output),
            optimized=False,
        )
        self.filters = {name: limited_filter(name, original) for name, original in self.filters.items()}
        self.filters |= {"tojson": to_json, MADE: jinja2.pass_context(_made)}
        tests: dict[str, Any] = self.tests
        self.tests = {name: test if name in CONSTANT_TIME_TESTS else limited_test(test) for name, test in tests.items()}
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

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is Guard:
            return __obj.check(__context, *args)
        budget = __context[BUDGET]
        budget.check_time()
        wrapped = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        owner, name = getattr(wrapped, "__self__", None), getattr(wrapped, "__name__", "")
        if args or kwargs:
            if isinstance(owner, SCALARS):
                check_output(name, owner, args, kwargs, __context)
            searched = () if name in ("get", "items") else (owner,)
            for argument in (*searched, *args, *kwargs.values()):
                if isinstance(argument, CONTAINERS):
                    length_of(argument, __context)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.spend_value(result)
        if isinstance(owner, TEXT) and isinstance(result, list):  # of parts
            budget.spend_value(owner)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, SIZED) and isinstance(right, SIZED):
            check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, TEXT):
            check_format(left, (right,), context)
        elif operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (*TEXT, list, tuple)) and isinstance(count, int):
                    check_size(len(sequence) * count * (1 if isinstance(sequence, TEXT) else 8))
        elif operator == "-" and isinstance(left, SIZED):  # of sets, which hashes their items
            length_of((left, right), context)
        check_numbers(operator, left, right)
        result: Any = self.binop_table[operator](left, right)
        context[BUDGET].spend_value(result, with_items=False)
        return result

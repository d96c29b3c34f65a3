"""The sandbox of chat templates: Jinja as transformers sets it up, with limits of time and size.

A template comes with a model and may be anybody's. It can reach no files and no modules, it sees plain JSON values
alone, its loops and calls look at the clock, and its output is counted.

Source: transformers 5.23, utils/chat_template_utils.py. A module of its own, so that Jinja is only loaded for a model
with a template.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro

from hf_transformer.errors import InvalidInput, LoadError, TooLarge
from hf_transformer.types import Json

MOST_SECONDS = 5.0
"""A template that takes longer is given up; a usual one takes a millisecond for a long chat."""
MOST_CHARACTERS = 10_000_000
"""Of all output of a template, and of a value that it makes."""
BUDGET = " budget"
"""The name of the deadline among a template's variables: with a space in it, no template can read it."""
PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
"""Methods of a string that make one of any length."""
TEMPLATE_ERRORS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
    *(TypeError, ValueError, RecursionError),
)
"""How a template ends that does not get the messages that it expects."""


class OverBudget(Exception):
    """A template has taken too long, or made too much."""


class GenerationTag(jinja2.ext.Extension):
    """The tag {% generation %}, which marks the assistant's words for training. Here its content counts alone."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block of its own, as in transformers: variables that are set within are not seen outside.
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return caller()


class Namespace(jinja2.utils.Namespace):
    """Jinja's own, without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't have the name {name!r}")


class Dict:
    """The type dict, as far as templates need it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox: no value can be changed, and each call and each turn of a loop looks at the budget."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "dict": Dict(),
            "namespace": Namespace,
        }

    def turn(self) -> str:
        """Each turn of a loop calls this, so that ``call`` sees it."""
        return ""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() > __context[BUDGET]:
            raise OverBudget(f"it takes longer than {MOST_SECONDS:g} s")
        if __obj == __self.turn:
            return ""
        if getattr(__obj, "__name__", "") in PADDING:
            _check_size(max((value for value in args if isinstance(value, int)), default=0))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_size(max(abs(value) for value in (left, right) if isinstance(value, int | float)))
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                _check_size(len(one) * other)
        return super().call_binop(context, operator, left, right)


def _check_size(size: float) -> None:
    if size > MOST_CHARACTERS:
        raise OverBudget(f"it makes more than {MOST_CHARACTERS} characters")


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own, which escapes the characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class CompiledTemplate:
    """One template, ready to run; threads may share it.

    Attributes: ``names``, the variables that it reads; ``wants_parts``, whether it goes through a message's content
    part by part and does not know contents that are strings.

    Raises:
        LoadError: it is no Jinja.
    """

    def __init__(self, environment: ChatEnvironment, text: str, where: str) -> None:
        try:
            tree = environment.parse(text)
            self.names = jinja2.meta.find_undeclared_variables(tree)
            loops = list(tree.find_all(nodes.For))
            self.wants_parts = any(_reads_content(loop.iter) for loop in loops) and not any(
                test.name == "string" for test in tree.find_all(nodes.Test)
            )
            for loop in loops:
                turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(turn).set_lineno(loop.lineno))
            code = environment.compile(tree)
        except jinja2.TemplateSyntaxError as exc:
            raise LoadError(f"{where}: the chat template is no valid Jinja, line {exc.lineno}: {exc.message}") from exc
        self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def render(self, variables: Mapping[str, Json]) -> str:
        """The template's output.

        Raises:
            InvalidInput: it does not take these messages.
            TooLarge: it takes too long for them, or writes too much.
        """
        try:
            return "".join(_counted(self._template.generate({**variables, BUDGET: time.monotonic() + MOST_SECONDS})))
        except OverBudget as exc:
            raise TooLarge(f"messages: the model's chat template is given up: {exc}") from exc
        except TEMPLATE_ERRORS as exc:
            raise InvalidInput(f"messages: the model's chat template does not take them: {_why(exc)}") from exc


def _counted(parts: Iterator[str]) -> Iterator[str]:
    size = 0
    for part in parts:
        size += len(part)
        _check_size(size)
        yield part


def _why(error: Exception) -> str:
    """The template's own words where it refuses; else the kind of error, since its text may quote a message."""
    if type(error) is jinja2.TemplateError:
        return str(error)[:300]
    return "it needs something that they lack" if isinstance(error, jinja2.UndefinedError) else type(error).__name__


def _reads_content(node: nodes.Node) -> bool:
    """Whether an expression is a message's content."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"

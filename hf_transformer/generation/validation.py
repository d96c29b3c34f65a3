"""Validation of texts against constraints. It runs in a child process (child.py), because it has no bound of its own.

jsonschema validates JSON. Regular expressions and grammars, also the patterns in a schema, are matched by llguidance,
in linear time. A schema with patterns is therefore matched as a whole, which requires the properties in the order of
the schema.

A schema's references lead to the schema itself: the registry holds no other document, and retrieves none.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import orjson

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.grammars import byte_tokenizer, compile_grammar
from hf_transformer.types.request import Json

_PATTERNS: Final = ('"pattern"', '"patternProperties"')


def check(constraint: Constraint) -> None:
    """Raises InvalidInput for a constraint that can't be verified."""
    schemas = [constraint]
    if constraint.kind == "tool":
        tools, answer = constraint.tool_parts
        schemas = [Constraint.of("json_schema", schema) for schema in (*tools.values(), answer) if schema is not None]
    for part in schemas:
        schema = part.schema
        if schema is None or _has_patterns(part):
            compile_grammar(bytes_vocabulary(), part, ())
        else:
            _check_schema(schema)


def problem(constraint: Constraint, text: str) -> str:
    """Describes how a text breaks its form; empty if it has the form. Raises InvalidInput for an unusable schema."""
    if constraint.kind == "tool":
        return _tool_problem(constraint, text)
    if constraint.kind in ("json_schema", "json_object"):
        return _json_problem(constraint, text)
    return "" if _matches(constraint, text) else f"it does not match the {constraint.kind}"


def _json_problem(constraint: Constraint, text: str) -> str:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"invalid JSON: {error}"
    if _has_patterns(constraint):
        try:
            whole = orjson.dumps(value).decode()
        except TypeError:  # orjson writes at most 254 levels
            return "its lists and objects are nested too deep"
        return "" if _matches(constraint, whole) else "it does not match the schema"
    from referencing.exceptions import Unresolvable

    try:
        first = next(_validator(constraint.schema).iter_errors(value), None)
    except Unresolvable:
        hint = "the service loads no other documents"
        raise InvalidInput("", "references within the schema, such as '#/$defs/item'", hint=hint) from None
    except RecursionError:
        hint = "it refers to itself without end, or is nested too deep"
        raise InvalidInput("", "a schema that ends", hint=hint) from None
    return "" if first is None else f"{first.json_path}: the value breaks the schema's {first.validator!r}"


def _tool_problem(constraint: Constraint, text: str) -> str:
    (tools, answer), form = constraint.tool_parts, constraint.call_form
    start = text.find(form.trigger)
    if start < 0 or (answer is not None and text[:start].strip()):
        return "" if answer is None else _json_problem(Constraint.of("json_schema", answer), text)
    decoder = json.JSONDecoder()
    while start >= 0:
        name = next((name for name in tools if text.startswith(form.begin(name), start)), None)
        if name is None:
            return "it calls a tool that the request does not have"
        begin = start + len(form.begin(name))
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:
            return f"the arguments of {name}: invalid JSON: {error}"
        if found := _json_problem(Constraint.of("json_schema", tools[name]), text[begin:end]):
            return f"the arguments of {name}: {found}"
        if not text.startswith(form.tail, end):
            return f"the call of {name} has no end"
        start = text.find(form.trigger, end + len(form.tail))
    return ""


def _check_schema(schema: Json) -> None:
    from jsonschema import SchemaError

    try:
        _validator(schema).check_schema(schema)
    except SchemaError as error:
        raise InvalidInput("", "a valid JSON schema", hint=error.message[:200]) from None


def _validator(schema: Json) -> Any:
    """A validator of jsonschema for the schema's dialect."""
    from jsonschema.validators import validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    return validator_for(schema)(schema, registry=EMPTY_REGISTRY)


def _matches(constraint: Constraint, text: str) -> bool:
    matcher, data = compile_grammar(bytes_vocabulary(), constraint, ()), list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@cache
def bytes_vocabulary() -> Any:
    """The vocabulary of single bytes, made once."""
    return byte_tokenizer()


def _has_patterns(constraint: Constraint) -> bool:
    return any(pattern in constraint.source for pattern in _PATTERNS)

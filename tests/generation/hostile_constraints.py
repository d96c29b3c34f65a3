"""Constraints that take a library long, or much memory, by the cause of their cost."""

from __future__ import annotations

import string
from typing import Any

from hf_transformer.generation.constraint import ConstraintKind

LETTERS = string.ascii_lowercase
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


def doubling(keyword: str, inside: str = "$defs", **more: Any) -> dict[str, Any]:
    """A schema of 60 parts, each of which applies the next one twice."""
    parts: dict[str, Any] = {f"p{n}": {keyword: [{"$ref": f"#/{inside}/p{n + 1}"}] * 2, **more} for n in range(60)}
    return {"$ref": f"#/{inside}/p0", inside: {**parts, "p60": {"type": "object"}}}


def nested(keyword: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": 5}
    for _ in range(levels):
        schema = {keyword: [schema, schema]}
    return schema


def any_of(name: str) -> dict[str, Any]:
    return {"anyOf": [{"properties": {name: {"const": value}}} for value in range(4)]}


def alternatives(count: int, rule: str) -> str:
    rules = "\n".join(f"r{n}: {rule}" for n in range(count))
    return f"start: s+\ns: {' | '.join(f'r{n}' for n in range(count))}\n{rules}\n"


COMPILED: dict[str, tuple[ConstraintKind, Any]] = {
    "multipleOf": ("json_schema", {"type": "integer", "multipleOf": 9999991}),
    "multipleOf in Lark": ("grammar", 'start: %json {"type": "integer", "multipleOf": 9999991}\n'),
    "a million multiples": ("json_schema", {"type": "integer", "multipleOf": 999983}),
    "intersection": ("grammar", "start: T\nT: /(.|\\n)*a(.|\\n){18}/ & /(.|\\n)*b(.|\\n){19}/ & /(.|\\n)*c.{17}/\n"),
    "complement": ("grammar", "start: T\nT: ~/(.*a.{14}|.*b.{13})/ & /[a-z]{1,400}/\n"),
    "subtraction": ("grammar", "start: T\nT: /[a-z]*/ & ~/(.*)(foo|bar)(.*)/ & /.{3000,9000}/\n"),
    "subset construction": ("regex", r"(\w|\s)*a(\w|\s){20}z"),
    "repeats of repeats": ("regex", "((a{0,100}){0,100}){0,100}"),
    "a long repeat": ("regex", "[a-z]{100000}"),
    "letters of Unicode": ("regex", r"\p{L}{1,3000}"),
    "backtracking": ("regex", "(x+x+)+y"),
    "pattern": ("json_schema", {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}),
    "patterns together": ("json_schema", {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}$"} for n in range(9)]}),
    "patterns of names": ("json_schema", {"patternProperties": {f".*{c}.{{9}}$": {} for c in LETTERS}}),
    "enum": ("json_schema", {"enum": [f"{n:015}" for n in range(3400)]}),
    "choices": ("choice", [f"c{n}" for n in range(8000)]),
    "long choices": ("choice", [(c + d) * 45 for c in LETTERS for d in LETTERS]),
    "2,400 properties": ("json_schema", {"properties": {f"p{n}": {"type": "string"} for n in range(2400)}}),
    "formats": ("json_schema", {"properties": {f"p{n}": {"format": "uri", "maxLength": n} for n in range(600)}}),
    "anyOf in anyOf": ("json_schema", nested("anyOf", 9)),
    "allOf in allOf": ("json_schema", nested("allOf", 9)),
    "oneOf in oneOf": ("json_schema", nested("oneOf", 9)),
    "product of alternatives": ("json_schema", {"allOf": [any_of(f"p{n}") for n in range(8)]}),
    "doubling allOf": ("json_schema", doubling("allOf")),
    "doubling anyOf": ("json_schema", doubling("anyOf")),
    "itself": ("json_schema", {"$ref": "#"}),
    "maxItems": ("json_schema", {"type": "array", "maxItems": 10**9}),
    "minItems": ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    "minLength": ("json_schema", {"type": "string", "minLength": 10**9}),
    "ambiguous": ("grammar", 'start: e+\ne: (a|b|c)+\na: "x"+\nb: "x"+\nc: "x"*\n'),
    "many rules at a time": ("grammar", alternatives(300, "/[a-z]/ /[a-z ]/ /[a-z]/")),
    "repeated rules": ("grammar", 'start: a{5000}\na: b{5000}\nb: "x"{5000}\n'),
}  # fmt: skip
"""Constraints for models that return logits."""

VALIDATED: dict[str, tuple[Any, str]] = {
    "uniqueItems": ({"uniqueItems": True}, "[" + ",".join(f'{{"a":{n}}}' for n in range(4000)) + "]"),
    "enum": ({"items": {"enum": [[n] for n in range(9000)]}}, "[" + ",".join(["[8999]"] * 1000) + "]"),
    "doubling allOf": (doubling("allOf"), "{}"),
    "doubling anyOf": (doubling("anyOf"), "[]"),
    "doubling in default": (doubling("allOf", "default", **DRAFT_7), "{}"),
    "unevaluated": ({**doubling("allOf"), "unevaluatedProperties": False}, '{"a": 1}'),
}  # fmt: skip
"""Schemas with texts that jsonschema takes very long to validate."""

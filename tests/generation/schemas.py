"""JSON schemas of the kind that JSONSchemaBench collects, and schemas that are costly to compile."""

from __future__ import annotations

import random
from typing import Any

WORDS = "name age city kind size tags state owner level unit note code flag items total".split()
FORMATS = ("date", "date-time", "uuid", "email", "ipv4")
PATTERNS = ("^[a-z]{2,5}$", "^[A-Z]{3}-[0-9]{2}$", "^(red|green)$", "^#[0-9a-f]{6}$")


def leaf(chance: random.Random) -> dict[str, Any]:
    low = chance.randint(-5, 50)
    made: list[dict[str, Any]] = [
        {"type": "string", "maxLength": chance.randint(1, 9)},
        {"type": "string", "minLength": 1, "maxLength": 6},
        {"type": "string", "pattern": chance.choice(PATTERNS)},
        {"type": "string", "format": chance.choice(FORMATS)},
        {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 300)},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        {"type": "boolean"},
        {"type": ["boolean", "null"]},
        {"enum": chance.sample(WORDS, 3)},
        {"enum": [1, "one", None, 2.5]},
        {"const": {"fixed": [1, 2]}},
    ]
    return chance.choice(made)


def schema(chance: random.Random, depth: int) -> dict[str, Any]:
    kind = chance.choice(("leaf", "object", "array", "tuple", "anyOf", "ref", "allOf")) if depth else "leaf"
    if kind == "leaf":
        return leaf(chance)
    if kind == "array":
        least = chance.randint(0, 2)
        return {"type": "array", "items": schema(chance, depth - 1), "minItems": least, "maxItems": least + 2}
    if kind == "tuple":
        members = [schema(chance, depth - 1) for _ in range(2)]
        return {"type": "array", "prefixItems": members, "items": False, "minItems": 2}
    if kind == "anyOf":
        return {"anyOf": [schema(chance, depth - 1), schema(chance, depth - 1)]}
    if kind == "ref":
        return {"$ref": f"#/$defs/{chance.choice(('a', 'b'))}"}
    if kind == "allOf":
        return {"allOf": [{"type": "object", "properties": {"x": leaf(chance)}}, {"required": ["x"]}],
                "additionalProperties": False, "type": "object", "properties": {"x": True}}  # fmt: skip
    return item_object(chance, depth)


def item_object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(WORDS, chance.randint(1, 4))
    properties = {name: schema(chance, depth - 1) for name in names}
    required = [name for name in names if chance.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def ordinary(count: int) -> list[dict[str, Any]]:
    """``count`` different schemas of objects, the same ones each time."""
    made = []
    for number in range(count):
        chance = random.Random(number)
        definitions = {"a": leaf(chance), "b": item_object(chance, 1)}
        made.append({**item_object(chance, 3), "$defs": definitions})
    return made


def nested(levels: int, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = dict(more)
    for _ in range(levels):
        made = {"type": "object", "properties": {"a": made}, "required": ["a"]}
    return made


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def many(count: int, member: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": member for number in range(count)}}


HOSTILE: dict[str, dict[str, Any]] = {
    **{f"nested {levels}": nested(levels, type="string") for levels in (20, 31, 200, 5000)},
    **{f"enum {count}": {"enum": [f"value {number}" for number in range(count)]} for count in (1000, 5000, 50_000)},
    **{f"alternatives {count}": {"anyOf": [{"const": n} for n in range(count)]} for count in (1000, 5000)},
    "nested alternatives": nested(8, anyOf=[nested(3, anyOf=[{"type": "string"}, {"type": "null"}])] * 40),
    **{f"pattern {index}": text(pattern) for index, pattern in enumerate((
        "^(a+)+$", "^(a|a)*b$", "^((a{1,50}){1,50}){1,50}$", "^(a{1000}){1000}$", "^.{1000000}$", "^(.*a.*b.*){30}$",
        "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$", "^[\\s\\S]{0,60000}z$", "(?=a)b", "(a)\\1", "(((((((((((", "[z-a]",
        "^(" + "|".join(f"w{number}x*" for number in range(3000)) + ")+$", "\\p{L}{500}\\w{500}",
    ))},
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "recursive": {"type": "array", "items": {"$ref": "#"}},
    "recursive both": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, many(20, {"$ref": "#"})]},
    "doubling": {"$defs": {**{f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2}
                              for n in range(30)}, "d30": {"type": "null"}}, "$ref": "#/$defs/d0"},
    "all of": {"allOf": [many(30, {"type": "integer", "minimum": n}) for n in range(30)]},
    "properties 3000": many(3000, {"type": "string"}),
    "required 500": {**many(500, {"type": "string", "minLength": 100}), "required": [f"p{n}" for n in range(500)]},
    "least items": {"type": "array", "items": {"type": "null"}, "minItems": 10**9},
    "least length": {"type": "string", "minLength": 10**9},
    "giant bounds": {"type": "integer", "minimum": -(2**62), "maximum": 2**62},
    "giant multiple": {"type": "integer", "multipleOf": 10**18 + 9},
    "tiny multiple": {"type": "number", "multipleOf": 1e-300},
    "empty range": {"type": "integer", "minimum": 5, "maximum": 4},
    "never": {"not": {}},
    "unknown": {"type": "object", "unevaluatedProperties": {"if": {}}, "dependentRequired": {"a": ["b"]}},
    "pattern properties": {"type": "object", "patternProperties": {f"^(a|b){{{n}}}": {} for n in range(100)}},
}  # fmt: skip
"""Costly schemas by the cause of their cost."""

"""Tools of a chat: the functions that a model may call, in one order of keys.

Templates render tools with all of their keys, so that the order of keys is part of the prompt. Python clients send
OpenAI's order, clients in Go and Rust sort keys. The prompt has one order for all of them, that of OpenAI's reference:

    {"type", "function": {"name", "description", "parameters"}}

The keywords of a JSON schema in ``parameters`` have an order too, KEYWORDS. Names of properties stay as they are sent,
since their order means something. Unknown keys follow as they are sent.

Source: https://platform.openai.com/docs/guides/function-calling
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from hf_transformer.protocol.json_text import JsonLimits, check_depth
from hf_transformer.types.fields import NO_EFFECT, Form, OpenBody, about
from hf_transformer.types.request import Json

CACHE_CONTROL = "cache_control"
"""Caching hint from clients of Anthropic's models in messages, parts and tools. It has no effect."""
FunctionName: TypeAlias = Annotated[Annotated[str, Meta(min_length=1)], about(expected="a string that is not empty")]


class Function(OpenBody):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[Json, about("Purpose of the function.")] = None
    parameters: Annotated[dict[str, Json] | None, about("JSON schema of the arguments.")] = None
    strict: Annotated[bool | None, about("Whether the arguments are held to the schema.")] = None


class Tool(OpenBody):
    """A tool of a chat. Templates render its unknown fields, too."""

    type: Literal["function"]
    function: Function
    cache_control: Annotated[Json, NO_EFFECT] = None


Tools: TypeAlias = Annotated[
    Annotated[list[Json], Meta(max_length=128)] | None,
    about("Functions that the model may call.", shown=(Annotated[list[Tool], Meta(max_length=128)],), limits="tools"),
]
"""OpenAI's maximum is 128."""
TOOL_FORM: Final = Form(Tool)
TOOL, FUNCTION = ("type", "function"), ("name", "description", "parameters")
CALL = ("id", "type", "function")
"""Keys of a tool call in a message."""
KEYWORDS = ("type", "enum", "description", "items", "properties", "required", "additionalProperties")
"""Keywords of a JSON schema, in the order of OpenAI's examples and of transformers' get_json_schema."""
SCHEMA_KEYWORDS = frozenset(
    "items additionalProperties unevaluatedProperties unevaluatedItems additionalItems contains propertyNames "
    "not if then else anyOf allOf oneOf prefixItems".split()
)
"""Keywords whose value is a schema or a list of schemas."""
NAMED_SCHEMAS = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
"""Keywords whose value has schemas by name."""


def without_nulls(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Returns the fields that are not null. Clients send null for unset fields."""
    return {name: value for name, value in fields.items() if value is not None}


def in_order(fields: Mapping[str, Json], first: Sequence[str]) -> dict[str, Json]:
    """Returns the fields, those of ``first`` in its order, then the others as they are."""
    return {name: fields[name] for name in dict.fromkeys((*first, *fields)) if name in fields}


def read_tools(items: Sequence[Json] | None, limits: JsonLimits) -> list[dict[str, Json]]:
    """Returns the functions that the model may call. Raises InvalidInput or TooLarge.

    Templates render complete tools, so the result excludes ``cache_control``, and nulls outside schemas.
    """
    check_depth("tools", items, limits)
    tools = []
    for index, tool in enumerate(items or ()):
        TOOL_FORM.read(tool, path=("tools", index))
        rest = {name: member for name, member in without_nulls(tool).items() if name != CACHE_CONTROL}
        tools.append(rest | {"function": without_nulls(tool["function"])})
    return tools


def for_template(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Returns a valid tool for a template: without ``strict``, its keys in order."""
    function = in_order({name: member for name, member in tool["function"].items() if name != "strict"}, FUNCTION)
    if "parameters" in function:
        function["parameters"] = order_schema(function["parameters"])
    return in_order({**tool, "function": function}, TOOL)


def order_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Returns a JSON schema with its keywords in order, in nested schemas too."""
    ordered: dict[str, Json] = {}
    # A stack in place of recursion, since --max_json_depth allows deeper schemas than Python's stack.
    unfinished: list[tuple[Mapping[str, Json], dict[str, Json]]] = [(schema, ordered)]

    def copy(value: Json) -> Json:
        if not isinstance(value, dict):
            return value
        copied: dict[str, Json] = {}
        unfinished.append((value, copied))
        return copied

    while unfinished:
        source, target = unfinished.pop()
        for name, value in in_order(source, KEYWORDS).items():
            if name in NAMED_SCHEMAS and isinstance(value, dict):
                value = {key: copy(member) for key, member in value.items()}
            elif name in SCHEMA_KEYWORDS:
                value = [copy(member) for member in value] if isinstance(value, list) else copy(value)
            target[name] = value
    return ordered

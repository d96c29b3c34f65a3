"""The form of a chat's answer: ``response_format``, ``tools`` with ``strict``, and ``tool_choice``.

A request has at most one constraint. Tools that the model may call go together with a JSON format: then a constraint of
the kind ``tool`` holds calls to their schemas, and the message without a call to the format. Where ``tool_choice``
forces a call, the format has no text to hold.

Sources: https://platform.openai.com/docs/guides/structured-outputs and .../function-calling
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from hf_transformer.api.errors import expect
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.generation.constraint import (
    ANY_OBJECT,
    Constraint,
    arguments_schema,
    calls_schema,
    read_schema,
)
from hf_transformer.generation.sampling import structured_fields
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.request import Json

FORMAT, CHOICE = "response_format", "tool_choice"
FORMATS = ("text", "json_object", "json_schema")
MODES = ("none", "auto", "required")
ANY_TOOL = ""
"""Value of ``MessageForm.forced`` if the model chooses one or more tools."""
Named = tuple[Constraint, Path | str]
"""A constraint, and the path or name of the field that sets it."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form of a message.

    Attributes:
        constraint: None for free text.
        may_call: whether the message may contain calls of tools.
        forced: the tool that the message calls, with the arguments as its whole text; ANY_TOOL for a list of calls;
            None if the model may write text instead.
    """

    constraint: Named | None
    may_call: bool
    forced: str | None


def read_form(
    parameters: Parameters, tools: Sequence[Mapping[str, Json]], max_bytes: int, *, single: bool
) -> MessageForm:
    """Reads the fields that determine the form of a message.

    Args:
        tools: the request's valid tools.
        max_bytes: maximum size of a schema.
        single: whether a message has at most one call.

    Raises:
        InvalidInput: a field is invalid, or two fields constrain the message.
        TooLarge: a schema exceeds a limit.
    """
    mode, name = _read_choice(parameters.get(CHOICE), tools)
    answer = _read_format(parameters.get(FORMAT), max_bytes)
    if mode == "none":
        return MessageForm(answer, False, None)
    if mode == "required":  # the format is that of the text, and a message of calls alone has none
        for field in structured_fields(parameters):
            raise InvalidInput(field, "one constraint in a request", f"another one in {CHOICE}")
        schemas = _schemas(tools, max_bytes)
        if name is not None:
            return MessageForm((Constraint.of_text("json_schema", schemas[name]), CHOICE), True, name)
        forced = Constraint.of("json_schema", calls_schema(schemas, single=single)), CHOICE
        return MessageForm(forced, True, ANY_TOOL)
    strict = [_is_strict(tool, index) for index, tool in enumerate(tools)]
    for field in structured_fields(parameters):
        hint = f"set a schema in {FORMAT}, or leave out the tools"
        raise InvalidInput(field, "no constraint on a message that may call tools", hint=hint)
    if answer is None and not any(strict):
        return MessageForm(None, True, None)
    schemas = _schemas(tools, max_bytes)
    bound = {
        name: orjson.Fragment(text) if holds else ANY_OBJECT
        for (name, text), holds in zip(schemas.items(), strict, strict=True)
    }
    source: Path | str = FORMAT if answer is not None else ("tools", strict.index(True), "function", "strict")
    return MessageForm((Constraint.of("tool", [bound, answer and answer[0].fragment]), source), True, None)


def _read_choice(value: Json, tools: Sequence[Mapping[str, Json]]) -> tuple[str, str | None]:
    """Returns the mode, one of MODES, and the name of a required tool. Raises InvalidInput."""
    if value is None:
        return ("auto" if tools else "none"), None
    if isinstance(value, dict):
        function = value.get("function")
        if value.get("type") != "function" or not isinstance(function, dict):
            raise InvalidInput(CHOICE, '{"type": "function", "function": {"name": ...}}', describe(value))
        mode, name = "required", function.get("name")
        known = [tool["function"]["name"] for tool in tools]
        if name not in known:
            expected = f"one of {', '.join(known)[:200]}" if known else "no choice without tools"
            raise InvalidInput((CHOICE, "function", "name"), expected, describe(name, quote=True))
        return mode, str(name)
    if value not in MODES:
        expected = f'{", ".join(MODES)}, or {{"type": "function", "function": {{"name": ...}}}}'
        raise InvalidInput(CHOICE, expected, describe(value, quote=True))
    if value != "none" and not tools:
        raise InvalidInput(CHOICE, "no choice without tools", repr(value), "add tools")
    return str(value), None


def _read_format(value: Json, max_bytes: int) -> Named | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in FORMATS:
        got = describe(value if kind is None else kind, quote=True)
        raise InvalidInput(FORMAT, f"an object with a type: {', '.join(FORMATS)}", got)
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint.of("json_object", dict(ANY_OBJECT)), FORMAT
    wrapper = expect(value.get("json_schema"), dict, (FORMAT, "json_schema"), "an object with a schema")
    path = (FORMAT, "json_schema")
    expect(wrapper.get("name"), str | None, (*path, "name"), "a string")
    expect(wrapper.get("strict"), bool | None, (*path, "strict"), "true or false")
    return Constraint.of_text("json_schema", read_schema(wrapper.get("schema"), (*path, "schema"), max_bytes)), FORMAT


def _is_strict(tool: Mapping[str, Json], index: int) -> bool:
    return bool(
        expect(tool["function"].get("strict"), bool | None, ("tools", index, "function", "strict"), "true or false")
    )


def _schemas(tools: Sequence[Mapping[str, Json]], max_bytes: int) -> dict[str, str]:
    """Returns the JSON texts of the arguments' schemas by the tool's name. Raises InvalidInput or TooLarge."""
    schemas: dict[str, str] = {}
    for index, tool in enumerate(tools):
        function = tool["function"]
        schema = arguments_schema(function.get("parameters"))
        schemas[function["name"]] = read_schema(schema, ("tools", index, "function", "parameters"), max_bytes)
    if len(schemas) < len(tools):
        raise InvalidInput("tools", "tools with different names", "the same name twice")
    return schemas

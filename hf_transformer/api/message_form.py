"""The form of a chat's answer: ``response_format``, ``tools`` with ``strict``, and ``tool_choice``.

A request has at most one constraint. Tools that the model may call go together with a JSON format: then a constraint of
the kind ``tool`` holds calls to their schemas, and the message without a call to the format. Where ``tool_choice``
forces a call, the format has no text to hold.

Sources: https://platform.openai.com/docs/guides/structured-outputs and .../function-calling
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import orjson

from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.generation.call_forms import HERMES, CallForm
from hf_transformer.generation.constraint import ANY_OBJECT, Constraint, arguments_schema, calls_schema, read_schema
from hf_transformer.generation.parameters import SamplingFields
from hf_transformer.generation.sampling import Named
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import NO_EFFECT, OpenBody, about
from hf_transformer.types.request import Json

FORMAT, CHOICE = "response_format", "tool_choice"


class TextFormat(OpenBody, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(OpenBody, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(OpenBody, kw_only=True):
    """A named JSON schema."""

    name: str | None = None
    description: Annotated[Json, NO_EFFECT] = None
    schema: Annotated[dict[str, Json], about("The JSON schema.", expected="a JSON schema, an object")]
    strict: Annotated[bool | None, about("Without effect: texts are always held to the schema.")] = None


class JsonSchemaFormat(OpenBody, tag_field="type", tag="json_schema"):
    """JSON of a schema."""

    json_schema: Annotated[JsonSchema, about(expected="an object with a schema")]


ResponseFormat: TypeAlias = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | None, about("Form of a message that calls no tool.")
]


class FunctionNamed(OpenBody):
    """The name of a function."""

    name: str


class NamedTool(OpenBody):
    """The tool that the message calls."""

    type: Literal["function"]
    function: FunctionNamed


Mode: TypeAlias = Literal["none", "auto", "required"]
ToolChoice: TypeAlias = Annotated[
    Mode | NamedTool | None,
    about(
        "Whether the model may or must call tools; auto if the request has tools.",
        expected='none, auto, required, or {"type": "function", "function": {"name": ...}}',
    ),
]
ANY_TOOL = ""
"""Value of ``MessageForm.forced`` if the model chooses one or more tools."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form of a message.

    Attributes:
        constraint: None for free text.
        may_call: whether the message may contain calls of tools.
        forced: the tool that the message calls, with the arguments as its whole text; ANY_TOOL for a list of calls;
            None if the model may write text instead.
    """

    constraint: Named[Constraint] | None
    may_call: bool
    forced: str | None


def read_form(
    body: SamplingFields,
    response_format: ResponseFormat,
    choice: ToolChoice,
    tools: Sequence[Mapping[str, Json]],
    max_bytes: int,
    *,
    single: bool,
    calls: CallForm | None = HERMES,
    shown_tokens: Iterable[int] = (),
    ignored: list[str] | None = None,
) -> MessageForm:
    """Converts the fields that determine the form of a message.

    Args:
        body: the request's other fields, which may constrain the text, too.
        tools: the request's valid tools.
        max_bytes: maximum size of a schema.
        single: whether a message has at most one call.
        calls: the model's form of calls; None if it can't be held to a schema, so that ``strict`` has no effect.
        shown_tokens: special tokens in the delimiters of calls.
        ignored: gets the name of a field without effect.

    Raises:
        InvalidInput: a field is invalid, or two fields constrain the message.
        TooLarge: a schema exceeds a limit.
    """
    mode, name = read_choice(choice, tools)
    answer = _read_format(response_format, max_bytes)
    if mode == "none":
        return MessageForm(answer, False, None)
    if mode == "required":  # the format is that of the text, and a message of calls alone has none
        for field in body.constraints():
            raise InvalidInput(field, "one constraint in a request", f"another one in {CHOICE}")
        schemas = _schemas(tools, max_bytes)
        if name is not None:
            return MessageForm((Constraint.of_text("json_schema", schemas[name]), CHOICE), True, name)
        forced = Constraint.of("json_schema", calls_schema(schemas, single=single)), CHOICE
        return MessageForm(forced, True, ANY_TOOL)
    strict = [bool(tool["function"].get("strict")) for tool in tools]
    if calls is None and any(strict):
        note_ignored("tools.strict", [] if ignored is None else ignored)
        strict = [False] * len(tools)
    for field in body.constraints():
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
    held = Constraint.of_tools(bound, answer and answer[0].fragment, calls or HERMES, shown_tokens)
    return MessageForm((held, source), True, None)


def read_choice(choice: ToolChoice, tools: Sequence[Mapping[str, Json]]) -> tuple[Mode, str | None]:
    """Returns the mode of ``tool_choice``, and the name of a required tool. Raises InvalidInput."""
    if choice is None:
        return ("auto" if tools else "none"), None
    if isinstance(choice, NamedTool):
        name, known = choice.function.name, [tool["function"]["name"] for tool in tools]
        if name not in known:
            expected = f"one of {', '.join(known)[:200]}" if known else "no choice without tools"
            raise InvalidInput((CHOICE, "function", "name"), expected, describe(name, quote=True))
        return "required", name
    if choice != "none" and not tools:
        raise InvalidInput(CHOICE, "no choice without tools", repr(choice), "add tools")
    return choice, None


def _read_format(value: ResponseFormat, max_bytes: int) -> Named[Constraint] | None:
    if value is None or isinstance(value, TextFormat):
        return None
    if isinstance(value, JsonObjectFormat):
        return Constraint.of("json_object", dict(ANY_OBJECT)), FORMAT
    schema = read_schema(value.json_schema.schema, (FORMAT, "json_schema", "schema"), max_bytes)
    return Constraint.of_text("json_schema", schema), FORMAT


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

"""The messages and tools of a chat, as a chat template takes them.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.chat import read_content
from hf_transformer.protocol.json_text import SMALL, JsonLimits, check_size
from hf_transformer.tasks.base import describe
from hf_transformer.types import Json

ROLES: Mapping[str, str] = {
    "system": "system",
    # The newer name of the same; templates know the older one.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""What a message's role is called in a template."""
TEXTS = ("name", "tool_call_id", "reasoning_content", "reasoning")
"""Fields that are strings; the last two are what a model thought, as vLLM and others hand it out."""
KNOWN = ("role", "content", "tool_calls", "refusal", "annotations", *TEXTS)
MAX_TOOLS = 128
"""As many as OpenAI takes."""


@dataclass(frozen=True, slots=True)
class _Called:
    """The function of a tool call whose arguments are still as they were sent; ``where`` is what errors call them."""

    where: str
    function: dict[str, Json]


def read_messages(given: Json, limits: JsonLimits) -> list[dict[str, Json]]:
    """The messages: contents are strings, and the arguments of tool calls objects, as templates want them.

    ``limits`` are those of a request's JSON: arguments are JSON in a string of it, where nobody has looked yet.

    Raises:
        InvalidInput: one is not what it has to be; the message says where, and never what was written.
        TooLarge: the arguments of all calls together hold more than the limits allow.
    """
    if not isinstance(given, list) or not given:
        found = "nothing" if given is None else "an empty list" if given == [] else describe(given)
        raise InvalidInput(f"messages: expected a list of messages, got {found}")
    called: list[_Called] = []
    messages = [_message(one, f"messages[{index}]", called) for index, one in enumerate(given)]
    _read_arguments(called, limits)
    return messages


def _message(given: Json, where: str, called: list[_Called]) -> dict[str, Json]:
    if not isinstance(given, dict):
        raise InvalidInput(f"{where}: expected an object, got {describe(given)}")
    message = {name: value for name, value in given.items() if value is not None}
    for name in message:
        if name not in KNOWN:
            raise InvalidInput(f"{where}.{name[:40]}: not understood here, expected some of {', '.join(KNOWN)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        shown = repr(role[:40]) if isinstance(role, str) else "nothing" if role is None else describe(role)
        raise InvalidInput(f"{where}.role: expected one of {', '.join(ROLES)}, got {shown}")
    found: dict[str, Json] = {"role": ROLES[role]}
    calls = message.get("tool_calls", [])
    if calls and role != "assistant":
        raise InvalidInput(f"{where}.tool_calls: only a message of the assistant has them")
    if message.get("annotations", []) != []:
        got = describe(message["annotations"])
        raise InvalidInput(f"{where}.annotations: they can't be told to the model, expected an empty list, got {got}")
    content = _said(message, where)
    if content is None and not calls:
        raise InvalidInput(f"{where}.content: expected a string or a list of parts, got nothing")
    found["content"] = read_content("" if content is None else content, f"{where}.content")
    for name in TEXTS:
        if name in message:
            if not isinstance(message[name], str):
                raise InvalidInput(f"{where}.{name}: expected a string, got {describe(message[name])}")
            found[name] = message[name]
    if read := _tool_calls(calls, f"{where}.tool_calls", called):  # templates may look for the name alone
        found["tool_calls"] = read
    return found


def _said(message: Mapping[str, Json], where: str) -> Json:
    """The content; a refusal is what the assistant has said in place of one."""
    content, refusal = message.get("content"), message.get("refusal")
    if refusal is None:
        return content
    if not isinstance(refusal, str):
        raise InvalidInput(f"{where}.refusal: expected a string, got {describe(refusal)}")
    if message["role"] != "assistant":
        raise InvalidInput(f"{where}.refusal: only a message of the assistant has one")
    if content in (None, "", []):
        return refusal
    if refusal:
        raise InvalidInput(f"{where}.refusal: beside a content, expected one of the two")
    return content


def _tool_calls(given: Json, where: str, called: list[_Called]) -> list[Json]:
    if not isinstance(given, list):
        raise InvalidInput(f"{where}: expected a list, got {describe(given)}")
    calls = []
    for index, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        here = f"{where}[{index}].function"
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidInput(f"{here}: expected an object with the string name, got {describe(function)}")
        kept = {"name": function["name"], "arguments": function.get("arguments")}
        called.append(_Called(f"{here}.arguments", kept))
        calls.append({**call, "function": kept})
    return calls


def _read_arguments(called: Sequence[_Called], limits: JsonLimits) -> None:
    """Puts objects in the place of JSON texts. What all of these hold is counted before the first one is parsed."""
    texts = [one.function["arguments"] for one in called if isinstance(one.function["arguments"], str)]
    if sum(map(len, texts)) > SMALL:
        # They are parsed in this order: whatever an unclosed quote would hide comes after an error.
        check_size(" ".join(texts).encode(), limits)
    for one in called:
        one.function["arguments"] = _arguments(one.function["arguments"], one.where)


def _arguments(given: Json, where: str) -> dict[str, Json]:
    """OpenAI's are JSON as text; templates write an object as JSON themselves."""
    if isinstance(given, str):
        try:
            given = orjson.loads(given or "{}")
        except orjson.JSONDecodeError:
            raise InvalidInput(f"{where}: expected an object as JSON text, got a text that is not JSON") from None
    if not isinstance(given, dict):
        raise InvalidInput(f"{where}: expected an object as JSON text, got {describe(given)}")
    return given


def read_tools(given: Json) -> list[dict[str, Json]]:
    """The tools that the model may call: functions. Raises InvalidInput or TooLarge."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise InvalidInput(f"tools: expected a list, got {describe(given)}")
    if len(given) > MAX_TOOLS:
        raise TooLarge(f"tools: {len(given)} in a request, at most {MAX_TOOLS} are taken")
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise InvalidInput(f'{where}: expected {{"type": "function", "function": ...}}, got {describe(tool)}')
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidInput(f"{where}.function: expected an object with a name, got {describe(function)}")
        if function.get("strict"):
            raise InvalidInput(f"{where}.function.strict: the model can't be held to a schema, expected false")
        if not isinstance(function.get("parameters"), dict | None):
            raise InvalidInput(
                f"{where}.function.parameters: expected an object, got {describe(function['parameters'])}"
            )
    return given


def read_tool_choice(given: Json, tools: list[dict[str, Json]]) -> bool:
    """Whether the model may call one of the tools. Raises InvalidInput for a choice that it can't be held to."""
    if given is None:
        return bool(tools)
    if given == "none":
        return False
    if given != "auto":
        shown = repr(given[:40]) if isinstance(given, str) else describe(given)
        raise InvalidInput(f"tool_choice: the model can't be made to call a tool, expected none or auto, got {shown}")
    if not tools:
        raise InvalidInput("tool_choice: there are no tools to choose from, expected them in tools")
    return True

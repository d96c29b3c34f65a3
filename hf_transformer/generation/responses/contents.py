"""Values of regions: parsing of their content, the template's transform, and casting by the schemas of tools.

Each function gives the value that transformers' executor gives, and raises ContentError where that one raises
ValueError or KeyError.

Source: transformers 5.24, utils/chat_parsing/content_parsers.py and response_parser.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import regex

from hf_transformer.generation.responses.delimiters import PatternTimeout
from hf_transformer.types.request import Json

ToolTypes: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""JSON Schema types of each argument, by the name of the tool and of the argument."""
CASTABLE = frozenset(("integer", "number", "boolean", "null", "object", "array"))
"""Types to which a text is cast."""
MAX_UNIONS = 8
"""Maximum depth of anyOf and oneOf in a type."""
PARSE_SECONDS = 0.25
"""Time limit of the patterns of one region, which may be the whole answer."""


class ContentError(ValueError):
    """A region whose text does not have the form that the template describes."""


# Schemas of tools


def tool_types(tools: Sequence[Json]) -> ToolTypes:
    """Types of the arguments of a request's tools, in OpenAI's form; a tool without a valid form has none."""
    types: dict[str, dict[str, tuple[str, ...]]] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        named = properties if isinstance(properties, dict) else {}
        # A type that is repeated is tried once.
        types[name] = {key: tuple(dict.fromkeys(_types(schema))) for key, schema in named.items()}
    return types


def _types(schema: Json, depth: int = 0) -> list[str]:
    if not isinstance(schema, dict) or depth > MAX_UNIONS:
        return []
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    types = [name for name in names if isinstance(name, str)]
    for union in ("anyOf", "oneOf"):
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else []:
            types += _types(choice, depth + 1)
    if schema.get("nullable") and "null" not in types:
        types.append("null")
    return types


def is_castable(types: Sequence[str]) -> bool:
    """Whether a text may become another value."""
    return not CASTABLE.isdisjoint(types)


def cast(text: str, types: Sequence[str]) -> Json:
    """The first type's value that the text denotes; the text itself if there is none."""
    for name in types:
        try:
            if name == "integer":
                return _integer(text)
            if name == "number":
                number = float(text)
                if math.isfinite(number):
                    return int(number) if number.is_integer() and "." not in text else number
            elif name == "boolean" and text.strip().lower() in ("true", "1", "false", "0"):
                return text.strip().lower() in ("true", "1")
            elif name == "null" and text.strip() in ("null", "None"):
                return None
            elif name in ("object", "array"):
                value = json.loads(text)
                if isinstance(value, dict if name == "object" else list):
                    return value
        except (ValueError, OverflowError, RecursionError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def cast_arguments(arguments: Mapping[str, Json], types: Mapping[str, Sequence[str]]) -> dict[str, Json]:
    """Arguments whose texts have the types of the tool's schema."""
    result: dict[str, Json] = {}
    for key, value in arguments.items():
        wanted = types.get(key, ())
        if isinstance(value, str):
            value = cast(value, wanted)
        elif isinstance(value, list) and wanted and "array" not in wanted:
            value = [cast(item, wanted) if isinstance(item, str) else item for item in value]
        result[key] = value
    return result


def cast_calls(value: Json, tools: ToolTypes) -> Json:
    """A region's value whose calls have arguments of the types in the tools' schemas."""
    if isinstance(value, list):
        return [cast_calls(item, tools) for item in value]
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        return value
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict) or not tools.get(name):
        return value
    return {**value, "function": {**function, "arguments": cast_arguments(arguments, tools[name])}}


def json_text(value: Json) -> str:
    """JSON of a value, with characters outside ASCII as they are. Raises ContentError for NaN and infinity."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as exc:
        raise ContentError(str(exc)) from exc
    return text


# Contents


def parse_content(text: str, content: str, arguments: Mapping[str, Any]) -> Json:
    """Parses the text of a region by its content type. Raises ValueError."""
    return _PARSERS[content](text, arguments)


def _strip(text: str, arguments: Mapping[str, Any]) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _parse_int(text: str, arguments: Mapping[str, Any]) -> int:
    return int(_strip(text, arguments))


def _parse_float(text: str, arguments: Mapping[str, Any]) -> float:
    return float(_strip(text, arguments))


def _parse_bool(text: str, arguments: Mapping[str, Any]) -> bool:
    return _strip(text, arguments).lower() in ("true", "1")


def _parse_json(text: str, arguments: Mapping[str, Any]) -> Json:
    """JSON, with ``string_delims`` around texts and ``unquoted_keys``. With ``allow_non_json`` other text is a text."""
    pairs, bare_keys = arguments.get("string_delims", []), arguments.get("unquoted_keys", False)
    working = text
    if pairs or bare_keys:
        custom = "|".join(f"{regex.escape(begin)}(.*?){regex.escape(end)}" for begin, end in pairs)
        forms = ["(?:" + custom + ")"] if custom else []
        forms.append(r'"(?:\\.|[^"\\])*+"')
        if bare_keys:
            forms.append(r"(?<=[{,])(?P<before>\s*)(?P<key>\w+)(?P<after>\s*):")
        working = _substitute("|".join(forms), partial(_as_json, len(pairs)), text)
    try:
        return json.loads(working)
    except (ValueError, RecursionError):
        if arguments.get("allow_non_json"):
            return _strip(text, arguments)
        raise


def _as_json(pairs: int, match: Any) -> str:
    """JSON of a delimited text, a quoted string, or a bare key with its colon."""
    groups = match.groupdict()
    if groups.get("key") is not None:
        return f'{groups["before"]}"{groups["key"]}"{groups["after"]}:'
    texts = [match[index + 1] for index in range(pairs) if match[index + 1] is not None]
    return json.dumps(texts[0]) if texts else str(match[0])


def _substitute(pattern: str, replace: Callable[[Any], str], text: str) -> str:
    try:
        return str(regex.sub(pattern, replace, text, flags=regex.DOTALL, timeout=PARSE_SECONDS))
    except TimeoutError as exc:
        raise PatternTimeout(pattern) from exc


def _parse_tags(text: str, arguments: Mapping[str, Any]) -> Json:
    """Tags with a key and a value. ``merge_duplicates`` makes a list of the values of one key."""
    merges, parser = arguments.get("merge_duplicates", False), arguments.get("value_parser")
    values: dict[str, Json] = {}
    merged: set[str] = set()
    pattern = arguments["tag_pattern"]
    try:
        matches = list(regex.finditer(pattern, text, flags=regex.DOTALL, timeout=PARSE_SECONDS))
    except TimeoutError as exc:
        raise PatternTimeout(pattern) from exc
    for match in matches:
        groups = match.groupdict()
        key, raw = groups["key"], groups.get("value", "")
        value = json.loads(raw) if groups.get("json") else sub_value(raw, parser)
        if merges and key in merged:
            values[key].append(value)
        elif merges and key in values:
            values[key] = [values[key], value]
            merged.add(key)
        else:
            values[key] = value
    return values


def sub_value(text: str, parser: Json) -> Json:
    """A value within a region. ``parser`` is an object with the name and the arguments of a content type, or None."""
    return text if parser is None else parse_content(text, parser.get("name", "text"), parser.get("args", {}))


def _parse_lines(text: str, arguments: Mapping[str, Any]) -> Json:
    """Lines with a key and a value."""
    separator, parser = arguments.get("kv_sep", ":"), arguments.get("value_parser")
    values: dict[str, Json] = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, found, value = _strip(line, arguments).partition(separator)
        if found:
            values[_strip(key, arguments)] = sub_value(_strip(value, arguments), parser)
    return values


_PARSERS: Mapping[str, Callable[[str, Mapping[str, Any]], Json]] = {
    "text": _strip,
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "json": _parse_json,
    "xml-inline": _parse_tags,
    "kv-lines": _parse_lines,
}

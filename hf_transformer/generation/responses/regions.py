"""Values of whole regions: their content, the template's transform, and the types in the schemas of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_transformer.generation.responses.calls import CallReader, calls_of
from hf_transformer.generation.responses.contents import ContentError, ToolTypes, cast_calls, json_text, parse_content
from hf_transformer.generation.responses.template import TemplateField, placeholder
from hf_transformer.generation.responses.values import read_call_list
from hf_transformer.types.request import Json


def region_value(field: TemplateField, text: str, groups: Mapping[str, str], tools: ToolTypes | None) -> Json:
    """Value of a region with the text ``text``. Raises ContentError."""
    try:
        is_list = field.content == "python-call-list"
        value = read_call_list(text) if is_list else parse_content(text, field.content, field.arguments)
        if field.transform is not None:
            value = _transformed(field, value, groups)
    except ContentError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ContentError(f"{field.name}: {type(exc).__name__}") from exc
    value = cast_calls(value, tools) if tools else value
    if field.join is not None and not isinstance(value, str):
        raise ContentError(f"{field.name}: expected a text to join")
    return value


def _transformed(field: TemplateField, value: Json, groups: Mapping[str, str]) -> Json:
    if not field.transform_each:
        return _fill(field.transform, {**groups, "content": value})
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ContentError(f"{field.name}: expected a list of objects")
    return [_fill(field.transform, {**groups, **item}) for item in value]


def _fill(transform: Json, scope: Mapping[str, Json]) -> Json:
    """Replaces the placeholders of a transform."""
    if isinstance(transform, dict):
        return {key: _fill(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_fill(value, scope) for value in transform]
    path = placeholder(transform)
    if path is None:
        return transform
    value: Any = scope
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise ContentError(f"expected the member {key}")
        value = value[key]
    return value


class WholeReader(CallReader):
    """Reads calls at the end of their region, from its value. For templates whose form can't be read in parts."""

    def __init__(self, field: TemplateField, tools: ToolTypes | None, first: int, groups: Mapping[str, str]) -> None:
        super().__init__(tools, first)
        self._field, self._groups = field, groups
        self._parts: list[str] = []

    def outside(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def enter(self, form: int, match: Any) -> None:
        self._parts.append(match[0])

    def inside(self, text: str) -> None:
        self._parts.append(text)

    def leave(self, match: Any) -> None:
        self._parts.append(match[0])

    def finish(self, is_cut: bool) -> None:
        text = "".join(self._parts)
        try:
            calls = calls_of(region_value(self._field, text, self._groups, self.tools))
        except ContentError:
            calls = []
        if not calls or not all(self.is_tool(name) for name, _ in calls):
            self.has_failed = True
            return
        for name, arguments in calls:
            self.begin(name)
            self.write(json_text(arguments))
            self.end()

"""Statements of a document, one short line each, with references resolved and without words.

    POST /embed, body.inputs: type string
    POST /embed, body.inputs[]: type integer, minimum 0
    POST /embed, 200 application/json[][]: type number

Alternatives of a value are lines of the same place, so that ``anyOf``, ``oneOf``, a list of types and null compare by
their meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LIMITS = (
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("pattern", "format", "contentMediaType", "contentSchema", "propertyNames"),
)
METHODS = ("get", "post")


def facts_of(document: Mapping[str, Any]) -> set[str]:
    """All statements of a document."""
    return set(_facts(document))


def _facts(document: Mapping[str, Any]) -> Iterator[str]:
    for key in ("openapi", "servers", "security"):
        yield f"{key}: {_text(document.get(key))}"
    yield f"title: {sorted(document['info']['title'].split(', '))}"
    for tag in document["tags"]:
        yield f"tag {tag['name']}"
    for name, scheme in document["components"].get("securitySchemes", {}).items():
        yield f"security scheme {name}: {_text(scheme)}"
    known: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                place = f"{method.upper()} {path}"
                shared = item.get("parameters", [])
                yield from _operation(place, {**item[method], "shared": shared}, document, known)


def _operation(
    path: str, operation: Mapping[str, Any], document: Mapping[str, Any], known: dict[str, list[str]]
) -> Iterator[str]:
    """``known`` has the statements of responses and schemas that were read before, without their place."""
    yield f"{path}: {operation['operationId']}, {_text(operation['tags'])}, security {operation.get('security')}"
    for parameter in [*operation["shared"], *operation.get("parameters", [])]:
        found = _resolved(parameter, document)
        at = f"{path}, {found['in']} {found['name']}"
        yield f"{at}: required {found.get('required', False)}"
        yield from _schema(at, found["schema"], document, ())
    if body := operation.get("requestBody"):
        yield f"{path}, body: required {body.get('required', False)}"
        yield from _contents(f"{path}, body", body["content"], document, known)
    for status, response in operation["responses"].items():
        at = f"{path}, {status}"
        yield at
        reference = response.get("$ref")
        if reference is None:
            yield from _response(at, response, document, known)
            continue
        if reference not in known:
            known[reference] = [*_response("", _resolved(response, document), document, known)]
        yield from (f"{at}{fact}" for fact in known[reference])


def _response(
    path: str, response: Mapping[str, Any], document: Mapping[str, Any], known: dict[str, list[str]]
) -> Iterator[str]:
    yield from (f"{path}: header {name}" for name in response.get("headers", {}))
    yield from _contents(path, response.get("content", {}), document, known)


def _contents(
    path: str, contents: Mapping[str, Any], document: Mapping[str, Any], known: dict[str, list[str]]
) -> Iterator[str]:
    for kind, content in contents.items():
        yield f"{path}: content {kind}"
        at = path if kind == "application/json" else f"{path} {kind}"
        yield from (f"{at}: example {_text(one['value'])}" for one in content.get("examples", {}).values())
        schema = content.get("schema", {})
        if set(schema) != {"$ref"}:
            yield from _schema(at, schema, document, ())
            continue
        reference = schema["$ref"]
        if reference not in known:
            known[reference] = [*dict.fromkeys(_schema("", schema, document, ()))]
        yield from (f"{at}{fact}" for fact in known[reference])


def _schema(path: str, schema: Any, document: Mapping[str, Any], inside: tuple[str, ...]) -> Iterator[str]:
    if isinstance(schema, bool):
        yield f"{path}: {'any value' if schema else 'refused'}"
        return
    while (reference := schema.get("$ref")) is not None:
        if reference in inside:
            return
        inside = (*inside, reference)
        schema = {**_resolved({"$ref": reference}, document), **{k: v for k, v in schema.items() if k != "$ref"}}
    rest = {name: schema[name] for name in LIMITS if name in schema}
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if set(option) == {"required"}:
            yield f"{path}: one of the forms has {_text(option['required'])}"
        else:
            yield from _schema(path, {**rest, **option} if "$ref" not in option else option, document, inside)
    if "default" in schema and schema["default"] is not None:
        yield f"{path}: default {_text(schema['default'])}"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        yield from (f"{path}: value {_text(value)}" for value in values)
        return
    kinds = schema.get("type", [])
    limits = {name: schema[name] for name in LIMITS if name in schema}
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "boolean":
            yield from (f"{path}: value true", f"{path}: value false")
            continue
        if kind == "null":
            yield f"{path}: value null"
            continue
        said = "".join(f", {name} {_text(value)}" for name, value in limits.items() if _about(name, kind))
        yield f"{path}: type {kind}{said}"
    for name, part in schema.get("properties", {}).items():
        yield f"{path}.{name}: {'required' if name in schema.get('required', ()) else 'optional'}"
        yield from _schema(f"{path}.{name}", part, document, inside)
    for name in set(schema.get("required", ())) - schema.get("properties", {}).keys():
        yield f"{path}.{name}: required"
    if (more := schema.get("additionalProperties")) is False:
        yield f"{path}: no other properties"
    elif isinstance(more, dict):
        yield from _schema(f"{path}.*", more, document, inside)
    if "items" in schema:
        yield from _schema(f"{path}[]", schema["items"], document, inside)
    if isinstance(schema.get("contentSchema"), dict):
        yield from _schema(f"{path} as JSON", schema["contentSchema"], document, inside)


def _about(limit: str, kind: str) -> bool:
    """Whether a limit is one of a type."""
    if limit == "contentSchema":
        return False
    if "Items" in limit:
        return kind == "array"
    if "ropert" in limit:
        return kind == "object"
    if limit in ("minimum", "maximum"):
        return kind in ("integer", "number")
    return kind == "string"


def _resolved(value: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in value:
        return value
    found: Any = document
    for name in value["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)

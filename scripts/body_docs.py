"""Tables of routes and of bodies' fields for the docs, from the table of operations and the declared types."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_transformer.api import chat_completions, generate, v1, v2
from hf_transformer.api.anthropic.bodies import COUNT_FORM, MESSAGES_FORM
from hf_transformer.api.document import dialects
from hf_transformer.api.document.operation import PREFIX
from hf_transformer.api.document.table import OPERATIONS
from hf_transformer.api.openai import completions, embeddings, moderations, rerank, responses
from hf_transformer.api.table import ROUTES
from hf_transformer.generation.parameters import TextGenerationParameters
from hf_transformer.types.fields import Form, OpenBody, fields_of, json_schemas

FIELDS = """\
# Fields

<!-- Written by scripts/config_docs from the types of bodies in hf_transformer/api. -->

The fields of all JSON bodies but V1's and V2's instances and tensors. [Parameters](parameters.md)
are those of V1, V2 and generate. A field that is null counts as absent. A wrong type or value is a
400 that names the field; a number, a list or a text over its maximum is a 413 where the maximum
protects the service. An unknown field is a 400, unless a section says otherwise; the header
X-Ignored-Parameters lists those of Anthropic's, text-embeddings-inference's, vLLM's and Presidio's
bodies.

A default that is not shown is the service's or the model's. The second table of a section has
fields that clients send and that have no effect. Their other values are a 400.
"""
SERVERS = {
    "tei": "text-embeddings-inference",
    "vllm": "vLLM",
    "cohere": "Cohere",
    "jina": "Jina",
    "voyage": "Voyage",
    "nim": "NVIDIA NIM",
    "presidio": "Presidio",
}
KINDS = {
    **{"string": "a text", "boolean": "true or false", "integer": "a whole number", "number": "a number"},
    **{"array": "a list", "object": "an object"},
}
Row = tuple[str, str, str, str]
"""The cells of a field: its names, values, default and meaning."""


def forms() -> dict[str, dict[str, Form[Any]]]:
    """The bodies by the title of their section and by a name in it."""
    sections: dict[str, dict[str, Form[Any]]] = {
        "OpenAI: texts": {"completions": completions.FORM, "chats": chat_completions.FORM, "responses": responses.FORM},
        "OpenAI: embeddings and rerank": {"embeddings": embeddings.EMBEDDINGS, "rerank": rerank.RERANK},
        "OpenAI: moderations": {"moderations": moderations.MODERATIONS},
        "Anthropic: messages": {"messages": MESSAGES_FORM, "count_tokens": COUNT_FORM},
        "Triton's generate": {"generate": generate.FORM},
        "V1 and V2": {
            "CloudEvents": v1.CLOUD_EVENT,
            "/v2/repository/index": v2.INDEX,
            **{f"/v2/repository/models/{{model}}/{name}": form for name, form in v2.CONTROL.items()},
        },
    }
    for path, routes in ROUTES.items():
        for route in routes:
            if route.form is not None and route.dialect in SERVERS:
                kind = next((f": {kind}" for kind in ("derender", "render") if kind in path), "")
                title = f"{SERVERS[route.dialect]}{kind}"
                members = sections.setdefault(title, {})
                if route.form not in members.values():
                    name = path if path not in members else f"{path} with {', '.join(sorted(route.fields))}"
                    if name in members:  # another family's body with the same field
                        name += f" of {route.form.kind.__module__.split('.')[2].capitalize()}"
                    members[name] = route.form
    return sections


def fields_page() -> str:
    """The fields of all bodies in Markdown."""
    parts = [FIELDS]
    for title, members in forms().items():
        parts.append(f"## {title}\n")
        if is_open := [code(name) for name, form in members.items() if issubclass(form.kind, OpenBody)]:
            of = "" if len(is_open) == len(members) else f" of {', '.join(is_open)}"
            parts.append(textwrap.fill(f"Unknown fields{of} have no effect.", 100, break_on_hyphens=False) + "\n")
        used: dict[Row, list[str]] = {}
        unused: dict[Row, list[str]] = {}
        for name, form in members.items():
            for row in rows_of(form):
                (unused if row[3] == "Without effect." else used).setdefault(row, []).append(name)
        single = len(members) == 1
        parts.append(table(("field", "of", "value", "meaning"), used, members, single=single))
        if unused:
            joined: dict[tuple[str, ...], list[Row]] = {}
            for row, of in unused.items():
                joined.setdefault((row[1], *of), []).append(row)
            rows = {(", ".join(row[0] for row in same), *same[0][1:]): unused[same[0]] for same in joined.values()}
            parts.append(table(("field without effect", "of", "value"), rows, members, single=single))
    return "\n".join(parts)


def table(heads: Sequence[str], rows: Mapping[Row, Sequence[str]], members: Mapping[str, Any], *, single: bool) -> str:
    """A table of fields. The column ``of`` names the bodies that have a field, unless there is one body."""
    lines = []
    for (names, value, default, *others), of in sorted(rows.items(), key=lambda row: row[0][2] != "required"):
        others = [f"{value}; {default}" if default else value, *others]
        bodies = "" if len(of) == len(members) else ", ".join(code(name) for name in of)
        lines.append([names, *([] if single else [bodies or "all"]), *others][: len(heads) - single])
    return markdown([head for head in heads if head != "of" or not single], lines)


def rows_of(form: Form[Any]) -> Iterable[Row]:
    """The fields of a body, without the task's parameters that generate has, too."""
    [_], components = json_schemas([form.kind])
    schemas = components[form.kind.__name__]["properties"]
    excluded = fields_of(TextGenerationParameters) if form is generate.FORM else {}
    aliases: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        if match := re.fullmatch(r"Another name of (\w+)\.", schema.get("description", "")):
            aliases.setdefault(match[1], []).append(name)
    for name in fields_of(form.kind):
        if name not in excluded:
            schema = schemas[name]
            default = "" if schema.get("default") is None else f"by default `{json.dumps(schema['default'])}`"
            names = ", ".join(f"`{one}`" for one in (name, *aliases.get(name, ())))
            required = "required" if name in form.required else ""
            meaning = with_flags_as_code(schema.get("description", ""))
            yield names, values_of(schema, components), required or default, meaning


def values_of(schema: Mapping[str, Any], components: Mapping[str, Any] | None = None) -> str:
    """The values that a schema allows, without null, in words."""
    if "$ref" in schema:
        names = (components or {}).get(schema["$ref"].rpartition("/")[2], {}).get("properties", {})
        return f"an object of {', '.join(f'`{name}`' for name in names)}" if 0 < len(names) < 12 else "an object"
    if "enum" in schema:
        return (
            ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None)
            or "none: it is refused"
        )
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        shared = {key: schema[key] for key in ("maxLength", "maxProperties") if key in schema}
        members = (values_of({**shared, **one}, components) for one in schema["anyOf"])
        return " or ".join(dict.fromkeys(filter(None, members)))
    if "type" not in schema:
        return "any value"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = " or ".join(KINDS[name] for name in kinds if name != "null")
    if not kind:
        return ""
    if kind == "a list" and schema.get("maxItems") == 1:
        return f"a list of {values_of(schema['items'], components).replace('a ', 'one ', 1)}"
    if kind == "a list":
        most = f"at most {schema['maxItems']:,} " if "maxItems" in schema else ""
        return f"a list of {most}{plural(values_of(schema.get('items', {}), components))}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"{kind} from {least:g} to {most:g}"
    if least is not None or most is not None:
        return f"{kind} of at least {least:g}" if most is None else f"{kind} of at most {most:g}"
    for limit, unit in (("maxLength", "characters"), ("maxProperties", "keys")):
        if limit in schema:
            return f"{kind} of at most {schema[limit]:,} {unit}"
    return kind


def plural(kind: str) -> str:
    """The values of a list's items, after "a list of"."""
    words = {"a text": "texts", "a whole number": "whole numbers", "a number": "numbers", "an object": "objects"}
    for singular, many in {**words, "a list": "lists", "any value": "any values"}.items():
        kind = re.sub(rf"\b{singular}\b", many, kind)
    return kind


def with_routes(page: str) -> str:
    """A page with its tables of routes, each between marks with the names of the tags whose routes it has."""
    begin, end = r"<!-- Routes of ([^\n]*), written by scripts/config_docs\. -->", "<!-- End of the routes. -->"

    def fill(match: re.Match[str]) -> str:
        made = dialect_routes() if match[1] == "other servers" else routes(match[1].split(", "))
        return f"{match[0].partition(chr(10))[0]}\n\n{made}\n{end}"

    return re.sub(f"{begin}\n.*?{end}", fill, page, flags=re.DOTALL)


def routes(tags: Sequence[str]) -> str:
    """The table of the routes of tags. Routes with the same answer stand in one row."""
    version = "[/versions/{version}]"
    rows: dict[tuple[str, str], list[str]] = {}
    for operation in OPERATIONS:
        if operation.tags[0] in tags and operation not in dialects.OPERATIONS:
            path = operation.path.replace(PREFIX, "/openai").replace("/versions/{version}", version)
            purpose = with_flags_as_code(f"{operation.summary}. {operation.description}".strip())
            rows.setdefault((purpose, with_flags_as_code(operation.returns)), []).append(
                f"{operation.method.upper()} {path}"
            )
    lines = []
    for (purpose, answer), paths in rows.items():
        versioned = {path.replace(version, "") for path in paths if version in path}
        lines.append([", ".join(f"`{path}`" for path in paths if path not in versioned), purpose, answer])
    return markdown(("route", "purpose", "answer"), lines)


def dialect_routes() -> str:
    """The table of other servers' routes."""
    rows = []
    for one in dialects.OPERATIONS:
        apis = ", ".join(dict.fromkeys(route.dialect for route in ROUTES[one.path]))
        rows.append([f"`POST {one.path}`", apis, one.summary, ", ".join(one.tasks)])
    return markdown(("route", "API", "answer", "task"), rows)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(name: str) -> str:
    return re.sub(r"/\S+|(?<=with )\w+", r"`\g<0>`", name)


def with_flags_as_code(text: str) -> str:
    return re.sub(r"--\w[\w-]*\w(=\w+)?", r"`\g<0>`", text)

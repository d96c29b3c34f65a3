"""All declared bodies, their parts included: a value that a field does not take is refused, and the error names the
field.

In place of a test for each field of each API. BEYOND and tests/api/test_document_before.py hold the types and limits
themselves. What the right answers are, and errors between fields, have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from msgspec import Meta, Struct

from hf_transformer.api import (
    chat_completions,
    chat_tools,
    chats,
    documents,
    generate,
    generated_answers,
    images,
    v1,
    v2,
)
from hf_transformer.api.anthropic import bodies as anthropic
from hf_transformer.api.dialects import derender_types as derender
from hf_transformer.api.dialects import tei
from hf_transformer.api.openai import completions, embeddings, moderations, rerank, responses
from hf_transformer.api.table import ROUTES
from hf_transformer.errors import FieldError, Path, TooLarge
from hf_transformer.types.fields import Form, fields_of

OPENAI = (
    *(chat_completions.FORM, completions.FORM, responses.FORM),
    *(embeddings.EMBEDDINGS, moderations.MODERATIONS, rerank.RERANK),
)
PARTS: tuple[Form[Any], ...] = (
    chat_tools.TOOL_FORM,
    chats.ASSISTANT_MESSAGE,
    chats.OTHER_MESSAGE,
    chats.REFUSAL_PART,
    chats.TOOL_CALL,
    generated_answers.STREAM_OPTIONS,
    images.IMAGE_PART,
    documents.CONTENT,
    moderations.PART,
    responses.FLAT_TOOL,
    responses.ANSWER_ITEM,
    *responses.ITEMS.values(),
    anthropic.TURN,
    anthropic.CLIENT_TOOL,
    tei.SIMILARITY_PARAMETERS,
    derender.ANSWER,
    derender.PART,
    derender.FINISHED_CHOICE,
    derender.CHOICE_PART,
    derender.CHAT,
)
"""Parts of bodies that code reads later."""
FORMS: dict[str, Form[Any]] = {
    form.kind.__name__: form
    for form in (
        *OPENAI,
        *PARTS,
        *(anthropic.MESSAGES_FORM, anthropic.COUNT_FORM),
        generate.FORM,
        v1.CLOUD_EVENT,
        v2.INDEX,
        *v2.CONTROL.values(),
        *(route.form for routes in ROUTES.values() for route in routes if route.form is not None),
    )
}
LARGE = 10**9
VALUES: tuple[Any, ...] = (True, -1, 0.5, LARGE, "\x00no such value", [None], {"\x00": 1}, "", [])
"""Values of each kind, the smallest and large ones."""
RIGHT: tuple[Any, ...] = (
    1,
    True,
    "a",
    "1.0",
    ["a"],
    {"source_sentence": "a", "sentences": ["a"]},
    [["a"]],
    [1],
    {},
    [{}],
)


@dataclass(frozen=True)
class Field:
    """A field of a body or of a part of it, and a body that has a value there."""

    path: Path
    declared: Any
    body_with: Callable[[Any], dict[str, Any]]

    @property
    def extra(self) -> dict[str, Any]:
        metas = [meta for meta in _annotations(self.declared) if isinstance(meta, Meta)]
        return {key: value for meta in metas for key, value in (meta.extra or {}).items()}

    def takes(self, value: Any) -> bool:
        if "only" in self.extra:
            return any(value == allowed and type(value) is type(allowed) for allowed in self.extra["only"])
        return takes(self.declared, value)


def _annotations(declared: Any) -> tuple[Any, ...]:
    return get_args(declared)[1:] if get_origin(declared) is Annotated else ()


def takes(declared: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError:
        return False
    return True


def right(declared: Any) -> Any:
    """A value that a type takes."""
    if isinstance(declared, type) and issubclass(declared, Struct):
        return whole(declared)
    if (value := next((value for value in RIGHT if takes(declared, value)), None)) is not None:
        return value
    part = next(part for part in get_args(declared) if part is not type(None))
    return part if get_origin(declared) is Literal else right(part)


def whole(kind: type[Struct]) -> dict[str, Any]:
    """The required fields of a body or a part."""
    config = kind.__struct_config__
    tag = {config.tag_field: config.tag} if config.tag_field else {}
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    return tag | {name: right(declared) for name, declared in fields_of(kind).items() if name in required}


def in_turn(inner: Callable[[Any], Any], outer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: outer(inner(value))


def parts_of(declared: Any) -> Iterator[tuple[Path, type[Struct], Callable[[Any], Any]]]:
    """The objects in a field: their path within it, their type, and the field's value with such an object."""
    origin = get_origin(declared)
    if isinstance(declared, type) and issubclass(declared, Struct):
        yield (), declared, lambda value: value
    elif origin is Annotated:
        yield from parts_of(get_args(declared)[0])
    elif origin in (Union, UnionType):
        yield from chain.from_iterable(map(parts_of, get_args(declared)))
    elif origin is list:
        for path, kind, within in parts_of(get_args(declared)[0]):
            yield (0, *path), kind, in_turn(within, lambda value: [value])


def fields(kind: type[Struct], path: Path = (), within: Callable[[Any], Any] = lambda value: value) -> Iterator[Field]:
    """All fields of a type and of the objects in it."""
    required = whole(kind)
    for name, declared in fields_of(kind).items():

        def body_with(value: Any, name: str = name) -> dict[str, Any]:
            body: dict[str, Any] = within({**required, name: value})
            return body

        yield Field((*path, name), declared, body_with)
        for inner_path, part, inner in parts_of(declared):
            yield from fields(part, (*path, name, *inner_path), in_turn(inner, body_with))


def refused(form: Form[Any]) -> Iterator[tuple[Field, Any]]:
    """Each field of a form with each value that it does not take."""
    for field in fields(form.kind):
        for value in VALUES:
            if not field.takes(value):
                yield field, value


def test_all_apis_have_declared_bodies() -> None:
    assert len(FORMS) > 25
    rows = [(field.path, value) for form in FORMS.values() for field, value in refused(form)]
    assert len(rows) > 1500 and sum(len(path) > 1 for path, _ in rows) > 50


@pytest.mark.parametrize("name", FORMS)
def test_a_value_that_a_field_does_not_take_is_an_error_that_names_it(name: str) -> None:
    form, named = FORMS[name], set()
    for field, value in refused(form):
        with pytest.raises(FieldError) as raised:
            form.read(field.body_with(value))
        assert raised.value.path[: len(field.path)] == field.path, f"{field.path} {value!r}: {raised.value}"
        assert raised.value.expected and raised.value.got
        assert raised.value.hint == field.extra.get("hint", "") or len(raised.value.path) > len(field.path)
        too_large = value == LARGE and field.takes(1) and "limits" in field.extra
        assert isinstance(raised.value, TooLarge) == too_large, f"{field.path}: {raised.value}"
        named.add(field.path)
    assert named


NUMBERS: dict[str, list[Any]] = {"temperature": [-1, 101, "hot"], "top_p": [0, 1.5], "n": [0, 129, True]}
BEYOND: dict[str, dict[str, list[Any]]] = {
    "ChatRequest": {
        **NUMBERS,
        **{"messages": [[]], "logprobs": [3], "top_logprobs": [21], "tool_choice": ["any", {"type": "function"}]},
        **{"tools": [1], "response_format": [{"type": "yaml"}], "chat_template_kwargs": [0], "model": [3]},
        **{"metadata": ["x", {"a": 1}, {"a" * 65: "x"}, {"a": "x" * 513}, dict.fromkeys(map(str, range(17)), "x")]},
        **{key: [["k"], 7] for key in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")},
        **{"store": [0], "service_tier": ["flex", 1], "modalities": [["text", "audio"]], "verbosity": ["low"]},
        **{"use_beam_search": [True], "length_penalty": [0.5, True], "skip_special_tokens": [False]},
        **{"add_generation_prompt": [False], "add_special_tokens": [True], "priority": [1, False]},
        **{"reasoning_effort": ["much"], "parallel_tool_calls": ["no"]},
    },
    "Tool": {"type": ["x"], "function": [{"name": ""}, {"name": "a", "strict": 3}, {"name": "a", "parameters": []}]},
    "FlatTool": {"name": [""], "strict": ["x"], "parameters": [[]]},
    "StreamOptions": {
        **{"include_usage": [1], "continuous_usage_stats": [1], "include_obfuscation": [True]},
    },
    "OtherMessage": {"role": ["me"], "content": [7], "name": [7], "annotations": [[{}]], "audio": [{"id": "1"}]},
    "ChatMessage": {"refusal": [7], "name": [7]},
    "CallItem": {"name": [1], "call_id": [1]},
    "ResponsesRequest": {
        **{"input": [[]], "instructions": [["x"]], "max_output_tokens": [0], "top_logprobs": ["x", 21]},
        **{
            "include": ["x", ["file_search_call.results"]],
            "reasoning": [{"effort": "much"}, {"budget": 7}],
            "tools": ["x"],
        },
        "text": ["x", {"verbosity": "low"}, {"other": "low"}, {"format": {"type": "x"}}]
        + [{"format": {"type": "json_schema", **more}} for more in ({"name": "a"}, {"name": 1, "schema": {}})],
        **{"tool_choice": [{"type": "mcp"}], "store": [True], "background": [True], "truncation": ["auto"]},
        **{"previous_response_id": ["x"], "conversation": [{"id": "x"}], "prompt": [{"id": "x"}]},
    },
    "CompletionRequest": {
        **NUMBERS,
        **{"logprobs": [21], "prompt_logprobs": [-1, 21, True], "max_tokens": [-1], "suffix": ["x"]},
        **{"stop": [3, [""], ["a"] * 17, "a" * 1001], "stop_token_ids": [5, [5, True], [1] * 129]},
        "logit_bias": [{"5": 200}, {"5": -101}],
    },
    "GenerateBody": {
        **{"text_input": [[], ["a", "b"], [["a"]], [1], 1], "max_tokens": [[1, 2]], "parameters": [3], "id": [7]},
        **{"bad_words": [["x"]], "exclude_input_in_output": [1], "return_finish_reason": [1], "random_seed": [-1.5]},
        **{"end_id": ["</s>", -2, True], "pad_id": [1.5], "stop_token_ids": [4]},
    },
    "RenderCompletionRequest": {"min_tokens": [1.5], "n": [True], "ignore_eos": [1], "truncation_side": ["both"]},
    "RenderChatRequest": {"documents": [{}]},
    "EmbeddingsRequest": {
        **{"truncate": ["end", 1], "truncation_side": ["up"], "encoding_format": ["int8"], "dimensions": [0]},
        **{"embedding_type": ["int4"], "padding": ["max_length"], "modality": ["image"], "input_type": [1]},
        "add_special_tokens": [False],
    },
    "RerankRequest": {"truncate": ["end"], "top_n": [0], "max_tokens_per_doc": [-1], "return_documents": ["no"]},
    "CohereEmbedV2Request": {
        **{"embedding_types": [["int4"]], "images": [["data:"]], "output_dimension": [0], "truncate": ["MIDDLE"]},
        "priority": [1000],
    },
    "TeiEmbedRequest": {"normalize": [1], "truncation_direction": ["up"]},
    "TeiPredictRequest": {"raw_scores": ["no"]},
    "TeiSimilarityRequest": {"parameters": [False]},
    "TeiKindRequest": {"parameters": [[]]},
}
"""Values just outside of what fields take, by body."""


@pytest.mark.parametrize("name", BEYOND)
def test_a_value_beyond_a_field_s_type_or_limits_is_refused(name: str) -> None:
    form = FORMS[name]
    for field, values in BEYOND[name].items():
        for value in values:
            with pytest.raises(FieldError) as found:
                form.read({**whole(form.kind), field: value})
            assert found.value.path[0] == field, str(found.value)


INSTEAD = [
    pytest.param(form, *names, id=f"{kind}-{names[0]}")
    for kind, form in FORMS.items()
    for field in fields(form.kind)
    if len(field.path) == 1 and (names := (field.path[0], field.extra.get("instead_of")))[1] in form.names
]


@pytest.mark.parametrize(("form", "name", "replaced"), INSTEAD)
def test_a_field_is_refused_beside_the_one_that_it_replaces(form: Form[Any], name: str, replaced: str) -> None:
    kind: type[Struct] = form.kind
    body = whole(kind) | {key: right(fields_of(kind)[key]) for key in (name, replaced)}
    with pytest.raises(FieldError, match="they mean the same") as found:
        form.read(body)
    assert found.value.path == (name,)


ALIASES = [
    pytest.param(form, str(field.path[0]), alias, right(field.declared), id=f"{name}-{alias}")
    for name, form in FORMS.items()
    for field in fields(form.kind)
    for alias in field.extra.get("also", ())
    if len(field.path) == 1
]


@pytest.mark.parametrize(("form", "name", "alias", "value"), ALIASES)
def test_an_alias_is_the_field_and_is_refused_beside_it(form: Form[Any], name: str, alias: str, value: Any) -> None:
    body = {key: other for key, other in whole(form.kind).items() if key != name}
    assert form.aliases({**body, alias: value}) == {name: alias}
    assert form.read({**body, alias: value}) == form.read({**body, name: value})
    with pytest.raises(FieldError, match="they mean the same") as found:
        form.read({**body, name: value, alias: value})
    assert found.value.path == (alias,)


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.required])
def test_a_required_field_is_not_absent_or_null(name: str) -> None:
    form = FORMS[name]
    for field in form.required:
        body = whole(form.kind)
        for wrong in ({**body, field: None}, {key: value for key, value in body.items() if key != field}):
            with pytest.raises(FieldError) as found:
                form.read(wrong)
            assert (found.value.path, found.value.got) == ((field,), "nothing")


@pytest.mark.parametrize("name", FORMS)
def test_an_unknown_field_is_refused_or_noted(name: str) -> None:
    form, ignored = FORMS[name], list[str]()
    body = {**whole(form.kind), "no_such_field": 1}
    try:
        form.read(body, ignored)
    except FieldError as error:
        assert not ignored or error.path[0] in form.required, str(error)
        assert ignored or error.path == ("no_such_field",), str(error)
    else:
        assert ignored == ["no_such_field"]

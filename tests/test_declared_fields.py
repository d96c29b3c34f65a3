"""Declared bodies: values, names and errors, and that msgspec, the finder of faults and the JSON Schema agree."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta

from hf_transformer.errors import InvalidInput, RequestError, TooLarge
from hf_transformer.types.fields import (
    NO_EFFECT,
    Body,
    Form,
    Natural,
    OpenBody,
    Positive,
    about,
    find_fault,
    json_schemas,
    only,
)


class TextPart(Body, tag_field="type", tag="text"):
    text: str


class ImagePart(Body, tag_field="type", tag="image"):
    address: str


class Message(Body):
    role: Literal["user", "assistant"]
    content: str | list[TextPart | ImagePart]
    weights: dict[str, float] | None = None


class Ranking(Body):
    query: Annotated[str, about("The question.")]
    documents: Annotated[Annotated[list[Any], Meta(min_length=1)], about("The texts.", expected="a list of texts")]
    top_n: Annotated[Positive | None, about("How many.", also=("top_k",), parameter="top_n")] = None
    share: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, about(parameter="top_p")] = None
    flag: bool | None = None
    kind: Literal["a", "b"] | None = None
    stop: Annotated[str | list[str] | None, about(expected="a string or a list of strings")] = None
    messages: list[Message] | None = None
    name: Annotated[Annotated[str, Meta(max_length=3)] | None, about(hint="shorten it")] = None
    user: Annotated[str | None, NO_EFFECT] = None
    priority: Annotated[Any, only(0, because="there are none")] = None
    count: Annotated[Literal["all", "none"] | None, about(instead_of="top_n")] = None
    texts: Annotated[Any, about(shown=(str, list[str], list[Message]))] = None
    labels: Annotated[dict[Annotated[str, Meta(max_length=2)], str], Meta(max_length=2)] | None = None


class Defaults(Body):
    flag: Annotated[bool, about("A flag.")] = True
    size: int | Literal["all"] = "all"


class Texts(Body):
    texts: Annotated[Any, about(expected="a text or a list of texts", shown=(str, list[str]))]


class Open(OpenBody):
    count: Natural | None = None


FORM = Form(Ranking)
RIGHT: dict[str, Any] = {"query": "a", "documents": ["b"]}


def test_a_body_has_values_defaults_and_the_task_s_parameters() -> None:
    body = FORM.read({**RIGHT, "top_k": 3, "share": 1, "flag": None, "none": None, "user": "x", "priority": 0})
    assert (body.query, body.documents, body.top_n, body.share, body.flag, body.stop) == (
        "a",
        ["b"],
        3,
        1.0,
        None,
        None,
    )
    assert FORM.options(body) == {"top_n": 3, "top_p": 1.0}
    assert FORM.parameters == {"top_n": "top_n", "share": "top_p"}
    assert FORM.names[:4] == ("query", "documents", "top_n", "top_k")


NAMES = ", ".join(FORM.names)
FAULTS: dict[str, tuple[Any, str]] = {
    "no object": ([], "body: expected an object, got a list"),
    "nothing": ({}, "query: expected a string, got nothing"),
    "null": ({"query": None, "documents": ["a"]}, "query: expected a string, got nothing"),
    "other type": ({**RIGHT, "query": 5}, "query: expected a string, got a number"),
    "empty": ({**RIGHT, "documents": []}, "documents: expected a list of texts, got an empty list"),
    "no list": ({**RIGHT, "documents": "a"}, "documents: expected a list of texts, got a string"),
    "unknown": ({**RIGHT, "x" * 50: 1}, f"{'x' * 40}: expected one of {NAMES}, got an unknown name"),
    "two unknown": ({**RIGHT, "y": 1, "z": 1}, f"body: expected only the fields {NAMES}, got the unknown 'y', 'z'"),
    "both names": ({**RIGHT, "top_n": 1, "top_k": 1}, "top_k: expected top_n or top_k, got both; they mean the same"),
    "too low": ({**RIGHT, "top_n": 0}, "top_n: expected 1 or more, got 0"),
    "no whole number": ({**RIGHT, "top_n": 1.0}, "top_n: expected a whole number, got a number"),
    "a boolean": ({**RIGHT, "top_n": True}, "top_n: expected a whole number, got a boolean"),
    "range": ({**RIGHT, "share": 1.5}, "share: expected a number from 0 to 1, got 1.5"),
    "range's type": ({**RIGHT, "share": "x"}, "share: expected a number from 0 to 1, got a string"),
    "flag": ({**RIGHT, "flag": 1}, "flag: expected true or false, got a number"),
    "choice": ({**RIGHT, "kind": "c"}, "kind: expected one of a, b, got 'c'"),
    "choice's type": ({**RIGHT, "kind": 4}, "kind: expected one of a, b, got 4"),
    "union": ({**RIGHT, "stop": 4}, "stop: expected a string or a list of strings, got a number"),
    "union's item": ({**RIGHT, "stop": ["a", 4]}, "stop[1]: expected a string, got a number"),
    "length": ({**RIGHT, "name": "abcd"}, "name: expected at most 3 characters, got 4; shorten it"),
    "only": ({**RIGHT, "priority": False}, "priority: expected 0, got false; there are none"),
    "no effect": ({**RIGHT, "user": 4}, "user: expected a string, got a number"),
    "two forms": (
        {**RIGHT, "count": "all", "top_k": 1},
        "count: expected top_k or count, got both; they mean the same",
    ),
    "key": ({**RIGHT, "labels": {"abc": "x"}}, "labels: expected keys of at most 2 characters, got 3"),
    "keys": ({**RIGHT, "labels": dict.fromkeys("abc", "x")}, "labels: expected at most 2 keys, got 3"),
    "key's value": ({**RIGHT, "labels": {"a": 1}}, "labels.a: expected a string, got a number"),
    "deep": (
        {**RIGHT, "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "a"}]},
        "messages[1].role: expected one of user, assistant, got 'system'",
    ),
    "deep missing": (
        {**RIGHT, "messages": [{"role": "user"}]},
        "messages[0].content: expected a string or a list, got nothing",
    ),
    "deep unknown": (
        {**RIGHT, "messages": [{"role": "user", "content": "a", "n": 1}]},
        "messages[0].n: expected one of role, content, weights, got an unknown name",
    ),
    "a part's type": (
        {**RIGHT, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "b"}]}]},
        "messages[0].content[1].type: expected one of text, image, got 'b'",
    ),
    "a part's text": (
        {**RIGHT, "messages": [{"role": "user", "content": [{"type": "text", "text": 4}]}]},
        "messages[0].content[0].text: expected a string, got a number",
    ),
    "a member": (
        {**RIGHT, "messages": [{"role": "user", "content": "a", "weights": {"a": 1, "b": "x"}}]},
        "messages[0].weights.b: expected a number, got a string",
    ),
}


@pytest.mark.parametrize(("payload", "message"), FAULTS.values(), ids=FAULTS)
def test_an_error_names_the_field_and_what_was_expected(payload: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as found:
        FORM.read(payload)
    assert str(found.value) == message


class Limited(Body):
    n: Annotated[Annotated[int, Meta(ge=1, le=128)] | None, about(also=("count",), limits="texts per prompt")] = None
    stop: Annotated[
        str | Annotated[list[str], Meta(max_length=2)] | None, about(expected="a string or a list", limits="strings")
    ] = None
    suffix: Annotated[Any, only("", because="the service can't insert text")] = None
    call: Annotated[Any, only(because="calls are elsewhere")] = None
    one: Annotated[Any, only(1)] = None
    true: Annotated[Any, only(True)] = None


@pytest.mark.parametrize(
    ("payload", "kind", "message"),
    [
        ({"n": 129}, TooLarge, "n: expected at most 128 texts per prompt, got 129"),
        ({"count": 129}, TooLarge, "count: expected at most 128 texts per prompt, got 129"),
        ({"n": 0}, InvalidInput, "n: expected 1 or more, got 0"),
        ({"n": True}, InvalidInput, "n: expected a whole number, got a boolean"),
        ({"stop": [1] * 3}, TooLarge, "stop: expected at most 2 strings, got 3"),
        ({"stop": [1]}, InvalidInput, "stop[0]: expected a string, got a number"),
        ({"stop": 1}, InvalidInput, "stop: expected a string or a list, got a number"),
        ({"suffix": "x"}, InvalidInput, "suffix: expected \"\", got 'x'; the service can't insert text"),
        ({"one": True}, InvalidInput, "one: expected 1, got true"),
        ({"true": 1}, InvalidInput, "true: expected true, got 1"),
        ({"call": {}}, InvalidInput, "call: expected no such field, got an empty object; calls are elsewhere"),
    ],
    ids=str,
)
def test_a_field_s_own_limit_is_too_large_and_counted_first(
    payload: Any, kind: type[RequestError], message: str
) -> None:
    form = Form(Limited)
    assert form.read({"n": 128, "stop": ["a", "b"], "suffix": "", "call": None}).n == 128
    assert form.aliases({"count": 1}) == {"n": "count"}
    with pytest.raises(kind) as found:
        form.read(payload)
    assert str(found.value) == message


def test_errors_have_the_client_s_name_of_a_field() -> None:
    with pytest.raises(InvalidInput, match=r"^top_k: expected 1 or more, got 0$"):
        FORM.read({**RIGHT, "top_k": 0})
    names = FORM.client_names({**RIGHT, "top_k": 1})
    assert names(("parameters", "top_n")) == ("top_k",)
    assert FORM.client_names(RIGHT)(("parameters", "top_n")) == ("top_n",)
    assert names(("parameters", "top_p")) == ("share",)
    assert FORM.client_names({**RIGHT, "count": "all"})(("parameters", "top_n")) == ("count",)
    assert names(("parameters", "other")) == ("other",)
    assert names(("instances", 0)) == ("instances", 0)


def test_a_field_of_any_value_may_be_required() -> None:
    assert Form(Texts).required == {"texts"} and FORM.required == {"query", "documents"}
    for body in ({}, {"texts": None}):
        with pytest.raises(InvalidInput, match=r"^texts: expected a text or a list of texts, got nothing$"):
            Form(Texts).read(body)


def test_null_is_a_field_s_default() -> None:
    form = Form(Defaults)
    assert form.read({"flag": None, "size": None}) == Defaults()
    properties = json_schemas([Defaults])[1]["Defaults"]["properties"]
    flag = {"description": "A flag.", "default": True, "anyOf": [{"type": "boolean"}, {"type": "null"}]}
    assert properties["flag"] == flag
    assert properties["size"]["anyOf"] == [{"type": "integer"}, {"enum": ["all"]}, {"type": "null"}]


def test_a_part_of_a_body_has_its_path() -> None:
    with pytest.raises(InvalidInput, match=r"^inner\[2\].query: expected a string, got nothing$"):
        FORM.read({"documents": ["a"]}, path=("inner", 2))


def test_unknown_fields_of_an_open_body_are_noted() -> None:
    ignored: list[str] = []
    assert Form(Open).read({"count": 2, "more": 1, "none": None}, ignored).count == 2
    assert ignored == ["more"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(-1, 2) | st.sampled_from(["a", "user", "text", "abcd"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "weights", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)
READ_WHOLE = [name for name in FORM.names if name != "texts"]
BODIES = st.fixed_dictionaries({}, optional=dict.fromkeys(READ_WHOLE, VALUES)).map(lambda more: {**RIGHT, **more})


@given(body=BODIES)
def test_what_the_schema_allows_is_read_and_every_other_body_has_an_error_of_its_own(body: dict[str, Any]) -> None:
    [schema], components = json_schemas([Ranking])
    described = Draft202012Validator({**schema, "components": {"schemas": components}}).is_valid(body)
    try:
        FORM.read(body)
    except InvalidInput as error:
        aliases = len([name for name in ("top_n", "top_k", "count") if body.get(name) is not None]) > 1
        absent = body["query"] is None or body["documents"] is None
        assert not described or aliases, str(error)
        assert error.expected != "an object" or absent or "an object" in str(error)
    else:
        assert described or any(type(body.get(name)) is float for name in ("top_n", "top_k"))


@given(value=VALUES)
def test_a_fault_is_found_wherever_msgspec_finds_one(value: Any) -> None:
    for declared in (Message, list[Message], Message | None, str | list[TextPart | ImagePart]):
        try:
            msgspec.convert(value, declared)
        except msgspec.ValidationError:
            assert str(find_fault(value, declared, ("field",))).startswith("field")


def test_a_schema_has_limits_help_and_further_names() -> None:
    [schema], components = json_schemas([Ranking])
    properties = components["Ranking"]["properties"]
    assert schema == {"$ref": "#/components/schemas/Ranking"}
    assert properties["top_n"]["description"] == "How many."
    assert properties["top_k"]["anyOf"][0] == {"type": "integer", "minimum": 1}
    assert properties["priority"]["enum"] == [0, None]
    texts = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    messages = {"type": "array", "items": {"$ref": "#/components/schemas/Message"}}
    assert properties["texts"]["anyOf"] == [*texts, messages, {"type": "null"}]
    assert json_schemas([Texts])[1]["Texts"]["properties"]["texts"] == {"anyOf": texts}
    assert components["Ranking"]["required"] == ["query", "documents"]
    assert components["Ranking"]["additionalProperties"] is False

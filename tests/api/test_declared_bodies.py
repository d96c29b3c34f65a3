"""All declared bodies: a value that a field does not take is refused, and the error names the field.

In place of a test for each field of each API. What the right answers are, and errors between fields, have tests of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from hf_transformer.api import generate, v2
from hf_transformer.api.openai import chat, completions, embeddings, rerank, responses
from hf_transformer.api.table import ROUTES
from hf_transformer.errors import FieldError
from hf_transformer.types.fields import Form, fields_of

OPENAI = (chat.FORM, completions.FORM, responses.FORM, embeddings.EMBEDDINGS, rerank.RERANK)
FORMS: dict[str, Form[Any]] = {
    form.kind.__name__: form
    for form in (
        *OPENAI,
        generate.FORM,
        v2.INDEX,
        *v2.CONTROL.values(),
        *(route.form for routes in ROUTES.values() for route in routes if route.form is not None),
    )
}
VALUES: tuple[Any, ...] = (True, -1, 0.5, "\x00no such value", [None], {"\x00": 1})
"""Values of each kind."""
RIGHT: tuple[Any, ...] = ("a", ["a"], {"source_sentence": "a", "sentences": ["a"]}, [["a"]], [1])


def declared_of(form: Form[Any]) -> Mapping[str, Any]:
    kind: type[Struct] = form.kind
    return fields_of(kind)


def refused(name: str) -> Iterator[Any]:
    """Each field of a form with each value that its type does not take."""
    for field, declared in declared_of(FORMS[name]).items():
        for value in VALUES:
            if not takes(declared, value):
                yield field, value


def takes(declared: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError:
        return False
    return True


def required(form: Form[Any]) -> dict[str, Any]:
    """The required fields of a form with values that their types take."""
    declared = declared_of(form)
    return {name: next(value for value in RIGHT if takes(declared[name], value)) for name in form.required}


def test_all_apis_have_declared_bodies() -> None:
    assert len(FORMS) > 25
    assert sum(1 for name in FORMS for _ in refused(name)) > 900


@pytest.mark.parametrize("name", FORMS)
def test_a_value_that_a_field_does_not_take_is_an_error_that_names_it(name: str) -> None:
    form, fields = FORMS[name], set()
    others = required(form)
    for field, value in refused(name):
        with pytest.raises(FieldError) as found:
            form.read({**others, field: value})
        assert found.value.path[0] == field, str(found.value)
        assert found.value.expected and found.value.got
        fields.add(field)
    assert fields


@pytest.mark.parametrize("name", FORMS)
def test_an_unknown_field_is_refused_or_noted(name: str) -> None:
    form, ignored = FORMS[name], list[str]()
    body = {**required(form), "no_such_field": 1}
    try:
        form.read(body, ignored)
    except FieldError as error:
        assert not ignored or error.path[0] in form.required, str(error)
        assert ignored or error.path == ("no_such_field",), str(error)
    else:
        assert ignored == ["no_such_field"]

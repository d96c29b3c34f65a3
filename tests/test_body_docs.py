"""The tables of routes and fields in the docs: no body is left out, and prose between tables stays."""

from __future__ import annotations

import pytest

from scripts.body_docs import fields_page, forms, values_of, with_routes
from tests.api.test_declared_bodies import FORMS, PARTS, fields

BEGIN, END = "<!-- Routes of {}, written by scripts/config_docs. -->", "<!-- End of the routes. -->"


def test_the_page_has_the_fields_of_all_bodies() -> None:
    shown = {form.kind for members in forms().values() for form in members.values()}
    assert shown == {form.kind for form in FORMS.values()} - {part.kind for part in PARTS}
    page = fields_page()
    for title, members in forms().items():
        section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for form in members.values():
            names = (
                form.required if title == "Triton's generate" else {str(field.path[0]) for field in fields(form.kind)}
            )
            assert all(f"`{name}`" in section for name in names), title


def test_prose_around_tables_of_routes_stays() -> None:
    page = "\n".join(["a", BEGIN.format("V1"), "old", END, "b", BEGIN.format("other servers"), "", END, "c"])
    filled = with_routes(page)
    assert filled == with_routes(filled)
    for kept in ("a\n<!--", "-->\nb\n<!--", "-->\nc"):
        assert kept in filled
    first, second = filled.split("\nb\n")
    assert "`POST /v1/models/{model}:predict`" in first and "`POST /embed`" in second and "old" not in filled


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "a whole number of at least 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 5}, "a text of at most 5 characters"),
        ({"type": "array", "maxItems": 2, "items": {"type": "string"}}, "a list of at most 2 texts"),
        ({"enum": ["a", None]}, '`"a"`'),
        ({"enum": [None]}, "none: it is refused"),
        ({"$ref": "#/x/One"}, "an object of `a`"),
    ],
    ids=["limit", "null", "list", "choice", "refused", "object"],
)
def test_values_are_told_in_words(schema: dict[str, object], words: str) -> None:
    assert values_of(schema, {"One": {"properties": {"a": {}}}}) == words

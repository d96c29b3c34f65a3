"""Paths of errors: tuples until they are printed, renamed by their beginnings, and never written as dotted texts."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path as File

import pytest

import hf_transformer
from hf_transformer import errors
from hf_transformer.errors import ContextLengthExceeded, EmptyList, FieldDetails, InvalidInput, Key, Path, show_path
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.paths import EACH, TOP_LEVEL, Names

ROOT = File(hf_transformer.__file__).parent

SHOWN: list[tuple[Path | str, str]] = [
    ((), ""),
    ("", ""),
    ("body", "body"),
    (("body",), "body"),
    (("messages", 0, "role"), "messages[0].role"),
    (("input", 3, 0), "input[3][0]"),
    (("outputs", Key("a.b"), "shape"), "outputs['a.b'].shape"),
    (("parameters", Key("a'b")), 'parameters["a\'b"]'),
    (("a.b[0]", "c"), "a.b[0].c"),
]


@pytest.mark.parametrize(("path", "text"), SHOWN, ids=[text or repr(path) for path, text in SHOWN])
def test_an_error_shows_its_path(path: Path | str, text: str) -> None:
    error = InvalidInput(path, "a text", "a number", "send a text")
    assert show_path(path) == text
    assert str(error) == f"{text}{text and ': '}expected a text, got a number; send a text"
    assert error.path == (path if isinstance(path, tuple) else (path,) if path else ())


def test_an_error_at_another_path_keeps_its_kind_and_details() -> None:
    for error in (
        EmptyList("input", "a list"),
        ContextLengthExceeded("input", "at most 9 tokens", "10", limit=9),
        Malformed("input", "a list", hint="see the docs"),
    ):
        moved = error.within(("instances", 2)).at(("texts", 0))
        assert type(moved) is type(error) and moved.path == ("texts", 0) and moved.args[1:] == error.args[1:]
        assert error.within(("instances", 2)).path == ("instances", 2, "input")
    assert InvalidInput("", "a list").within(("instances", 2)).path == ("instances", 2)
    assert str(EmptyList("input", "a list")) == "input: expected a list, got an empty list"


NAMES = Names(
    {
        ("parameters",): (),
        ("inputs", 0): ("inputs",),
        ("inputs", EACH, "chunks"): ("inputs", EACH),
        ("texts", 0, "texts", EACH): ("passages", EACH, "text"),
        ("texts", EACH): ("texts",),
    },
    {("top_n",): ("limit",)},
)
RENAMED: list[tuple[Path, Path]] = [
    ((), ()),
    (("other", 5), ("other", 5)),
    (("parameters",), ("parameters",)),
    (("parameters", "top_k"), ("top_k",)),
    (("parameters", "top_n", 1), ("limit", 1)),
    (("top_n",), ("limit",)),
    (("inputs",), ("inputs",)),
    (("inputs", 0, "text"), ("inputs", "text")),
    (("inputs", 3, "text"), ("inputs", 3, "text")),
    (("inputs", 3, "chunks", 7), ("inputs", 3, 7)),
    (("inputs", 0, "chunks", 7), ("inputs", 0, 7)),
    (("inputs.chunks",), ("inputs.chunks",)),
    (("texts", 0, "texts", 4), ("passages", 4, "text")),
    (("texts", 1, "texts", 4), ("texts", "texts", 4)),
    (("texts", "a"), ("texts", "a")),
]


@pytest.mark.parametrize(("path", "renamed"), RENAMED, ids=[show_path(path) or "none" for path, _ in RENAMED])
def test_the_longest_beginning_is_renamed(path: Path, renamed: Path) -> None:
    assert NAMES(path) == renamed


def test_names_apply_one_after_another() -> None:
    names = TOP_LEVEL.then({("dimensions",): ("output_dimension",)})
    assert names(("parameters", "dimensions")) == names(("dimensions",)) == ("output_dimension",)
    assert TOP_LEVEL(("parameters", "dimensions")) == ("dimensions",), "the first ones stay as they are"


ERRORS = {
    *(name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FieldDetails)),
    *("Malformed", "Unwritable"),
}
TAKE_A_PATH = {"at", "within", "few", "hold", "expect", "expect_items", "check_depth", "check_nesting"}
"""Functions that hand a path on to an error."""


def dotted(source: str) -> Iterator[str]:
    """Arguments of errors and of TAKE_A_PATH that are texts with dots or brackets, and texts made from a path."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            positions = {"expect": 2, "expect_items": 1, "check_nesting": 1, "hold": 1}
            at = positions.get(name, 0)
            if name in ERRORS | TAKE_A_PATH and len(node.args) > at:
                for text in filter(is_dotted, ast.walk(node.args[at])):
                    yield f"line {text.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def is_dotted(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return any(is_dotted(part) for part in node.values)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and not {".", "["}.isdisjoint(node.value)


def test_no_error_has_a_path_in_one_text() -> None:
    files = sorted(ROOT.rglob("*.py"))
    found = [f"{file.relative_to(ROOT)}: {one}" for file in files for one in dotted(file.read_text())]
    assert len(files) > 100 and not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'InvalidInput("parameters.top_k", "a number")',
        'errors.TooLarge(f"{path}[{index}]", "less")',
        'raise error.within(f"outputs[{name}]")',
        'expect(value, str, f"{path}.text", "a string")',
        'expect_items(value, "inputs.sentences", "a list")',
        'error.at("a.b" if one else path)',
    ],
)
def test_the_search_finds_paths_in_one_text(source: str) -> None:
    assert len([*dotted(source)]) >= 1


def test_the_search_passes_tuples() -> None:
    source = 'InvalidInput(("a", 0), "at most 1.5 [units]")\nexpect(value["a.b"], str, "name", "a.b")\nx.at("name")'
    assert [*dotted(source)] == []

"""Limits of JSON are checked before it is parsed."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import TooLarge
from hf_transformer.protocol import json_text
from hf_transformer.protocol.json_text import (
    MAX_NESTING,
    JsonLimits,
    Shape,
    check_depth,
    check_size,
    parse_answer,
    parse_json,
)
from hf_transformer.protocol.tensors import Malformed

LIMITS = JsonLimits(parts=1000, values=100_000)
ODD_STRINGS = st.text(st.sampled_from('[]{}:,"\\aé\n'), max_size=20)
VALUES = st.recursive(
    st.one_of(ODD_STRINGS, st.none(), st.integers(-9, 9)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(ODD_STRINGS, inner, max_size=5)),
)


def parts_and_commas(value: Any) -> tuple[int, int]:
    """Counts lists, objects and keys, and the commas between elements."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [parts_and_commas(child) for child in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    return 1 + keys + sum(parts for parts, _ in inner), max(0, len(value) - 1) + sum(commas for _, commas in inner)


def depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def counted(text: bytes) -> tuple[int, int]:
    shape = Shape.of(text)
    return shape.parts, shape.commas


@given(VALUES, st.booleans())
def test_characters_in_strings_are_not_counted(value: Any, ascii: bool) -> None:
    assert counted(json.dumps(value, ensure_ascii=ascii).encode()) == parts_and_commas(value)


@given(VALUES, st.integers(1, 7))
def test_strings_may_span_several_chunks(value: Any, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_CHUNK_BYTES", size)
        assert counted(orjson.dumps(value)) == parts_and_commas(value)
        assert Shape.of(orjson.dumps(value)).depth == depth(value)


def test_code_in_a_prompt_is_accepted() -> None:
    prompt = 'a["b"]={x:[1,2,3]}\\' * 50_000
    value = {"instances": [prompt, "[", "\\"]}
    assert parse_json(orjson.dumps(value), LIMITS) == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" + b"[]," * 50_000 + b"[]]", "expected at most 1000 lists, objects and keys, got 50002"),
        (b"[" + b"{}," * 50_000 + b"{}]", "expected at most 1000 lists, objects and keys, got 50002"),
        (b'{"a":0' + b',"a":0' * 50_000 + b"}", "expected at most 1000 lists, objects and keys, got 50002"),
        (b"[" * 100_000, "expected at most 1000 lists, objects and keys, got 100000"),
        (b"[0" + b",0" * 100_001 + b"]", "expected at most 100000 values, got 100001; .*--max_request_bytes"),
    ],
    ids=["lists", "objects", "keys", "deep", "values"],
)
def test_json_over_a_limit_is_refused_before_it_is_parsed(
    body: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "orjson", None)
    with pytest.raises(TooLarge, match=f"^body: {message}"):
        parse_json(body, LIMITS)


NESTED = {
    "lists": lambda depth: b"[" * depth + b"]" * depth,
    "objects": lambda depth: b'{"a":' * depth + b"1" + b"}" * depth,
    "both": lambda depth: (
        b'[{"a":' * (depth // 2) + b"[" * (depth % 2) + b"1" + b"]" * (depth % 2) + b"}]" * (depth // 2)
    ),
    "beside many": lambda depth: b"[" + b"[]," * 300 + b"[" * (depth - 1) + b"]" * depth,
    "behind brackets in a string": lambda depth: rb'["]]]]\"]]\\\\",' + b"[" * (depth - 1) + b"]" * depth,
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("depth", [MAX_NESTING, MAX_NESTING + 1, 255, 1000, 20_000])
def test_json_nested_too_deeply_is_refused(nested: Callable[[int], bytes], depth: int) -> None:
    limits = JsonLimits(parts=100_000, values=100_000)
    if depth <= MAX_NESTING:
        value = parse_json(nested(depth), limits)
        for _ in range(40):  # an answer repeats a value some levels deeper
            value = [value]
        assert orjson.dumps(value)
    else:
        with pytest.raises(TooLarge, match=r"^body: expected lists and objects nested at most 200 deep$"):
            parse_json(nested(depth), limits)
        with pytest.raises(Malformed, match="nested at most 200 deep"):
            parse_answer(nested(depth))


@given(VALUES, st.booleans())
def test_the_depth_is_that_of_the_value(value: Any, ascii: bool) -> None:
    assert Shape.of(json.dumps(value, ensure_ascii=ascii).encode()).depth == depth(value)


@pytest.mark.parametrize("piece", [b'""', b'"[",', b'"\\"",', b"[],"], ids=["empty", "brackets", "escapes", "lists"])
def test_the_depth_of_a_large_text_takes_few_copies_of_it(piece: bytes) -> None:
    """A regular expression took 700 MB for 16 MB of quotes."""
    text = b"[" * 250 + piece * (2**22 // len(piece))
    tracemalloc.start()
    try:
        assert Shape.of(text).depth >= 250
        assert tracemalloc.get_traced_memory()[1] < 2.5 * len(text) + 2**22
    finally:
        tracemalloc.stop()


NO_JSON = {
    "nothing": b"",
    "blanks": b" \t\r\n",
    "a mark and nothing": b"\xef\xbb\xbf",
    "two values": b"{}{}",
    "a comment": b"/* */{}",
    "NaN": b"[NaN]",
    "Infinity": b"[Infinity]",
    "1e999": b"[1e999]",
    "400 digits": b"[" + b"9" * 400 + b"]",
    "a NUL byte": b'["a \0 b"]',
    "a NUL byte behind": b"{}\0",
    "a lone surrogate": rb'["\ud800 a"]',
    "a lone surrogate in a key": rb'{"\udfff": 1}',
    "surrogates as UTF-8": b'["\xed\xa0\x80 a"]',
    "overlong UTF-8": b'["\xc0\xaf a"]',
    "UTF-8 cut off": b'["a \xe2\x82"]',
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_text_that_is_no_json_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"^body: expected JSON in UTF-8"):
        parse_json(body, JsonLimits(parts=100_000, values=100_000))


def test_a_megabyte_of_any_byte_is_refused() -> None:
    for byte in range(256):
        with pytest.raises((Malformed, TooLarge)):
            parse_json(bytes([byte]) * 2**20, LIMITS)


def test_the_predictors_json_has_other_limits_than_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    words = b'["' + b"[]," * 200_000 + b'"]'
    assert parse_answer(words) == [words[2:-2].decode()]
    many = b"[" + b"[]," * 100_000 + b"[]]"
    with pytest.raises(Malformed, match=r"^body: expected at most 100000 lists, objects and keys, got 100002"):
        parse_answer(many)
    monkeypatch.setattr(json_text, "MAX_ANSWER_BYTES", 100_000)
    with pytest.raises(Malformed, match=r"^body: expected at most 100000 bytes of JSON, got 300004"):
        parse_answer(many)


def test_json_at_the_limits_is_accepted() -> None:
    check_size(b"[" + b"[]," * 998 + b"[]]", LIMITS)
    check_size(b"[0" + b",0" * 100_000 + b"]", LIMITS)
    with pytest.raises(TooLarge):
        check_size(b"[" + b"[]," * 999 + b"[]]", LIMITS)
    assert JsonLimits.of(2048, 16 * 2**20, 9) == JsonLimits(42_768, 2_097_152, 9)


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_the_collector_pauses_while_a_large_text_is_parsed(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[bool] = []
    monkeypatch.setattr(orjson, "loads", lambda text: running.append(gc.isenabled()))
    text = bytes(json_text.SMALL_BYTES + large)
    for parse in (parse_answer, lambda text: parse_json(text, LIMITS)):
        parse(text)
        assert running.pop() is not large and gc.isenabled()
    monkeypatch.undo()
    with pytest.raises(Malformed, match=r"^body: expected JSON in UTF-8; "):
        parse_json(text, LIMITS)
    assert gc.isenabled()


@pytest.mark.parametrize("form", [lambda inner: [inner, 1], lambda inner: {"a": inner}], ids=["list", "object"])
def test_lists_and_objects_may_be_nested_as_deep_as_the_limit(form: Any) -> None:
    limits = JsonLimits(parts=9, values=9, depth=3)
    value: Any = form("text")  # the value itself is no level
    for _ in range(3):
        value = form(value)
    check_depth("tools", value, limits)
    with pytest.raises(TooLarge, match=r"^tools: expected lists and objects nested at most 3 deep"):
        check_depth("tools", form(value), limits)

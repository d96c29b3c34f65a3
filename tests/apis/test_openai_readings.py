"""Fields that clients send again and again are read once, by exactly what they are."""

import orjson
import pytest

from hf_transformer.apis.openai_generation import Fields
from hf_transformer.apis.openai_readings import LONGEST, MOST, Readings
from hf_transformer.errors import InvalidInput


class Reader:
    """Notes what it was given; refuses a field of its own."""

    def __init__(self) -> None:
        self.read: list[Fields] = []

    def __call__(self, fields: Fields) -> Fields:
        self.read.append(fields)
        if "wrong" in fields:
            raise InvalidInput("wrong: not taken")
        return dict(fields)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def readings(reader: Reader) -> Readings[Fields]:
    return Readings(reader, ("prompt", "user"))


def test_the_same_fields_are_read_once_whatever_stands_apart(reader: Reader, readings: Readings[Fields]) -> None:
    first = readings({"temperature": 0.5, "prompt": "a"})
    assert readings({"prompt": "b", "temperature": 0.5, "user": "me"}) is first
    assert reader.read == [{"temperature": 0.5}]


@pytest.mark.parametrize("other", [1.0, True, "1", [1]], ids=["float", "boolean", "string", "list"])
def test_values_that_only_look_alike_are_others(reader: Reader, readings: Readings[Fields], other: object) -> None:
    readings({"n": 1})
    found = readings({"n": other})
    assert type(found["n"]) is type(other)
    assert len(reader.read) == 2


def test_what_is_refused_is_refused_again(reader: Reader, readings: Readings[Fields]) -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="wrong: not taken"):
            readings({"wrong": 1})
    assert len(reader.read) == 2


def test_long_fields_are_not_kept(reader: Reader, readings: Readings[Fields]) -> None:
    for _ in range(2):
        assert readings({"stop": "x" * LONGEST}) == {"stop": "x" * LONGEST}
    assert len(reader.read) == 2


def test_what_json_can_read_but_not_write_is_read(reader: Reader, readings: Readings[Fields]) -> None:
    deep = orjson.loads("[" * 300 + "]" * 300)
    assert readings({"stop": deep})["stop"] is deep


def test_no_more_than_so_many_are_kept(reader: Reader, readings: Readings[Fields]) -> None:
    for number in range(MOST + 1):
        readings({"n": number})
    readings({"n": MOST})
    assert len(reader.read) == MOST + 1
    readings({"n": 0})
    assert len(reader.read) == MOST + 2

"""What is left out of a text because it is the prompt; what a tokenizer adds to texts, where it can't encode any."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_transformer.generation.text_ends import Leading, TokenCounter, leading_token
from tests.generation.tokenizers import load, without_unknown


async def test_a_tokenizer_of_few_words(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    tokenizer = load(without_unknown(tmp_path))
    assert leading_token(tokenizer) == ""
    assert await TokenCounter(tokenizer, executor).count("A C A") == 3


def read(prompt: str, bare: str, whole: str, size: int) -> tuple[str, int]:
    """What is left of a text that comes in parts, and how often ``bare`` was asked for: the prompt without its special
    tokens."""
    asked: list[str] = []

    def without() -> str:
        asked.append(bare)
        return bare

    leading = Leading(prompt, without)
    found = "".join(leading.take(whole[start : start + size]) for start in range(0, len(whole), size))
    return found + leading.rest(), len(asked)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ("<s>user\nHi</s>\n you", " you"),
        ("user\nHi\n you", " you"),
        ("user\nHi\n", ""),
        ("user\nHi", "user\nHi"),
        ("user\nHe said", "user\nHe said"),
        ("<s>user\nHe", "<s>user\nHe"),
        ("<s>us", "<s>us"),
        ("you", "you"),
        ("", ""),
    ],
    ids=["as sent", "read back", "alone", "a part of it", "not quite", "not quite as sent", "a part", "new", "nothing"],
)
def test_the_prompt_as_it_was_sent_or_without_its_special_tokens(size: int, whole: str, expected: str) -> None:
    assert read("<s>user\nHi</s>\n", "user\nHi\n", whole, size)[0] == expected


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("whole", "expected"),
    [("Hi</s> you", " you"), ("Hi you", " you"), ("Hi</you", "</you"), ("Hi</", "</"), ("Hi", "")],
)
def test_a_special_token_at_the_end(size: int, whole: str, expected: str) -> None:
    """What is left without it is how the prompt begins: which of both it is shows after it."""
    assert read("Hi</s>", "Hi", whole, size)[0] == expected


def test_nothing_is_decoded_where_the_prompt_is_as_it_was_sent() -> None:
    assert read("<s>Hi", "Hi", "<s>Hi you", 2) == (" you", 0)
    assert read("<s>Hi", "Hi", "", 2) == ("", 0)
    assert read("<s>Hi", "Hi", "Hi, this is longer", 2) == (", this is longer", 1)


def test_a_prompt_of_special_tokens_alone() -> None:
    assert read("<s></s>", "", "you", 1)[0] == "you"

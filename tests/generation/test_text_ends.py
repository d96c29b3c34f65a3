"""What a tokenizer adds to texts, where it can't encode any text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hf_transformer.generation.text_ends import TokenCounter, leading_token
from tests.generation.tokenizers import load, without_unknown


async def test_a_tokenizer_of_few_words(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    tokenizer = load(without_unknown(tmp_path))
    assert leading_token(tokenizer) == ""
    assert await TokenCounter(tokenizer, executor).count("A C A") == 3

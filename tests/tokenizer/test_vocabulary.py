"""WordPieces gives what the Rust library gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from hf_transformer.tokenizer.vocabulary import WordPieces

TOKENS = (
    "a", "##b", "zoë", "北", "don", "do", "not", "do not", "'", "##'", "'s", "##s", "n't", "t", "##m", "'ve", ".",
    "##.", "..", "?", "! ", " ,", ",b", "", "##", "####", "a##b", "# #", "[UNK]", "[CLS]", "[SEP]",
)  # fmt: skip


def word_pieces(prefix: str, cleanup: bool) -> tuple[Tokenizer, WordPieces]:
    backend = Tokenizer(models.WordPiece({token: number for number, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    backend.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    backend.decoder = decoders.WordPiece(prefix, cleanup)
    return backend, WordPieces(backend, backend.decoder)


@pytest.mark.parametrize("cleanup", [True, False])
@pytest.mark.parametrize("prefix", ["##", "@"])
@pytest.mark.parametrize("skip", [True, False])
@given(ids=st.lists(st.integers(0, len(TOKENS) + 1), max_size=8))
def test_ids_and_tokens_to_text(cleanup: bool, prefix: str, skip: bool, ids: list[int]) -> None:
    backend, pieces = word_pieces(prefix, cleanup)
    assert pieces.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)
    tokens = [TOKENS[number] for number in ids if number < len(TOKENS)]
    assert pieces.join(tokens) == backend.decoder.decode(tokens)


def test_words_that_look_like_parts_of_others() -> None:
    _, pieces = word_pieces("##", True)
    assert pieces.join(["a", "##b", ".", "zoë", ",", "b"]) == "ab. zoë, b"
    assert pieces.join(["it", "'s", "do", "not", "do not"]) == "it's do not don't"

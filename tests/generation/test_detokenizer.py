"""Incremental detokenization equals decoding all tokens, for every family of tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.tokenizers import ALL, FALLBACK, load

PROMPT = "The capital of france is"
HARD = "naïve café e\u0301 日本語 👩\u200d👩\u200d👧 👍🏽 🇫🇷 ﷽ 'tis don't . , ! x\n\n\ty  z"
Tokenizers = Callable[[str], tuple[Tokenizer, Any]]


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    """The service's tokenizer and that of transformers, by name."""
    root = tmp_path_factory.mktemp("tokenizers")

    @cache
    def both(name: str) -> tuple[Tokenizer, Any]:
        folder = ALL[name](root / name)
        return load(folder), transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    return both


def written(vocabulary: Vocabulary, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = vocabulary.continue_text(prompt)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def assert_text_of_all(tokenizer: Tokenizer, auto: Any, ids: list[int], continued: bool) -> None:
    prompt = tokenizer.encode([PROMPT])[0].ids if continued else []
    pieces = written(Vocabulary(tokenizer), ids, prompt)
    whole = auto.decode(prompt + ids, skip_special_tokens=True)
    assert auto.decode(prompt, skip_special_tokens=True) + "".join(pieces) == whole


@pytest.mark.parametrize("name", [name for name in ALL if name not in FALLBACK])
@settings(max_examples=20)
@given(numbers=st.lists(st.integers(0, 2**16), max_size=60), continued=st.booleans())
def test_pieces_of_any_ids_equal_the_decoded_text(
    tokenizers: Tokenizers, name: str, numbers: list[int], continued: bool
) -> None:
    tokenizer, auto = tokenizers(name)
    ids = [number % tokenizer.vocab_size for number in numbers]
    assert_text_of_all(tokenizer, auto, ids, continued)


@pytest.mark.parametrize("name", [*ALL])
def test_no_piece_has_an_incomplete_character(tokenizers: Tokenizers, name: str) -> None:
    tokenizer, auto = tokenizers(name)
    ids = auto(HARD, add_special_tokens=False)["input_ids"]
    pieces = written(Vocabulary(tokenizer), ids)
    assert "".join(pieces) == auto.decode(ids, skip_special_tokens=True)
    assert "\ufffd" not in "".join(pieces)


characters = st.text(st.characters(codec="utf-8"), max_size=3)


@pytest.mark.parametrize("name", [*FALLBACK])
@settings(max_examples=60)
@given(parts=st.lists(characters | st.integers(0, 2**16), max_size=30), continued=st.booleans())
def test_pieces_of_byte_fallback_tokens_equal_the_decoded_text(
    tokenizers: Tokenizers, name: str, parts: list[str | int], continued: bool
) -> None:
    tokenizer, auto = tokenizers(name)
    ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            ids += [auto.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in part.encode()]
        elif not auto.convert_ids_to_tokens(part % tokenizer.vocab_size).startswith("<0x"):
            ids.append(part % tokenizer.vocab_size)
    assert_text_of_all(tokenizer, auto, ids, continued)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_byte_fallback_character_comes_with_its_last_byte(tokenizers: Tokenizers, name: str) -> None:
    tokenizer, auto = tokenizers(name)
    euro = auto.convert_tokens_to_ids(["<0xE2>", "<0x82>", "<0xAC>"])
    newline = auto.convert_tokens_to_ids("<0x0A>")
    word = auto.convert_tokens_to_ids("▁the")
    vocabulary = Vocabulary(tokenizer)
    assert written(vocabulary, [*euro, newline]) == ["", "", "€", "\n", ""]
    # The next word or the end replaces an incomplete character by one U+FFFD per byte, as decode does.
    assert written(vocabulary, [*euro[:2], word, *euro[:1]]) == ["", "", "\ufffd\ufffd the", "", "\ufffd"]
    assert auto.decode([*euro[:2], word, *euro[:1]]) == "\ufffd\ufffd the\ufffd"
    # Complete characters stay, where decode would drop the whole run of bytes.
    assert written(vocabulary, [*euro, *euro[:1], word]) == ["", "", "€", "", "\ufffd the", ""]


@pytest.mark.parametrize("name", ["gpt2", "t5", "llama", "bert", "bert-clean-up"])
def test_the_cost_per_token_is_constant(tokenizers: Tokenizers, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, _ = tokenizers(name)
    vocabulary = Vocabulary(tokenizer)
    looked_at: list[int] = []
    decode = vocabulary.decode

    def counting(ids: Sequence[int]) -> str:
        looked_at.append(len(ids))
        return decode(ids)

    monkeypatch.setattr(vocabulary, "decode", counting)
    written(vocabulary, [number % tokenizer.vocab_size for number in range(5000)])
    assert sum(looked_at) < 5000 * 5
    assert max(looked_at, default=0) <= 40


@pytest.mark.parametrize("name", ["gpt2", "t5", "spiece.model", "byt5"])
def test_ids_outside_the_vocabulary_are_skipped_or_refused(tokenizers: Tokenizers, name: str) -> None:
    """A model may have more ids than its tokenizer, because sizes are rounded up."""
    tokenizer, auto = tokenizers(name)
    ids = auto(" ab", add_special_tokens=False).input_ids
    above = tokenizer.vocab_size + 7
    with_others = [above, *(number for one in ids for number in (one, above))]
    vocabulary = Vocabulary(tokenizer)
    assert "".join(written(vocabulary, with_others)) == auto.decode(ids)
    assert vocabulary.text_and_bytes(above) == ("", b"")
    for number in (-1, 2**31):
        with pytest.raises(PredictorError, match=f"token id {number}"):
            vocabulary.continue_text().push(number)


@pytest.mark.parametrize(
    ("name", "token", "text", "raw"),
    [
        ("gpt2", "Ġcapital", " capital", b" capital"),
        ("gpt2", "Ã", "\ufffd", b"\xc3"),
        ("gpt2", "<|endoftext|>", "<|endoftext|>", b"<|endoftext|>"),
        ("llama", "▁capital", " capital", b" capital"),
        ("llama", "<0xE2>", "\ufffd", b"\xe2"),
        ("llama", "<0x0A>", "\n", b"\n"),
        ("llama", "</s>", "</s>", b"</s>"),
        ("t5", "▁", " ", b" "),
        ("bert", "paris", " paris", b" paris"),
        ("bert", "##s", "s", b"s"),
    ],
)
def test_text_and_bytes_of_single_tokens(tokenizers: Tokenizers, name: str, token: str, text: str, raw: bytes) -> None:
    tokenizer, _ = tokenizers(name)
    number = tokenizer.token_to_id(token)
    assert number is not None
    assert Vocabulary(tokenizer).text_and_bytes(number) == (text, raw)


@pytest.mark.parametrize("name", [*ALL])
def test_shown_tokens_are_a_part_of_the_text(tokenizers: Tokenizers, name: str) -> None:
    tokenizer, _ = tokenizers(name)
    vocabulary = Vocabulary(tokenizer)
    special = tokenizer.skipped_tokens()
    assert all(vocabulary.is_special(number) for number in special.values())
    ids = tokenizer.encode(["capital of france"])[0].ids
    plain = [token for token in ids if not vocabulary.is_special(token)]
    for text, token in special.items():
        detokenizer = vocabulary.continue_text(plain, frozenset([token]))
        pieces = [detokenizer.push(number) for number in (*plain, token, *plain, *special.values())]
        whole = "".join([*pieces, detokenizer.flush()])
        assert whole.replace(text, "") == "".join(written(vocabulary, [*plain, *plain], plain))
        assert whole.count(text) == 2


def test_a_shown_token_follows_an_incomplete_character(tokenizers: Tokenizers) -> None:
    tokenizer, _ = tokenizers("gpt2")
    vocabulary = Vocabulary(tokenizer)
    [(text, token), *_] = tokenizer.skipped_tokens().items()
    first = next(n for n in range(tokenizer.vocab_size) if vocabulary.byte_string(n) == b"\xe2")
    detokenizer = vocabulary.continue_text((), frozenset([token]))
    assert [detokenizer.push(first), detokenizer.push(token), detokenizer.flush()] == ["", "\ufffd" + text, ""]

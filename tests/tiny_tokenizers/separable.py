"""Tiny tokenizers for which spaces separate a text, and the library's own encodings with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers

from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.words import LLAMA3_WORDS, QWEN2_WORDS, WordCache, chunk_rules
from hf_transformer.types.tokenization import PLAIN, Encoding
from tests.tiny_tokenizers.trained import byte_level, roberta, wordpiece, xlm_roberta

LIMIT = 24
"""Maximum length in tokens; some of the texts are longer."""


def with_added(backend: Tokenizer) -> Tokenizer:
    """Adds tokens of each kind that the word cache allows."""
    spaced = isinstance(backend.decoder, decoders.ByteLevel)
    backend.add_tokens([AddedToken("new_token"), AddedToken("A-b", normalized=True)])
    backend.add_tokens([AddedToken(text, single_word=True, normalized=False) for text in ("<ent>", "zoë")])
    backend.add_special_tokens([AddedToken("[ENT]", lstrip=True, rstrip=not spaced)])
    return backend


def with_normalizer(backend: Tokenizer, *steps: normalizers.Normalizer) -> Tokenizer:
    backend.normalizer = normalizers.Sequence([*steps])
    return backend


def split_at(splitter: pre_tokenizers.PreTokenizer) -> Tokenizer:
    backend = wordpiece(lowercase=False)
    backend.normalizer, backend.pre_tokenizer = None, splitter
    return backend


def letters_added() -> Tokenizer:
    """A tokenizer with added tokens of letters only, so that AsciiEncoder can't be used."""
    backend = wordpiece(lowercase=True)
    backend.add_tokens([AddedToken("ing"), AddedToken("newtoken", single_word=True, normalized=False)])
    backend.add_tokens([AddedToken("zoë")])
    return backend


def ignoring_special(backend: Tokenizer) -> Tokenizer:
    backend.encode_special_tokens = True
    return backend


BACKENDS: dict[str, Callable[[], Tokenizer]] = {
    "bert": lambda: wordpiece(lowercase=True),
    "bert-cased": lambda: wordpiece(lowercase=False),
    "bert-accents": lambda: wordpiece(lowercase=True, strip_accents=False),
    "bert-added": lambda: with_added(wordpiece(lowercase=True)),
    "bert-letters-added": letters_added,
    "bert-splitting-special": lambda: ignoring_special(wordpiece(lowercase=True)),
    "nfkd": lambda: with_normalizer(
        wordpiece(lowercase=True), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()
    ),
    "whitespace": lambda: split_at(pre_tokenizers.Whitespace()),
    "whitespace-split": lambda: split_at(pre_tokenizers.WhitespaceSplit()),
    "gpt2": lambda: byte_level(["<|endoftext|>"]),
    "gpt2-prefixed": lambda: byte_level(["<|endoftext|>"], prefix=True),
    "gpt2-lower": lambda: with_normalizer(byte_level([]), normalizers.NFD(), normalizers.Lowercase()),
    "neox": lambda: with_normalizer(byte_level(["<|endoftext|>"]), normalizers.NFC()),
    "qwen": lambda: with_normalizer(byte_level(["<|endoftext|>"], words=QWEN2_WORDS), normalizers.NFC()),
    "llama-3": lambda: byte_level(["<|endoftext|>"], words=LLAMA3_WORDS),
    "llama-3-added": lambda: with_added(byte_level(["<|endoftext|>"], words=LLAMA3_WORDS)),
    "xlm-roberta": lambda: xlm_roberta(),
    "xlm-roberta-added": lambda: with_added(xlm_roberta()),
    "roberta": lambda: roberta(),
    "roberta-prefixed": lambda: roberta(prefix=True),
    "roberta-added": lambda: with_added(roberta()),
}


@cache
def backend_of(name: str) -> str:
    return BACKENDS[name]().to_str()


def copy_of(name: str) -> Tokenizer:
    backend = Tokenizer.from_str(backend_of(name))
    backend.encode_special_tokens = name == "bert-splitting-special"
    return backend


def engine_of(name: str, limit: int = LIMIT, *, special: bool = True, side: str = "right") -> RustEngine:
    return RustEngine(copy_of(name), limit, special_tokens=special, truncation_side=side)


def encode(engine: RustEngine, text: str) -> Encoding:
    """The encoding of one text without further options."""
    [[encoding]] = engine.encode([text], PLAIN)
    return encoding


class Library:
    """Encodes with the library alone."""

    def __init__(self, name: str, limit: int = LIMIT, *, special: bool = True, side: str = "right") -> None:
        self._backend = copy_of(name)
        self._backend.enable_truncation(limit, direction=side)
        self._special = special

    def encode(self, text: str) -> Encoding:
        encoded = self._backend.encode(text, add_special_tokens=self._special)
        return Encoding(encoded.ids, encoded.type_ids, bool(encoded.overflowing))


@cache
def vocabulary(name: str) -> Sequence[str]:
    return [token.removeprefix("##").replace("Ġ", "") for token in copy_of(name).get_vocab()]


def cache_of(name: str) -> WordCache:
    rules = chunk_rules(copy_of(name))
    assert rules is not None
    return WordCache(copy_of(name), rules)

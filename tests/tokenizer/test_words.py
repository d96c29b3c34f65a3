"""The word cache gives the library's ids within its bounds, for tokenizers whose spaces separate a text."""

from __future__ import annotations

import itertools
import random
import string
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer import words as module
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.words import (
    LEARN_EVERY,
    MAX_CHUNK_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    AsciiEncoder,
    WordCache,
    chunk_rules,
)
from hf_transformer.types.tokenization import PLAIN, Encoding, Words
from tests.tiny_tokenizers.corpus import any_texts, grid
from tests.tiny_tokenizers.separable import BACKENDS, LIMIT, Library, cache_of, copy_of, encode, engine_of, vocabulary
from tests.tiny_tokenizers.trained import byte_level, roberta, unigram, wordpiece

warm = cache(engine_of)
library = cache(Library)
every_backend = pytest.mark.parametrize("name", BACKENDS)


@pytest.mark.slow
@every_backend
@settings(max_examples=20)
@given(data=st.data())
def test_any_text_has_the_encoding_of_the_library(name: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(any_texts(vocabulary(name)), min_size=1, max_size=4))
    expected = [library(name).encode(text) for text in texts]
    for engine in (warm(name), engine_of(name)):
        for _ in range(2):  # the second time with the chunks learned by the first
            assert [encode(engine, text) for text in texts] == expected
        assert engine.encode(texts, PLAIN) == [[encoding] for encoding in expected]


@every_backend
@pytest.mark.parametrize("options", [{}, {"special": False}, {"side": "left"}, {"limit": 7}], ids=str)
def test_texts_of_the_corpus_have_the_encoding_of_the_library(name: str, options: dict[str, Any]) -> None:
    engine, reference = engine_of(name, **options), Library(name, **options)
    expected = [reference.encode(text) for text in grid()]
    for _ in range(2):  # the second time with what the first has taught
        assert [encode(engine, text) for text in grid()] == expected
    assert [encoding for [encoding] in engine.encode(grid(), PLAIN)] == expected


USUAL = ("Paris is the capital of France.", "don't you (really) mind? No, élève!", " Paris is the capital of France.")
RARE = (" a", " don't", " 1 2 3", " é\u0301 b", " \u0301a", " [MASK] a", " <mask> a<mask> b")


def ids_or_learn(words: WordCache, text: str) -> list[int] | None:
    """Ids from the cache. Otherwise the cache learns, as after the library has encoded the text."""
    ids = words.ids(text)
    if ids is None:
        words.learn(text)
    return ids


@every_backend
def test_usual_texts_are_cached_also_after_a_space(name: str) -> None:
    words, reference = cache_of(name), Library(name, 512, special=False)
    for text in (*USUAL, *RARE):
        tries = [ids_or_learn(words, text) for _ in range(LEARN_EVERY + 1)]
        expected = reference.encode(text).ids
        assert all(ids in (expected, None) for ids in tries), text
        if text in USUAL:
            # Without AsciiEncoder, words have to be learned first.
            assert tries[-1] is not None and (tries[0] is not None or name == "bert-letters-added")


@every_backend
def test_all_pairs_of_ascii_characters_have_the_ids_of_the_library(name: str) -> None:
    words, backend = cache_of(name), copy_of(name)
    ascii_ = [chr(number) for number in range(ord("!"), ord("~") + 1)]
    pairs = ["".join(pair) for pair in itertools.product(ascii_, repeat=2)]
    texts = [f"{first} {second}" for first, second in zip(pairs, reversed(pairs), strict=True)]
    for text, encoded in zip(texts, backend.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        assert words.ids(text) in (encoded.ids, None), text


def test_lone_surrogates_are_refused() -> None:
    engine = engine_of("bert")
    for text in ("\udc80", "Paris \ud800 Paris", "Paris is\udfff"):
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"expected Unicode text, got a text with a lone surrogate"):
                encode(engine, text)
    with pytest.raises(InvalidInput, match=r"lone surrogate, '\\udfff'"):
        engine.encode(["Paris", "is\udfff", "\ud800"], PLAIN)
    assert encode(engine, "Paris is") == Library("bert").encode("Paris is")


def test_unknown_words_are_refused_if_the_model_lacks_its_unknown_token() -> None:
    backend = wordpiece(lowercase=True)
    backend.model.unk_token = "[NONE]"
    engine = RustEngine(backend, LIMIT, special_tokens=True, truncation_side="right")
    for text in ("paris ∑", "\\\\ paris", "∑"):
        with pytest.raises(InvalidInput, match=r"expected a text that the tokenizer can encode; .*Missing"):
            encode(engine, text)
    assert encode(engine, "paris").ids == backend.encode("paris").ids


def test_texts_of_all_forms_may_share_a_call() -> None:
    engine = engine_of("bert")
    texts: Any = ["Paris", ("Paris is", "the capital"), "∑ ∑1 ∑2 ∑3", Words(("of", "France")), "", "Paris " * 40]
    for _ in range(2):
        assert engine.encode(texts, PLAIN) == [engine.encode([text], PLAIN)[0] for text in texts]
    assert engine.encode([], PLAIN) == []


HOSTILE = {"ascii": string.ascii_letters, "cjk": "".join(map(chr, range(0x4E00, 0x9FFF))), "emoji": "😀😁😂🤣😃😄😅😆"}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("alphabet", HOSTILE.values(), ids=HOSTILE)
def test_the_cache_stays_within_its_bound_of_bytes(name: str, alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 200_000
    monkeypatch.setattr(module, "GENERATION_BYTES", size)
    monkeypatch.setattr(module, "LEARN_EVERY", 1)
    chosen, words, entries = random.Random(3), cache_of(name), set()
    tracemalloc.start()
    try:
        for _ in range(750):
            unknown = ("".join(chosen.choices(alphabet, k=chosen.randint(3, 12))) for _ in range(6))
            ids_or_learn(words, " ".join(unknown))
            entries.add(len(words._young))
            assert len(words._young) + len(words._old) <= 2 * size / module.ENTRY_BYTES
        assert tracemalloc.get_traced_memory()[0] < 2 * size
    finally:
        tracemalloc.stop()
    assert max(entries) > 100, "it was full"
    assert len(words._young) < max(entries), "and began anew"
    assert words.ids("Paris is the capital") == Library(name, special=False).encode("Paris is the capital").ids


def test_long_chunks_are_not_kept_and_long_texts_skip_the_cache() -> None:
    words, library = cache_of("bert"), Library("bert", 5000, special=False)
    for length, kept in ((MAX_CHUNK_CHARACTERS, 1), (MAX_CHUNK_CHARACTERS + 1, 0), (500, 0)):
        for letter in "aé":
            chunk = letter * length
            text = chunk + " Paris" * length
            assert words.ids(text) == library.encode(text).ids
            assert (chunk in words._young) == kept
    assert words.ids("a" + " " * MAX_TEXT_CHARACTERS) is None
    assert words.ids("a" + " " * (MAX_TEXT_CHARACTERS - 1)) == library.encode("a").ids


def test_gpt2_is_cached_only_for_single_spaces_between_words() -> None:
    for text in ("", " ", "a  b", "  a", "a ", "a \nb", "a\u00a0 b c", "\x1ca", "é \t"):
        assert cache_of("gpt2").ids(text) is None
        bert = cache_of("bert")
        bert.learn(text)
        assert bert.ids(text) == Library("bert", 512, special=False).encode(text).ids
    for text in ("a\nb", "a\n\nb c", "a\u00a0b\t\t\tc d"):  # inside a chunk
        assert cache_of("gpt2").ids(text) == Library("gpt2", 512, special=False).encode(text).ids


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Lets threads take turns after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_threads_share_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GENERATION_BYTES", 5_000)
    engine, reference = engine_of("bert", 64), Library("bert", 64)
    texts = [f"élève {number % 7} is Paris {number % 40} número{number % 13}" for number in range(200)]
    expected = [reference.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as executor:
        for encodings in executor.map(lambda _: [encode(engine, text) for text in texts], range(12)):
            assert encodings == expected
    cached: Any = engine._cached
    words = cached._words
    sizes = [
        sys.getsizeof(chunk) + sys.getsizeof(ids) + sum(map(sys.getsizeof, ids)) for chunk, ids in words._young.items()
    ]
    assert 0 < sum(sizes) <= words._bytes <= 5_000


# Tokenizers with and without chunk rules

Change = Callable[[Tokenizer], object]


def bert() -> Tokenizer:
    return wordpiece(lowercase=True)


def gpt2() -> Tokenizer:
    return byte_level(["<|endoftext|>"])


class Reversing:
    """A normalizer written in Python."""

    def normalize(self, normalized: Any) -> None:
        normalized.map(lambda char: char)


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=single, pair="$A $B:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)]
    )


def stage(name: str, value: Any) -> Change:
    return lambda backend: setattr(backend, name, value)


def normalized_by(*steps: normalizers.Normalizer) -> Change:
    return stage("normalizer", normalizers.Sequence([*steps]))


def adding(content: str, **flags: bool) -> Change:
    return lambda backend: backend.add_tokens([AddedToken(content, **flags)])


METASPACE = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
UNCERTAIN: dict[str, tuple[Callable[[], Tokenizer], Change]] = {
    "strip": (bert, normalized_by(normalizers.Strip())),
    "replace": (bert, normalized_by(normalizers.Replace(Regex(" +"), " "))),
    "prepend": (bert, normalized_by(normalizers.Lowercase(), normalizers.Prepend("x"))),
    "nested": (bert, normalized_by(normalizers.Sequence([normalizers.Strip()]))),
    "python normalizer": (bert, lambda b: setattr(b, "normalizer", normalizers.Normalizer.custom(Reversing()))),
    "no pre-tokenizer": (bert, stage("pre_tokenizer", None)),
    "metaspace": (bert, stage("pre_tokenizer", pre_tokenizers.Metaspace())),
    "sequence": (bert, stage("pre_tokenizer", METASPACE)),
    "custom pattern": (gpt2, stage("pre_tokenizer", pre_tokenizers.Split(Regex(r"\s+"), "isolated"))),
    "bytes without a pattern": (gpt2, stage("pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False))),
    "digits": (bert, stage("pre_tokenizer", pre_tokenizers.Digits())),
    "unigram": (bert, stage("model", models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))),
    "dropout": (gpt2, lambda backend: setattr(backend.model, "dropout", 0.5)),
    "text twice": (bert, stage("post_processor", template("[CLS] $A [SEP] $A"))),
    "no text": (bert, stage("post_processor", template("[CLS] [SEP]"))),
    "token with a space": (bert, adding("two words")),
    "token of a space": (gpt2, adding("  ", normalized=False)),
    "token with a line end": (bert, adding("a\nb", normalized=False)),
    "token that becomes spaces": (bert, adding("中")),
    "token that becomes nothing": (bert, adding("\u0301")),
    "token that takes the space behind it": (gpt2, adding("<x>", rstrip=True)),
    "accents of bytes": (gpt2, normalized_by(normalizers.StripAccents())),
    "compatibility of bytes": (gpt2, normalized_by(normalizers.NFKC())),
    "bert's normalizer of bytes": (gpt2, normalized_by(normalizers.BertNormalizer())),
}


@pytest.mark.parametrize(("make", "change"), UNCERTAIN.values(), ids=UNCERTAIN)
def test_stages_that_may_look_across_spaces_have_no_chunk_rules(make: Callable[[], Tokenizer], change: Change) -> None:
    backend = make()
    assert chunk_rules(backend) is not None, "without the change"
    change(backend)
    assert chunk_rules(backend) is None


@pytest.mark.parametrize("backend", [unigram(["<unk>"]), Tokenizer(models.BPE())], ids=["sentencepiece", "bare"])
def test_other_models_have_no_chunk_rules(backend: Tokenizer) -> None:
    assert chunk_rules(backend) is None


@pytest.mark.parametrize(
    ("make", "processor"),
    [
        (bert, None),
        (bert, template("$A")),
        (bert, template("[CLS] $A [SEP]")),
        (bert, template("[CLS] [MASK] $A:0 [SEP]:0 [SEP]")),
        (bert, template("[CLS] $A:1 [SEP]:2")),
        (bert, processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))),
        (bert, processors.Sequence([processors.ByteLevel(), template("[CLS] $A")])),
        (roberta, processors.RobertaProcessing(("</s>", 2), ("<s>", 0))),
        (gpt2, processors.ByteLevel()),
    ],
)
def test_special_tokens_are_those_of_the_post_processor(make: Callable[[], Tokenizer], processor: Any) -> None:
    backend = make()
    backend.post_processor = processor
    for special in (True, False):
        engine = RustEngine(backend, 512, special_tokens=special, truncation_side="right")
        for text in ("Paris is the capital", ("Paris is", "the capital")):
            [encoded] = backend.encode_batch([text], add_special_tokens=special)
            cached = engine.cached(text, PLAIN)
            # Without a post-processor, the library's type ids of a pair depend on other options.
            assert cached == [Encoding(encoded.ids, encoded.type_ids)] or (processor is None and cached is None)


@pytest.mark.parametrize(
    ("content", "plain"), [("[X]", True), ("x_y", True), ("œuf", True), ("zoë", False), ("ing", False), ("2", False)]
)
def test_ascii_chunks_that_may_contain_an_added_token_are_not_encoded(content: str, plain: bool) -> None:
    backend = bert()  # for which zoë is zoe
    backend.add_tokens([content])
    rules = chunk_rules(backend)
    encoder = None if rules is None else AsciiEncoder.of(backend, rules)
    assert (encoder is not None) == plain, "a token of letters alone may be in any word"
    for chunk in (content, f"a{content}b", "", "é", "a b", "a\n", "\x7f", "x" * 33):
        assert encoder is None or encoder.ids(chunk, False) is None
    assert encoder is None or encoder.ids("Paris.", False) == (*backend.encode("Paris.", add_special_tokens=False).ids,)

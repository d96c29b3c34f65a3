"""Which tokenizers are taken apart at spaces, and which are left to the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from hf_transformer.tokenizer.words import AsciiWords, WordCache, separable
from tests.tiny_tokenizers.trained import byte_level, roberta, unigram, wordpiece

Change = Callable[[Any], Any]


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


def normalized_by(*steps: normalizers.Normalizer) -> Change:
    return lambda backend: setattr(backend, "normalizer", normalizers.Sequence([*steps]))


def split_by(splitter: pre_tokenizers.PreTokenizer | None) -> Change:
    return lambda backend: setattr(backend, "pre_tokenizer", splitter)


def ended_by(processor: Any) -> Change:
    return lambda backend: setattr(backend, "post_processor", processor)


def adding(content: str, **flags: bool) -> Change:
    return lambda backend: backend.add_tokens([AddedToken(content, **flags)])


def of_model(model: models.Model) -> Change:
    return lambda backend: setattr(backend, "model", model)


def metaspace() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


OUTSIDE: dict[str, tuple[Callable[[], Tokenizer], Change]] = {
    "strip": (bert, normalized_by(normalizers.Strip())),
    "replace": (bert, normalized_by(normalizers.Replace(Regex(" +"), " "))),
    "prepend": (bert, normalized_by(normalizers.Lowercase(), normalizers.Prepend("x"))),
    "nested": (bert, normalized_by(normalizers.Sequence([normalizers.Strip()]))),
    "python normalizer": (bert, lambda b: setattr(b, "normalizer", normalizers.Normalizer.custom(Reversing()))),
    "no pre-tokenizer": (bert, split_by(None)),
    "metaspace": (bert, split_by(pre_tokenizers.Metaspace())),
    "sequence": (bert, split_by(metaspace())),
    "own pattern": (gpt2, split_by(pre_tokenizers.Split(Regex(r"\s+"), "isolated"))),
    "bytes without a pattern": (gpt2, split_by(pre_tokenizers.ByteLevel(use_regex=False))),
    "digits": (bert, split_by(pre_tokenizers.Digits())),
    "unigram": (bert, of_model(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))),
    "dropout": (gpt2, lambda backend: setattr(backend.model, "dropout", 0.5)),
    "type ids": (bert, ended_by(template("[CLS] $A [SEP]:2"))),
    "type id of the text": (bert, ended_by(template("[CLS] $A:1 [SEP]"))),
    "text twice": (bert, ended_by(template("[CLS] $A [SEP] $A"))),
    "no text": (bert, ended_by(template("[CLS] [SEP]"))),
    "second text": (bert, ended_by(template("[CLS] $B [SEP]"))),
    "processors": (bert, ended_by(processors.Sequence([processors.ByteLevel(), template("[CLS] $A")]))),
    "token with a space": (bert, adding("two words")),
    "token of a space": (gpt2, adding("  ", normalized=False)),
    "token with a line end": (bert, adding("a\nb", normalized=False)),
    "token that becomes spaces": (bert, adding("中")),
    "token that becomes nothing": (bert, adding("\u0301")),
    "token that takes the space behind it": (gpt2, adding("<x>", rstrip=True)),
    "accents of bytes": (gpt2, normalized_by(normalizers.StripAccents())),
    "compatibility of bytes": (gpt2, normalized_by(normalizers.NFKC())),
    "bert's normalizer of bytes": (gpt2, normalized_by(normalizers.BertNormalizer())),
    "sentencepiece": (lambda: unigram(["<unk>"]), lambda backend: None),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_not_certain_is_left_to_the_library(name: str) -> None:
    make, change = OUTSIDE[name]
    backend = make()
    if name != "sentencepiece":
        assert WordCache.of(backend, True) is not None, "without the change"
    change(backend)
    assert WordCache.of(backend, True) is None


@pytest.mark.parametrize(
    ("make", "processor", "before", "after"),
    [
        (bert, None, (), ()),
        (bert, template("$A"), (), ()),
        (bert, template("[CLS] $A [SEP]"), (2,), (3,)),
        (bert, template("[CLS] [MASK] $A:0 [SEP]:0 [SEP]"), (2, 4), (3, 3)),
        (bert, processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), (2,), (3,)),
        (roberta, processors.RobertaProcessing(("</s>", 2), ("<s>", 0)), (0,), (2,)),
        (gpt2, processors.ByteLevel(), (), ()),
    ],
)
def test_special_tokens_around(
    make: Callable[[], Tokenizer], processor: Any, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    backend = make()
    backend.post_processor = processor
    how = separable(backend)
    assert how is not None
    assert (how.before, how.after) == (before, after)
    for special in (True, False):
        words = WordCache.of(backend, special)
        encoded = backend.encode("Paris is the capital", add_special_tokens=special)
        assert words is not None and words.ids("Paris is the capital") == encoded.ids
        assert encoded.type_ids == [0] * len(encoded.ids)


@pytest.mark.parametrize(
    ("content", "plain"), [("[X]", True), ("x_y", True), ("œuf", True), ("zoë", False), ("ing", False), ("2", False)]
)
def test_added_tokens_of_letters_alone_may_be_in_any_word(content: str, plain: bool) -> None:
    backend = bert()  # for which zoë is zoe
    backend.add_tokens([content])
    how = separable(backend)
    assert how is not None
    words = AsciiWords.of(backend, how)
    assert (words is not None) == plain
    if words is not None and content.isascii():
        assert words.ids(content, False) is None
        assert words.ids(f"a{content}b", False) is None


@pytest.mark.parametrize("chunk", ["", "é", "a b", "a\n", "\x7f", "x" * 33])
def test_only_short_printable_ascii_is_put_together(chunk: str) -> None:
    backend = bert()
    how = separable(backend)
    assert how is not None
    words = AsciiWords.of(backend, how)
    assert words is not None and words.ids(chunk, False) is None
    assert words.ids("Paris.", False) == tuple(backend.encode("Paris.", add_special_tokens=False).ids)


def test_other_models_are_not_separable() -> None:
    backend = unigram(["<unk>"])
    assert separable(backend) is None
    assert separable(Tokenizer(models.BPE())) is None
